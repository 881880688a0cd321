"""Every benchmark runs to its end, on a scale that proves nothing about speed, and prints rows that the report understands.

usage: programs_test.py BIN_FOLDER NAME...
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import bench_report  # noqa: E402

SMALL = {
    "ring": ["--round-trips", "200", "--messages", "2000", "--rounds", "1"],
    "handoff": ["--round-trips", "50"],
    "idle": ["--seconds", "1", "--requests", "5"],
    "copy": ["--mebibytes", "16", "--rounds", "1"],
    "update": ["--parameters", "4", "--rounds", "1"],
    "update_torch": ["--parameters", "4", "--rounds", "1"],
    "pool": ["--mebibytes", "16", "--rounds", "1"],
    "sessions": ["--milliseconds", "5", "--rounds", "1"],
    "crowd": ["--jobs", "1", "--trainers", "2"],
    "neighbour": ["--milliseconds", "10", "--rounds", "1", "--watcher-milliseconds", "200"],
    "fetch": ["--chunk-mebibytes", "4", "--pairs", "2"],
    "restart": ["--chunk-mebibytes", "1", "--kills", "1"],
    "step": ["--preset", "tiny", "--rounds", "1"],
    "sample": ["--preset", "tiny", "--tokens", "8", "--rounds", "1"],
    "jobs": ["--milliseconds", "100", "--rounds", "1"],
    "pipeline": ["--model", "3b", "--steps", "1"],
    "moe": ["--trace", "four", "--steps", "1"],
    "chunks": ["--chunks", "200", "--elements", "64", "--rounds", "1"],
}


class Programs(unittest.TestCase):
    folder = ""

    def run_program(self, program, *arguments):
        done = subprocess.run([os.path.join(self.folder, program), *arguments], capture_output=True, text=True, check=False, timeout=100)
        # 1 is said of a target that does not hold too, and on such a scale none has to.
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout


def add_program(name):
    def test(self):
        rows, spreads, regimes = bench_report.parse_rows(self.run_program(f"bench_{name}", *SMALL[name]))
        self.assertTrue(rows)
        for row in rows:
            self.assertEqual(row["bench"], name)
            # What one request more costs is a difference of two measurements; on such a scale it may come out below 0.
            self.assertTrue(row["value"] >= 0 or row["row"] == "server time of one more request", row)
            self.assertTrue(row["ratio"] is None or row["ratio"] > 0, row)
            self.assertEqual(row["holds"] is None, row["target"] is None, row)
        for spread in spreads:
            self.assertLessEqual(spread["spread"][0], spread["spread"][1], spread)
        self.assertEqual(len(regimes), len(rows), "each row tells its regime")
        for regime in regimes:
            self.assertLessEqual(regime["round_trip_ns"][0], regime["round_trip_ns"][1], regime)

    setattr(Programs, f"test_{name}", test)


class WithoutFio(unittest.TestCase):
    def test_nvme_says_once_that_fio_is_missing(self):
        with tempfile.TemporaryDirectory() as drive:
            words = [os.path.join(Programs.folder, "bench_nvme"), drive, "--only", "steps", "--rounds", "1", "--elements", "1048576"]
            done = subprocess.run(words, env={**os.environ, "PATH": drive}, capture_output=True, text=True, check=False, timeout=100)
            self.assertIn(done.returncode, (0, 3), done.stderr)
            self.assertEqual([line.split(" (")[0] for line in done.stderr.splitlines() if "fio" in line], ["bench_nvme: the program fio is missing"])
            self.assertEqual(os.listdir(drive), [])


def add_probe():
    def test(self):
        probe = json.loads(self.run_program("machine_probe", "--mebibytes", "16", "--rounds", "1"))
        self.assertIn(probe["isa"], ("v3", "v4"))
        for key in ("read_gb_s", "modify_in_place_gb_s", "copy_streaming_gb_s", "copy_memcpy_gb_s", "spin_round_trip_ns"):
            self.assertGreater(probe[key], 0, key)

    def wrong_word(self):
        done = subprocess.run([os.path.join(self.folder, "machine_probe"), "--rounds", "few"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--rounds needs a positive number, not 'few'", done.stderr)

    Programs.test_machine_probe = test
    Programs.test_a_wrong_word_is_refused = wrong_word


if __name__ == "__main__":
    Programs.folder = sys.argv[1]
    for program_name in sys.argv[2:]:
        add_program(program_name)
    add_probe()
    unittest.main(argv=sys.argv[:1])
