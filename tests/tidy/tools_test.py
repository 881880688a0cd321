import os
import shutil
import tempfile
import unittest

from small_tree import ROOT, places, tree_of

from tidy_checks.tools import check_format, check_shell, shell_scripts


class OnDisk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = os.path.realpath(self.folder.name)
        shutil.copy(os.path.join(ROOT, ".clang-format"), self.root)

    def tearDown(self):
        self.folder.cleanup()

    def tree(self, files):
        for name, text in files.items():
            with open(os.path.join(self.root, name), "w", encoding="utf-8") as file:
                file.write(text)
        return tree_of(files, root=self.root)

    def test_unformatted_source(self):
        tree = self.tree({"good.cpp": "int Add(int a, int b) {\n  if (a) return b;\n  return a + b;\n}\n", "bad.cpp": "int x;\nint Add( int a,int b ){return a+b;}\n"})
        self.assertEqual(places(check_format(tree)), [("bad.cpp", 2)])

    def test_a_careless_script(self):
        tree = self.tree({"good": '#!/bin/bash\necho "$1"\n', "bad": "#!/bin/bash\nrm -rf $1/*\n"})
        findings = check_shell(tree)
        self.assertTrue(findings)
        self.assertEqual({finding.path for finding in findings}, {"bad"})

    def test_scripts_are_known_by_their_first_line(self):
        self.assertEqual(shell_scripts(tree_of({"a": "#!/usr/bin/env bash\n", "b": "#!/usr/bin/python3\n", "c.sh": "x\n", "d": "bash\n"})), ["a", "c.sh"])


if __name__ == "__main__":
    unittest.main()
