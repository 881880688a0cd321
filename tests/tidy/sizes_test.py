import textwrap
import unittest

from small_tree import places, tree_of

from tidy_checks.sizes import check_classes, check_folders, check_sizes, count_parameters, find_functions, summary
from tidy_checks.tree import SourceFile


def functions_of(text):
    return [(found.name, found.parameters, found.lines) for found in find_functions(SourceFile("base/a.cpp", textwrap.dedent(text)))]


class FindFunctions(unittest.TestCase):
    def test_free_functions_and_their_lengths(self):
        text = """\
        namespace tidepool {
        int Add(int a, int b) { return a + b; }

        void Long(
            int a) {
          if (a) {
            Add(a, {1});
          }
        }
        }  // namespace tidepool
        """
        self.assertEqual(functions_of(text), [("Add", 2, 1), ("Long", 1, 6)])

    def test_methods_constructors_and_operators(self):
        text = """\
        class Box final : public Base {
         public:
          explicit Box(int width) : width_{width}, other_(2) {
            Run();
          }
          ~Box() override { Stop(); }
          bool operator()(int a, int b) const { return a < b; }
          Box& operator=(const Box& other) = delete;
          virtual Status Put(uint64_t at, std::span<const std::byte> bytes, std::map<int, int> names) = 0;
         private:
          std::atomic<int> width_{0};
          std::function<void(int, int)> hook_ = [](int, int) {};
        };
        """
        self.assertEqual(functions_of(text),
                         [("Box", 1, 3), ("~Box", 0, 1), ("operator_call", 2, 1), ("operator=", 1, 1), ("Put", 3, 1)])

    def test_templates_and_trailing_types(self):
        text = """\
        template <typename T>
          requires std::is_arithmetic_v<T>
        auto Sum(std::span<const T> values, T start) -> T {
          for (const T& value : values) start += value;
          return start;
        }
        """
        self.assertEqual([(name, parameters) for name, parameters, _ in functions_of(text)], [("Sum", 2)])

    def test_macros_tables_and_enums_are_no_functions(self):
        text = """\
        #define MANY(a, b, c, d, e, f) \\
          do {                         \\
          } while (false)
        enum class Code : uint8_t { kOk, kBad };
        constexpr std::array<int, 2> kTable = {1, 2};
        static_assert(sizeof(int) == 4);
        const auto kRows = std::to_array<Row>({{1, "a"}, {2, "b"}});
        """
        self.assertEqual(functions_of(text), [])

    def test_commas_inside_brackets_do_not_count(self):
        self.assertEqual(count_parameters("std::map<int, int> a, void (*f)(int, int), std::array<int, 3> b = {1, 2, 3}"), 3)
        self.assertEqual(count_parameters(" "), 0)


class Limits(unittest.TestCase):
    def test_a_long_file(self):
        self.assertEqual(places(check_sizes(tree_of({"base/a.cpp": "\n" * 400}))), [("base/a.cpp", 1)])
        self.assertEqual(check_sizes(tree_of({"base/a.cpp": "\n" * 399, "tests/base/a.cpp": "\n" * 599})), [])
        self.assertEqual(places(check_sizes(tree_of({"tests/base/a.cpp": "\n" * 600}))), [("tests/base/a.cpp", 1)])

    def test_the_keeper_stays_small(self):
        keeper = "memserver/keeper/keeper.cpp"
        self.assertEqual(places(check_sizes(tree_of({keeper: "\n" * 340}))), [(keeper, 1)])
        self.assertEqual(check_sizes(tree_of({keeper: "\n" * 339, "memserver/keeper/keeper_link.cpp": "\n" * 340})), [])

    def test_a_long_function(self):
        body = "  Step();\n" * 68
        self.assertEqual(places(check_sizes(tree_of({"base/a.cpp": "\nvoid Run() {\n" + body + "}\n"}))), [("base/a.cpp", 2)])
        self.assertEqual(check_sizes(tree_of({"base/a.cpp": "\nvoid Run() {\n" + body[: -len("  Step();\n")] + "}\n"})), [])

    def test_six_parameters(self):
        self.assertEqual(places(check_sizes(tree_of({"base/a.h": "void Run(int a, int b, int c, int d, int e, int f);\n"}))), [("base/a.h", 1)])
        self.assertEqual(check_sizes(tree_of({"base/a.h": "void Run(int a, int b, int c, int d, int e);\n"})), [])

    def test_the_summary_counts(self):
        self.assertIn("1 production", summary(tree_of({"base/a.cpp": "int A() { return 1; }\n"})))

    def test_what_is_counted_without_a_limit(self):
        files = {"base/a.h": "// A: one.\nint a;  // two\nint b;\nint c;\n", "base/a.cpp": "void A::F() {\n}\nvoid A::G() {\n}\n", "nvme/b.h": "int b;\n",
                 "README.md": "three words here\n", "docs/a.md": "two more\n", "docs/decisions/001-a.md": "not counted\n"}
        told = summary(tree_of(files, page="five words of a page\n"))
        self.assertIn("folder base (2 files), class A (2 definitions)", told)
        self.assertIn("headers 40.0 %, bodies 0.0 %", told)
        self.assertIn("10 of README and docs", told)


class Classes(unittest.TestCase):
    def test_a_class_is_as_large_as_all_its_files(self):
        half = "".join(f"void Desk::F{i}() {{\n}}\n" for i in range(21))
        other = half.replace("F", "G")
        self.assertEqual(check_classes(tree_of({"base/a.cpp": half})), [])
        self.assertEqual(places(check_classes(tree_of({"base/a.cpp": half, "base/b.cpp": other}))), [("base/a.cpp", 1)])

    def test_lines_count_too(self):
        long = "void Desk::F() {\n" + "  Step();\n" * 65 + "}\n"
        self.assertEqual(check_classes(tree_of({"base/a.cpp": long * 8})), [])
        self.assertEqual(places(check_classes(tree_of({"base/a.cpp": long * 9}))), [("base/a.cpp", 1)])


class Folders(unittest.TestCase):
    def test_thirty_files_and_forty_tests(self):
        files = {f"base/a{i}x.h": "" for i in range(30)}
        tests = {f"tests/base/a{i}x_test.cpp": "" for i in range(40)}
        self.assertEqual(check_folders(tree_of({**files, **tests})), [])
        self.assertEqual(places(check_folders(tree_of({**files, "base/b.h": ""}))), [("base", 1)])
        self.assertEqual(places(check_folders(tree_of({**tests, "tests/base/b.h": ""}))), [("tests/base", 1)])

    def test_a_second_half_has_no_name_of_its_own(self):
        for name in ("base/desk_part.cpp", "base/desk2.cpp", "base/desk_rest.h"):
            self.assertEqual(places(check_folders(tree_of({name: ""}))), [(name, 1)])
        self.assertEqual(check_folders(tree_of({"optim/kernels_v2.cpp": "", "base/crc32c.cpp": ""})), [])


if __name__ == "__main__":
    unittest.main()
