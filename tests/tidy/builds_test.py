import os
import tempfile
import unittest

from small_tree import places, tree_of

from tidy_checks.builds import check_built, check_headers, check_own_header_first, headers_to_compile, includes_torch


class Built(unittest.TestCase):
    def test_a_file_that_no_list_names(self):
        files = {"base/CMakeLists.txt": "tidepool_library(base SOURCES a.cpp)  # not b.cpp\n", "base/a.cpp": "", "base/b.cpp": "", "base/aa.cpp": ""}
        self.assertEqual(places(check_built(tree_of(files))), [("base/b.cpp", 1), ("base/aa.cpp", 1)])

    def test_a_list_further_up_may_name_it(self):
        self.assertEqual(check_built(tree_of({"memserver/CMakeLists.txt": "jobs/a.cpp\n", "memserver/jobs/a.cpp": ""})), [])


    def test_a_loop_names_what_its_words_name(self):
        text = "foreach(subject ring port)\n  tidepool_test(shm_${subject}_test SOURCES ${subject}_test.cpp)\nendforeach()\n"
        files = {"tests/shm/CMakeLists.txt": text, "tests/shm/ring_test.cpp": "", "tests/shm/socket_test.cpp": ""}
        self.assertEqual(places(check_built(tree_of(files))), [("tests/shm/socket_test.cpp", 1)])


class OwnHeader(unittest.TestCase):
    def test_must_come_first(self):
        good = {"base/a.h": "", "base/b.h": "", "base/a.cpp": '#include "base/a.h"\n#include "base/b.h"\n'}
        bad = {"base/a.h": "", "base/b.h": "", "base/a.cpp": '#include "base/b.h"\n#include "base/a.h"\n'}
        self.assertEqual(check_own_header_first(tree_of(good)), [])
        self.assertEqual(places(check_own_header_first(tree_of(bad))), [("base/a.cpp", 1)])


class Headers(unittest.TestCase):
    def test_only_unproven_headers_are_compiled(self):
        files = {"base/a.h": "", "base/lone.h": "", "base/a.cpp": '#include "base/a.h"\n'}
        self.assertEqual(headers_to_compile(tree_of(files)), ["base/lone.h"])

    def test_a_header_that_leans_on_its_neighbours(self):
        with tempfile.TemporaryDirectory() as root:
            files = {"good.h": "#pragma once\n#include <string>\nstd::string Good();\n", "bad.h": "#pragma once\nstd::string Bad();\n"}
            for name, text in files.items():
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            self.assertEqual(places(check_headers(tree_of(files, root=root))), [("bad.h", 1)])

    def test_torch_is_found_through_other_headers(self):
        tree = tree_of({"trainer/a.h": '#include "trainer/b.h"\n', "trainer/b.h": "#include <torch/torch.h>\n", "base/c.h": "#include <vector>\n"})
        self.assertTrue(includes_torch(tree, "trainer/a.h"))
        self.assertFalse(includes_torch(tree, "base/c.h"))


if __name__ == "__main__":
    unittest.main()
