"""scripts/rates.py: from rows of benchmarks to a file of rates; nothing is made up for a row that is missing."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "rates.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import rates  # noqa: E402


def row(bench, name, value, unit="GB/s"):
    return {"bench": bench, "row": name, "value": value, "unit": unit, "against": "", "ratio": None, "target": None, "holds": None}


COPIES = [
    row("gpu", "copies of 64 KiB to the GPU, registered pool memory", 60),
    row("gpu", "copies of 256 MiB to the GPU, registered pool memory", 50),
    row("gpu", "copies of 256 MiB to the GPU, plain", 51),
    row("gpu", "copies of 64 MiB from the GPU, registered pool memory", 47),
    row("gpu", "copies of 256 MiB from the GPU, registered pool memory", 48),
    row("gpu", "copies of 256 MiB both ways at once, registered pool memory", 80),
]
UPDATES = [
    row("update", rates.HOST, 2.5, "Gparam/s"),
    row("gpu", "AdamW kernel, bf16 gradient and copy, 256 Mi elements", 2800),
]


class Rates(unittest.TestCase):
    def run_on(self, *files):
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for number, rows in enumerate(files):
                names.append(os.path.join(folder, f"{number}.json"))
                with open(names[-1], "w", encoding="utf-8") as file:
                    json.dump({"machine": {"cpu": f"CPU {number}", "date": "2026-01-02", "commit": "abc"}, "rows": rows}, file)
            return subprocess.run([sys.executable, "-B", SCRIPT, *names], capture_output=True, text=True, check=False)

    def test_the_largest_copies_and_the_rows_of_updates_count(self):
        made = json.loads(self.run_on(COPIES + UPDATES).stdout)
        self.assertEqual(
            made["rates"],
            [
                {
                    "ranks": 1,
                    "to_device_gb_per_s": 50,
                    "from_device_gb_per_s": 48,
                    "host_update_g_elements_per_s": 2.5,
                    "device_update_g_elements_per_s": 100,
                }
            ],
        )
        self.assertEqual(made["origin"], "scripts/bench on CPU 0, 2026-01-02, abc")

    def test_files_add_up_and_each_is_named(self):
        made = json.loads(self.run_on(COPIES, UPDATES[:1]).stdout)
        self.assertEqual(set(made["rates"][0]), {"ranks", "to_device_gb_per_s", "from_device_gb_per_s", "host_update_g_elements_per_s"})
        self.assertIn("CPU 0", made["origin"])
        self.assertIn("CPU 1", made["origin"])

    def test_without_copies_it_says_where_they_come_from(self):
        ended = self.run_on(UPDATES)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("scripts/bench gpu", ended.stderr)

    def test_the_benchmarks_print_rows_of_these_names(self):
        with open(os.path.join(ROOT, "bench", "gpu", "gpu_copies.cpp"), encoding="utf-8") as file:
            gpu = file.read()
        for words in ('"copies of " + NameOfSize(size) + " " + direction.name', '", registered pool memory"', '"AdamW kernel, bf16 gradient and copy, "'):
            self.assertIn(words, gpu)
        self.assertTrue(re.search(r"28\.0 \* static_cast<double>\(elements\)", gpu))
        with open(os.path.join(ROOT, "bench", "loops", "bench_update.cpp"), encoding="utf-8") as file:
            self.assertIn("Described(\"update pass by the daemon's workers\")", file.read())

    def test_the_trainer_knows_these_keys(self):
        with open(os.path.join(ROOT, "trainer", "advice", "rates_file.cpp"), encoding="utf-8") as file:
            known = set(re.findall(r'\{"(\w+)", &rates\.', file.read()))
        self.assertEqual(known, set(rates.rates_of(COPIES + UPDATES)))


if __name__ == "__main__":
    unittest.main()
