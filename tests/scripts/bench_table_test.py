import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "bench_table.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import bench_table  # noqa: E402


def result(date, *benches, ratio=0.5):
    rows = [{"bench": bench, "row": "r", "value": 2.0, "unit": "us", "against": "peer", "ratio": ratio, "target": 1.0, "holds": ratio >= 1} for bench in benches]
    machine = {"date": date, "cpu": "Some CPU", "cores": 2, "memory_bytes": 2**34, "kernel": "6.1", "commit": "abc"}
    spreads = [{"bench": bench, "row": "r", "against": "peer", "spread": [0.4, 0.6], "samples": 5} for bench in benches]
    return {"machine": machine, "rows": rows, "spreads": spreads}


class Tables(unittest.TestCase):
    def tables_of(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "box"))
            for name, content in files.items():
                with open(os.path.join(folder, "box", name.replace("_", "-") + ".json"), "w", encoding="utf-8") as file:
                    json.dump(content, file)
            return bench_table.tables(bench_table.load_results(folder))

    def test_the_newest_result_of_a_benchmark_counts(self):
        text = self.tables_of(z_old=result("2026-01-01", "ring", "copy", ratio=0.5), a_new=result("2026-02-01T10:00:00Z", "ring", ratio=1.5))
        self.assertIn("| r | 2 us | peer | 1.5 (0.4–0.6) | 1, holds |", text)
        self.assertIn("| r | 2 us | peer | 0.5 (0.4–0.6) | 1, **missed** |", text)
        self.assertEqual(text.count("| **ring** |"), 1)

    def test_a_benchmark_is_named_above_its_rows(self):
        twice = result("2026-01-01", "ring", "ring", "copy")
        lines = [line.partition(" 2 us |")[0] for line in self.tables_of(one=twice).splitlines() if line.startswith(("| **", "| r |"))]
        self.assertEqual(lines, ["| **ring** |", "| r |", "| r |", "| **copy** |", "| r |"])

    def test_empty_cells_at_the_end_are_left_out(self):
        alone = result("2026-01-01", "ring")
        alone["rows"][0] |= {"against": None, "ratio": None, "target": None, "holds": None}
        self.assertIn("\n| r | 2 us |", self.tables_of(one=alone) + "\n")
        self.assertNotIn("2 us | |", self.tables_of(one=alone))

    def test_a_long_peer_of_three_rows_is_named_once(self):
        long = result("2026-01-01", "ring", "copy", "update", "idle")
        for row in long["rows"]:
            row["against"] = "the peer of many words" if row["bench"] != "idle" else "another long peer"
        text = self.tables_of(one=long)
        self.assertIn("\nAgainst A: the peer of many words.\n", text)
        self.assertEqual(text.count("the peer of many words"), 1)
        self.assertIn("| r | 2 us | A | 0.5", text)
        self.assertIn("| r | 2 us | another long peer |", text)

    def test_a_result_without_a_date_has_that_of_its_file(self):
        old = result("", "ring")
        del old["machine"]["date"]
        self.assertIn("(2025-12-24, commit abc)", self.tables_of(**{"2025_12_24_ring": old}))

    def test_a_row_across_a_change_of_the_machine_says_so(self):
        changed = result("2026-01-01", "ring", "copy")
        changed["regimes"] = [{"bench": bench, "row": "r", "against": "peer", "round_trip_ns": trips, "dropped": 1}
                              for bench, trips in (("ring", [118.0, 470.0]), ("copy", [118.0, 125.0]))]
        text = self.tables_of(one=changed)
        self.assertIn("| r | 2 us | peer | 0.5 (0.4–0.6), 118->470 ns |", text)
        self.assertIn("| r | 2 us | peer | 0.5 (0.4–0.6) |", text)
        self.assertIn("round trips meanwhile 118 to 470 ns, 2 rounds dropped", text)

    def test_only_what_lies_between_the_marks_changes(self):
        page = f"head\n{bench_table.BEGIN}\nold\n{bench_table.END}\ntail\n"
        self.assertEqual(bench_table.with_tables(page, "new"), f"head\n{bench_table.BEGIN}\n\nnew\n\n{bench_table.END}\ntail\n")
        with self.assertRaises(ValueError):
            bench_table.with_tables("no marks", "new")


class Page(unittest.TestCase):
    def test_holds_the_tables_that_the_results_make(self):
        done = subprocess.run([sys.executable, "-B", SCRIPT, "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
