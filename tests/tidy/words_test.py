import unittest

from small_tree import places, tree_of

from tidy_checks.words import check_names, check_whitespace, check_words


class Names(unittest.TestCase):
    def test_empty_names(self):
        for name in ["Manager", "ChunkManager", "SocketUtil", "RingImpl", "JobInfo", "Data"]:
            self.assertEqual(places(check_names(tree_of({"base/a.h": f"\nclass {name} {{\n}};\n"}))), [("base/a.h", 2)], name)

    def test_speaking_names(self):
        for code in ["class ChunkTable {};", "struct DataFile {};", "class Database;", "class Information {};", "namespace tidepool::shm {}"]:
            self.assertEqual(check_names(tree_of({"base/a.h": code + "\n"})), [], code)

    def test_a_third_level(self):
        self.assertEqual(places(check_names(tree_of({"base/a.h": "namespace tidepool::shm::ring {}\n"}))), [("base/a.h", 1)])


class Words(unittest.TestCase):
    def test_unfinished_work(self):
        for word in ["TO" + "DO", "FIX" + "ME"]:
            self.assertEqual(places(check_words(tree_of({"docs/a.md": f"x\n{word}: later\n"}))), [("docs/a.md", 2)], word)

    def test_paths_of_one_machine(self):
        for path in ["/ho" + "me/alice/x", "/ro" + "ot/x", "/wo" + "rk/main/x", ".." + "/shared/x"]:
            self.assertEqual(places(check_words(tree_of({"scripts/a": f"cd {path}\n"}))), [("scripts/a", 1)], path)

    def test_lawful_paths(self):
        for path in ["/run/tidepool/admin.sock", "$HOME/x", "docs/wo" + "rk/x", "~/ro" + "ot/x", "/usr/share/common-licenses"]:
            self.assertEqual(check_words(tree_of({"scripts/a": f"cd {path}\n"})), [], path)


class Whitespace(unittest.TestCase):
    def test_line_ends_and_the_last_newline(self):
        self.assertEqual(places(check_whitespace(tree_of({"a.md": "x \ny"}, page="x\n"))), [("a.md", 2), ("a.md", 1)])
        self.assertEqual(check_whitespace(tree_of({"a.md": "x\ny\n"}, page="x\n")), [])


if __name__ == "__main__":
    unittest.main()
