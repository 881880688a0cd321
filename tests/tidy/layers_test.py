import unittest

from small_tree import places, tree_of

from tidy_checks.layers import check_cycles, check_knots, check_layers, check_seams, parse_rules, room_of


class Rules(unittest.TestCase):
    def test_all_of_the_above_but(self):
        rules = parse_rules([(1, "base :"), (2, "shm nvme : base"), (3, "memserver/jobs : base"), (4, "memserver : all of the above but nvme"),
                             (5, "trainer : all of the above but memserver, shm")])
        self.assertEqual(rules["base"], set())
        self.assertEqual(rules["nvme"], {"base"})
        self.assertEqual(rules["memserver"], {"base", "shm", "memserver/jobs"})
        self.assertEqual(rules["trainer"], {"base", "nvme"})

    def test_a_room_must_stand_above(self):
        with self.assertRaisesRegex(ValueError, "shm must stand in a line above"):
            parse_rules([(1, "client : shm")])

    def test_the_longest_room_wins(self):
        rooms = {"memserver": set(), "memserver/jobs": set()}
        self.assertEqual(room_of("memserver/jobs/a.h", rooms), "memserver/jobs")
        self.assertEqual(room_of("memserver/a.h", rooms), "memserver")
        self.assertEqual(room_of("tests/fakes/a.h", rooms), "tests")
        self.assertIsNone(room_of("elsewhere/a.h", rooms))


class Edges(unittest.TestCase):
    def check(self, path, include):
        return check_layers(tree_of({path: f'#include "{include}"\n', include: "#pragma once\n"}))

    def test_allowed_edges_are_silent(self):
        for path, include in [("client/a.cpp", "shm/b.h"), ("memserver/a.cpp", "memserver/residency/b.h"), ("tests/client/a.cpp", "memserver/b.h"),
                              ("shm/a.cpp", "shm/b.h"), ("trainer/a.cpp", "client/b.h"), ("bench/a.cpp", "trainer/b.h")]:
            self.assertEqual(self.check(path, include), [], (path, include))

    def test_every_other_edge_is_found(self):
        for path, include in [("base/a.cpp", "shm/b.h"), ("memserver/a.cpp", "client/b.h"), ("trainer/a.cpp", "memserver/b.h"),
                              ("trainer/a.cpp", "memserver/residency/b.h"), ("memserver/residency/a.cpp", "memserver/b.h"),
                              ("client/a.cpp", "tests/fakes/b.h"), ("trainer/plan/a.cpp", "trainer/b.h")]:
            self.assertEqual(places(self.check(path, include)), [(path, 1)], (path, include))

    def test_unknown_folder_and_missing_file(self):
        self.assertEqual(places(check_layers(tree_of({"rogue/a.cpp": "int a;\n"}))), [("rogue/a.cpp", 1)])
        self.assertEqual(places(check_layers(tree_of({"base/a.cpp": '\n#include "b.h"\n'}))), [("base/a.cpp", 2)])

    def test_a_page_without_the_block_is_a_finding(self):
        self.assertEqual(len(check_layers(tree_of({"base/a.h": ""}, page="nothing here"))), 1)


class Cycles(unittest.TestCase):
    def test_a_cycle_is_named_once(self):
        findings = check_cycles(tree_of({"base/a.h": '#include "base/b.h"\n', "base/b.h": '#include "base/c.h"\n', "base/c.h": '#include "base/a.h"\n'}))
        self.assertEqual(places(findings), [("base/c.h", 1)])
        self.assertIn("base/a.h -> base/b.h -> base/c.h -> base/a.h", findings[0].text)

    def test_a_diamond_is_none(self):
        files = {"base/a.h": '#include "base/b.h"\n#include "base/c.h"\n', "base/b.h": '#include "base/d.h"\n', "base/c.h": '#include "base/d.h"\n', "base/d.h": ""}
        self.assertEqual(check_cycles(tree_of(files)), [])


class Knots(unittest.TestCase):
    def test_a_header_and_its_source_are_one(self):
        files = {"base/a.h": "", "base/a.cpp": '#include "base/a.h"\n#include "base/b.h"\n', "base/b.h": "", "base/b.cpp": '#include "base/b.h"\n#include "base/a.h"\n'}
        self.assertEqual(check_cycles(tree_of(files)), [])
        self.assertEqual(places(check_knots(tree_of(files))), [("base/a.h", 1)])

    def test_a_diamond_is_none(self):
        files = {"base/a.h": '#include "base/b.h"\n#include "base/c.h"\n', "base/b.h": '#include "base/d.h"\n', "base/c.cpp": '#include "base/d.h"\n', "base/d.h": ""}
        self.assertEqual(check_knots(tree_of(files)), [])


class Seams(unittest.TestCase):
    def test_a_virtual_interface_outside_the_list(self):
        code = "class Clock {\n  virtual int64_t NowNs() const = 0;\n  virtual ~Clock() = default;\n};\n"
        page = "```seams\nClock : base/clock.h\n```\n"
        files = {"base/clock.h": code, "base/timer.h": code, "tests/fakes/timer.h": code}
        self.assertEqual(places(check_seams(tree_of(files, page=page))), [("base/timer.h", 2)])


if __name__ == "__main__":
    unittest.main()
