import unittest

from small_tree import tree_of

from tidy_checks.tree import SourceFile, Tree, blank_literals


class BlankLiterals(unittest.TestCase):
    def test_keeps_the_length_and_every_line(self):
        text = 'int a; // x {\n/* { \n } */ auto s = "{\\"";  char c = \'{\';\n'
        code = blank_literals(text)
        self.assertEqual(len(code), len(text))
        self.assertEqual(code.count("\n"), text.count("\n"))
        self.assertNotIn("{", code)
        self.assertIn("int a;", code)

    def test_raw_strings_and_digit_separators(self):
        code = blank_literals("auto r = R\"x({\"})x\"; int n = 1'000'000; f({n});")
        self.assertIn("1'000'000", code)
        self.assertEqual(code.count("{"), 1)


class Includes(unittest.TestCase):
    def test_quoted_and_angled_with_their_lines(self):
        source = SourceFile("base/a.cpp", '#include "base/a.h"\n\n#include <vector>\n// #include "base/c.h"\n')
        self.assertEqual(source.includes(), [(1, "base/a.h", True), (3, "vector", False)])


class Suppression(unittest.TestCase):
    def test_needs_a_reason(self):
        source = SourceFile("base/a.cpp", "a();  // tidy: allow exit, because the child has no state\nb();  // tidy: allow exit\n")
        self.assertTrue(source.allows(1, "exit"))
        self.assertFalse(source.allows(1, "new"))
        self.assertFalse(source.allows(2, "exit"))


class FencedBlock(unittest.TestCase):
    def test_lines_of_the_named_block_only(self):
        tree = tree_of({}, page="x\n```other\nno\n```\n```layers\nbase :\n\n# remark\nshm : base\n```\nafter\n")
        self.assertEqual(tree.fenced_block("docs/architecture.md", "layers"), [(6, "base :"), (9, "shm : base")])
        self.assertEqual(tree.fenced_block("docs/none.md", "layers"), [])


class ReadTree(unittest.TestCase):
    def test_lists_this_repository(self):
        from small_tree import ROOT

        tree = Tree.read(ROOT)
        self.assertIn("base/status.h", tree.sources)
        self.assertIn("CMakeLists.txt", tree.texts)
        self.assertFalse([path for path in tree.texts if path.startswith("build")])


if __name__ == "__main__":
    unittest.main()
