import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "bench_report.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import bench_report  # noqa: E402


def row(**changes):
    values = {"bench": "fetch", "row": "64 MiB chunks", "value": 5.1e9, "unit": "bytes/s", "against": "memcpy", "ratio": 0.95, "target": 0.9, "holds": True}
    values.update(changes)
    return values


class Rows(unittest.TestCase):
    def test_other_lines_are_passed_over(self):
        self.assertEqual(bench_report.parse_rows("warming up\n" + json.dumps(row()) + "\n"), ([row()], [], []))

    def test_a_spread_belongs_to_the_row_before_it(self):
        spread = {"bench": "fetch", "row": "64 MiB chunks", "spread": [0.9, 1.1], "samples": 7}
        rows, spreads, _ = bench_report.parse_rows(f"{json.dumps(row())}\n{json.dumps(spread)}\n{json.dumps(row(against='another'))}\n")
        self.assertEqual(spreads, [spread | {"against": "memcpy"}])
        self.assertEqual([bench_report.spread_of(one, spreads) for one in rows], [[0.9, 1.1], None])
        with self.assertRaises(ValueError):
            bench_report.parse_rows(json.dumps(spread))

    def test_a_regime_belongs_to_the_row_before_it(self):
        regime = {"bench": "fetch", "row": "64 MiB chunks", "round_trip_ns": [118.0, 121.0], "dropped": 1}
        rows, _, regimes = bench_report.parse_rows(f"{json.dumps(row())}\n{json.dumps(regime)}\n{json.dumps(row(against='another'))}\n")
        self.assertEqual([bench_report.found_for(one, regimes) for one in rows], [regime | {"against": "memcpy"}, None])
        with self.assertRaises(ValueError):
            bench_report.parse_rows(json.dumps(regime))

    def test_a_row_with_other_keys_is_refused(self):
        with self.assertRaises(ValueError):
            bench_report.parse_rows('{"bench": "fetch"}')

    def test_the_machine_record_names_what_matters(self):
        record = bench_report.machine_record(ROOT)
        self.assertEqual(set(record), {"date", "cpu", "cores", "cache_bytes", "memory_bytes", "kernel", "compiler", "build_type", "commit"})
        self.assertIn("g++", record["compiler"])


class Machine(unittest.TestCase):
    def test_a_busy_machine_and_two_threads_of_one_core_are_warned_of(self):
        self.assertEqual(bench_report.warnings({"load_before": 0.2, "spin_round_trip_ns": 280.0}), [])
        self.assertEqual(bench_report.warnings({}), [])
        found = bench_report.warnings({"load_before": 3.5, "spin_round_trip_ns": 83.0})
        self.assertIn("3.5", found[0])
        self.assertIn("83 ns", found[1])


def regime(low, high, dropped=0, **changes):
    return {"bench": "fetch", "row": "64 MiB chunks", "against": "memcpy", "round_trip_ns": [low, high], "dropped": dropped} | changes


class Regime(unittest.TestCase):
    def test_the_table_shows_the_round_trip_its_change_and_the_rounds_that_were_dropped(self):
        for found, text in ((regime(118, 121), " 121 "), (regime(118, 470), " 118->470 "), (regime(118, 121, 2), " 121 -2 ")):
            self.assertIn(text, bench_report.table([row()], [], [found]))
        self.assertEqual(bench_report.regime_text(None), "-")
        self.assertEqual(bench_report.regime_text(regime(0, 0)), "0", "one CPU")

    def test_a_change_is_warned_of_within_a_row_and_between_rows(self):
        self.assertEqual(bench_report.regime_warnings([]), [])
        self.assertEqual(bench_report.regime_warnings([regime(118, 121), regime(120, 130)]), [])
        self.assertIn("1 of 2 rows", bench_report.regime_warnings([regime(118, 121), regime(120, 470)])[0])
        self.assertIn("compare within a row alone", bench_report.regime_warnings([regime(118, 121), regime(460, 470)])[0])
        self.assertIn("3 rounds do not count", bench_report.regime_warnings([regime(118, 121, 1), regime(118, 121, 2)])[0])

    def test_the_factor_is_that_of_the_programs(self):
        with open(os.path.join(ROOT, "bench", "harness", "regime.h"), encoding="utf-8") as file:
            self.assertIn(f"kRegimeFactor = {bench_report.REGIME_FACTOR};", file.read())


class ExitCode(unittest.TestCase):
    def run_with(self, *rows):
        with tempfile.TemporaryDirectory() as folder:
            rows_file, out = os.path.join(folder, "fetch.rows"), os.path.join(folder, "out.json")
            with open(rows_file, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(one) + "\n" for one in rows)
            probe = os.path.join(folder, "machine.json")
            with open(probe, "w", encoding="utf-8") as file:
                file.write('{"isa": "v4", "read_gb_s": 30.5}\n')
            words = ["--repo", ROOT, "--json", out, "--probe", probe, "--load", "0.25", rows_file]
            done = subprocess.run([sys.executable, "-B", SCRIPT, *words], capture_output=True, text=True, check=False)
            with open(out, encoding="utf-8") as file:
                return done, json.load(file)

    def test_is_zero_when_every_target_holds(self):
        done, written = self.run_with(row(), row(row="p50", target=None, holds=None))
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(written["rows"]), 2)
        self.assertEqual([written["machine"][key] for key in ("isa", "read_gb_s", "load_before")], ["v4", 30.5, 0.25])

    def test_is_one_when_a_target_does_not_hold_or_nothing_ran(self):
        done, _ = self.run_with(row(ratio=0.5, holds=False))
        self.assertEqual(done.returncode, 1)
        self.assertIn("NO", done.stdout)
        self.assertEqual(self.run_with()[0].returncode, 1)


if __name__ == "__main__":
    unittest.main()
