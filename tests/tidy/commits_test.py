import unittest

from small_tree import places, tree_of

from tidy_checks.commits import check_commits, judge


class Commits(unittest.TestCase):
    def test_a_short_subject_and_a_body(self):
        self.assertEqual(judge("abc", "loop: count every turn", "One was not counted."), [])
        self.assertEqual(judge("abc", "x" * 72, "Why."), [])

    def test_a_long_subject(self):
        self.assertEqual(places(judge("abc", "x" * 73, "Why.")), [("abc", 1)])

    def test_no_body(self):
        self.assertEqual(places(judge("abc", "loop: count every turn", "\n")), [("abc", 1)])

    def test_without_history_nothing_is_said_of_it(self):
        self.assertEqual(check_commits(tree_of({}, root="/nowhere")), [])


if __name__ == "__main__":
    unittest.main()
