import unittest

from small_tree import places, tree_of

from tidy_checks.paragraphs import RUN_MAX, check_paragraphs


def body(*lines: str) -> str:
    return "namespace tidepool {\nvoid F() {\n" + "".join(f"  {line}\n" if line else "\n" for line in lines) + "}\n}\n"


# The line of the function's head and the closing brace count as lines of its run.
STEPS = ["step();"] * (RUN_MAX - 2)


class Paragraphs(unittest.TestCase):
    def findings(self, text: str, path: str = "base/new/a.cpp") -> list:
        return places(check_paragraphs(tree_of({path: text})))

    def test_a_run_up_to_the_limit_is_fine(self):
        self.assertEqual(self.findings(body(*STEPS)), [])

    def test_a_longer_run_is_found_where_it_begins(self):
        self.assertEqual(self.findings(body(*STEPS, "step();")), [("base/new/a.cpp", 2)])

    def test_a_blank_line_or_a_comment_ends_a_run(self):
        for between in ("", "// The second step."):
            self.assertEqual(self.findings(body(*STEPS, between, *STEPS)), [])

    def test_tests_may_have_long_runs(self):
        self.assertEqual(self.findings(body(*STEPS, *STEPS), "tests/base/a_test.cpp"), [])


if __name__ == "__main__":
    unittest.main()
