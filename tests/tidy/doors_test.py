import unittest

from small_tree import places, tree_of

from tidy_checks.doors import BANNED, check_banned, check_doors, matches_any


class Patterns(unittest.TestCase):
    def test_one_star_stays_in_its_folder(self):
        self.assertTrue(matches_any("memserver/a.cpp", ["memserver/*.cpp"]))
        self.assertFalse(matches_any("memserver/jobs/a.cpp", ["memserver/*.cpp"]))
        self.assertTrue(matches_any("memserver/jobs/a.cpp", ["memserver/**"]))


class Doors(unittest.TestCase):
    def test_only_the_door_may_include(self):
        include = "#include <spdlog/spdlog.h>\n"
        self.assertEqual(check_doors(tree_of({"base/log.cpp": include})), [])
        self.assertEqual(places(check_doors(tree_of({"base/status.cpp": include}))), [("base/status.cpp", 1)])

    def test_torch_and_spdlog_never_meet(self):
        both = "#include <spdlog/spdlog.h>\n#include <torch/torch.h>\n"
        self.assertEqual(places(check_doors(tree_of({"tests/trainer/a.cpp": both}))), [("tests/trainer/a.cpp", 1)])
        self.assertEqual(check_doors(tree_of({"tests/trainer/a.cpp": "#include <torch/torch.h>\n"})), [])


class BannedCalls(unittest.TestCase):
    def found(self, path, code):
        return [finding.text.split(" is banned")[0] for finding in check_banned(tree_of({path: code}))]

    def test_each_rule_fires(self):
        examples = {
            "std::mutex": "std::mutex m;", "std::thread": "std::thread t(run);", "std::async": "auto f = std::async(run);",
            "sleep": "std::this_thread::sleep_for(1s);", "clock": "auto t = std::chrono::steady_clock::now();", "random": "int r = rand();",
            "SteadyClock": "const SteadyClock clock;",
            "new": "int* p = new int(3);", "delete": "delete p;", "malloc": "void* p = std::malloc(8);", "printf": 'std::printf("x");',
            "exit": "std::exit(1);", "std::regex": "std::regex r;", "feature switch": "#if TIDEPOOL_HAS_CUDA\n#endif",
            "FRIEND_TEST": "FRIEND_TEST(A, B);", "skipped test": "GTEST_SKIP();",
        }
        self.assertEqual(set(examples), {rule.what for rule in BANNED})
        for what, code in examples.items():
            self.assertEqual(self.found("shm/a.cpp", code), [what], code)

    def test_lawful_neighbours_are_silent(self):
        for code in ["Box(const Box&) = delete;", "void* operator new(size_t n);", "auto p = new (place) Header{};", "app.exit(error);",
                     "return std::unique_ptr<Box>(new Box(3));", "std::unique_ptr<Box> box(new Box());", "std::snprintf(b, n, f);",
                     "// std::mutex in a comment", 'const char* a = "rand()";', "std::this_thread::yield();", "std::thread::id id;",
                     "int64_t time(const Row& row);", "clock.SleepNs(3);", "#include <new>"]:
            self.assertEqual(self.found("shm/a.cpp", code), [], code)

    def test_doors_and_tests(self):
        self.assertEqual(self.found("base/clock.cpp", "clock_gettime(CLOCK_MONOTONIC, &now);"), [])
        self.assertEqual(self.found("trainer/a.cpp", 'std::printf("loss");'), [])
        self.assertEqual(self.found("trainer/run/a.cpp", "SteadyClock clock;"), ["SteadyClock"])
        self.assertEqual(self.found("trainer/cli/run.cpp", "SteadyClock clock;"), [])
        self.assertEqual(self.found("tests/client/a.cpp", "SteadyClock clock;"), [])
        self.assertEqual(self.found("tests/shm/a.cpp", "std::thread t(run);"), [])
        self.assertEqual(self.found("tests/shm/a.cpp", "GTEST_SKIP();"), ["skipped test"])

    def test_a_reason_sets_a_rule_aside_on_its_line(self):
        self.assertEqual(self.found("shm/a.cpp", "std::exit(1);  // tidy: allow exit, because the forked child must not run destructors"), [])


if __name__ == "__main__":
    unittest.main()
