import importlib.machinery
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "bench_compare")
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("bench_compare", SCRIPT)
bench_compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", loader))
sys.modules["bench_compare"] = bench_compare
loader.exec_module(bench_compare)


def row(value, ratio=None, unit="us", name="fetch"):
    against = None if ratio is None else "memcpy"
    return {"bench": "fetch", "row": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "target": None, "holds": None}


class Goodness(unittest.TestCase):
    def test_a_ratio_comes_before_the_value(self):
        self.assertEqual(bench_compare.goodness(row(5.0, ratio=0.9)), ("ratio", 0.9))

    def test_a_time_is_better_when_it_is_smaller(self):
        self.assertEqual(bench_compare.goodness(row(4.0)), ("us", 0.25))

    def test_a_rate_is_better_when_it_is_larger(self):
        self.assertEqual(bench_compare.goodness(row(4.0, unit="GB/s")), ("GB/s", 4.0))

    def test_nothing_is_said_of_other_values(self):
        for other in (row(4.0, unit="share"), row("v4", unit="isa"), row(0.0)):
            self.assertIsNone(bench_compare.goodness(other))


class Verdicts(unittest.TestCase):
    def verdict(self, before, after):
        [found] = bench_compare.compare([[row(1.0, ratio)] for ratio in before], [[row(1.0, ratio)] for ratio in after])
        return found.verdict(0.03)

    def test_within_the_margin(self):
        self.assertEqual(self.verdict([1.0, 1.0, 1.0], [0.98, 0.98, 0.98]), "")

    def test_every_round_below_every_round_before(self):
        self.assertEqual(self.verdict([1.0, 1.1, 1.05], [0.9, 0.95, 0.99]), "loses")

    def test_rounds_that_overlap(self):
        self.assertEqual(self.verdict([0.8, 1.1, 1.05], [0.9, 0.95, 0.99]), "within the scatter")

    def test_two_rounds_say_nothing(self):
        self.assertEqual(self.verdict([1.0, 1.1], [0.9, 0.9]), "too few rounds")

    def test_a_row_that_is_better_loses_nothing_when_its_peer_gained_more(self):
        def rounds(values, ratio):
            return [[row(value, ratio)] for value in values]

        for after, verdict in (([8.0, 9.0, 9.1], "its peer gained more"), ([8.0, 9.0, 9.9], "loses"), ([10.0, 9.0, 9.0], "loses")):
            [found] = bench_compare.compare(rounds([10.0, 10.5, 11.0], 1.0), rounds(after, 0.9))
            self.assertEqual(found.verdict(0.03), verdict)

    def test_a_row_that_one_round_lacks_is_left_out(self):
        self.assertEqual(bench_compare.compare([[row(1.0, 1.0)], []], [[row(1.0, 1.0)], [row(1.0, 1.0)]]), [])


class Runs(unittest.TestCase):
    def build(self, folder, ratio, code=0):
        """A build folder whose benchmark prints one row and notes that it ran."""
        os.makedirs(os.path.join(folder, "bin"))
        program = os.path.join(folder, "bin", "bench_fetch")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho {os.path.basename(folder)} >> {folder}/../order\necho '{json.dumps(row(1.0, ratio))}'\nexit {code}\n")
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)

    def compare(self, ratio_before, ratio_after, *arguments, code=0):
        with tempfile.TemporaryDirectory() as folder:
            self.build(os.path.join(folder, "one"), ratio_before)
            self.build(os.path.join(folder, "two"), ratio_after, code)
            done = subprocess.run([SCRIPT, os.path.join(folder, "one"), os.path.join(folder, "two"), *arguments],
                                  capture_output=True, text=True, check=False)
            order = os.path.join(folder, "order")
            with open(order if os.path.exists(order) else os.devnull, encoding="utf-8") as file:
                return done, file.read().split()

    def test_the_builds_take_turns(self):
        done, order = self.compare(1.0, 1.0, "--rounds", "3")
        self.assertEqual((done.returncode, order), (0, ["one", "two", "two", "one", "one", "two"]), done.stderr)

    def test_a_row_that_loses_is_told(self):
        done, _ = self.compare(1.0, 0.9, "fetch")
        self.assertEqual(done.returncode, bench_compare.EXIT_LOSES, done.stderr)
        self.assertIn("loses", done.stdout)

    def test_the_rows_are_written_with_the_rounds(self):
        with tempfile.NamedTemporaryFile("r", suffix=".json", encoding="utf-8") as file:
            self.compare(1.0, 0.9, "--rounds", "3", "--json", file.name)
            [found] = json.load(file)["rows"]
        self.assertEqual((found["before"], found["after"], found["verdict"]), ([1.0] * 3, [0.9] * 3, "loses"))

    def test_a_target_that_is_missed_is_no_failure(self):
        self.assertEqual(self.compare(1.0, 1.0, code=3)[0].returncode, 0)

    def test_a_benchmark_that_fails_is_told(self):
        done, _ = self.compare(1.0, 1.0, code=1)
        self.assertEqual(done.returncode, bench_compare.EXIT_FAILED)
        self.assertIn("ended with 1", done.stderr)

    def test_a_benchmark_that_one_build_lacks_is_named(self):
        done, _ = self.compare(1.0, 1.0, "step")
        self.assertEqual(done.returncode, bench_compare.EXIT_USAGE)
        self.assertIn("step", done.stderr)


if __name__ == "__main__":
    unittest.main()
