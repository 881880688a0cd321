import unittest

from small_tree import places, tree_of

from tidy_checks.contracts import check_heads, check_sentences

HEAD = "// Ring: a queue.\n\nnamespace tidepool {\n\n"


class Sentences(unittest.TestCase):
    def lines(self, code: str, path: str = "base/new/ring.h") -> list[int]:
        """Lines of `code` in which something has no sentence."""
        return [line - 4 for _, line in places(check_sentences(tree_of({path: HEAD + code + "\n}  // namespace tidepool\n"})))]

    def test_types_and_functions_need_one(self):
        for code in ["class Slot {\n};", "struct Slot {\n  int x;\n};", "enum class Kind { kA, kB };", "enum Kind : int {\n  kA,\n};",
                     "int Count(int a);", "inline int Count() {\n  return 1;\n}", "template <typename T>\nint Count(T a);",
                     "template <typename T>\nrequires std::is_arithmetic_v<T> int Count(T a) { return 1; }", "struct alignas(64) Slot final : Base {\n};"]:
            self.assertEqual(self.lines(code), [1], code)

    def test_above_or_at_the_end_of_a_line(self):
        for code in ["// A place.\nclass Slot {\n};", "class Slot {  // a place\n};", "int Count(int a,\n          int b);  // how many",
                     "// How many.\ntemplate <typename T>\nint Count(T a);"]:
            self.assertEqual(self.lines(code), [], code)

    def test_one_comment_speaks_for_a_run(self):
        self.assertEqual(self.lines("// How many.\nint Count();\nint CountOf(int a);\nstruct Slot {\n  int x;\n};\nint Last();"), [])
        self.assertEqual(self.lines("// How many.\nint Count();\n\nint CountOf(int a);"), [4])

    def test_a_comment_inside_of_the_declaration_before_does_not(self):
        self.assertEqual(self.lines("struct Slot {  // a place\n  // How many.\n  int x;\n};\nint Count();"), [5])

    def test_what_the_head_of_the_file_names(self):
        self.assertEqual(self.lines("class Ring {\n};\nstruct Slot {};"), [3])

    def test_public_members(self):
        self.assertEqual(self.lines("class Ring {\n public:\n  void Push(int a);\n  // Takes one.\n  int Pop();\n\n private:\n  void Grow();\n};"), [3])
        self.assertEqual(self.lines("struct Ring {\n  int a = 0;\n  void Push(int b);\n};"), [3])
        self.assertEqual(self.lines("// Says.\nclass Ring {\n public:\n  void Push(int a);\n};"), [4])

    def test_members_of_a_private_type_are_not_public(self):
        self.assertEqual(self.lines("class Ring {\n  struct Slot {\n    void Clear();\n  };\n  int x_;\n};"), [])

    def test_members_that_say_all_by_themselves(self):
        for member in ["Ring();", "explicit Ring(int a) : a_(a), b_{a} {}", "~Ring() { Stop(); }", "Ring(Ring&&) = default;",
                       "Ring& operator=(const Ring&) = delete;", "void Push(int a) override;", "int a() const { return a_; }",
                       "bool operator==(const Ring& other) const;", "friend bool Same(const Ring& a, const Ring& b);", "int x = Zero();",
                       "std::vector<int> x{1, 2};", "UniqueFd end{eventfd(0, 1)};", "std::function<void(int)> told;"]:
            self.assertEqual(self.lines(f"class Ring {{\n public:\n  {member}\n}};"), [], member)
        self.assertEqual(self.lines("class Ring {\n public:\n  int count() const { return a_; }\n};"), [3])

    def test_what_others_cannot_use(self):
        for code in ["class Slot;", "namespace {\nint Count();\n}", "using Slot = int;", "extern const int kSlots;", "static_assert(sizeof(int) == 4);",
                     "#define COUNT(a) \\\n  int Count();", "inline int Ring::Count() {\n  return 1;\n}"]:
            self.assertEqual(self.lines(code), [], code)

    def test_headers_of_production_only(self):
        for path in ["base/new/ring.cpp", "tests/base/ring.h", "trainer/comm/gloo_shim/gloo/ring.h"]:
            self.assertEqual(self.lines("int Count();", path), [], path)


class Heads(unittest.TestCase):
    def found(self, path: str, head: str) -> int:
        return len(check_heads(tree_of({path: head + "\n#include <vector>\n"})))

    def test_a_header_begins_with_its_noun(self):
        for head in ["// SpscRing: a queue.", "// The ring between two\n// threads.", "// Rings of one process."]:
            self.assertEqual(self.found("base/new/spsc_ring.h", head), 0, head)
        for head in ["#pragma once", "// A queue between two threads.", "// A queue. The ring has places.", "/* Ring: a queue. */"]:
            self.assertEqual(self.found("base/new/spsc_ring.h", head), 1, head)

    def test_sources_and_tests_need_no_head(self):
        self.assertEqual(self.found("base/new/ring.cpp", "#include <array>"), 0)
        self.assertEqual(self.found("tests/base/fixture.h", "#pragma once"), 0)

    def test_no_file_is_a_piece_of_a_class(self):
        for head in ["// The second half of Ring: how it ends.", "// The part of JobDesk about room.", "// Places: the rest of the class Ring.",
                     "// Places: a part of ring.cpp, which alone\n// includes it.", "// Places: one half of SpscRing."]:
            self.assertEqual(self.found("base/new/places.cpp", head), 1, head)

    def test_parts_of_other_things(self):
        for head in ["// Places: two halves of a float.", "// The bytes of each part of a chunk.", "// Places: what every part of JobDesk looks at.", "// Places: part of the wire format."]:
            self.assertEqual(self.found("base/new/places.cpp", head), 0, head)


if __name__ == "__main__":
    unittest.main()
