"""scripts/chaos with the programs that were built, small: usage: chaos_test.py FOLDER-OF-PROGRAMS. A few kills change nothing, and nothing is
left behind."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 250


class Chaos(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.temporary = os.path.join(self.folder.name, "tmp")
        os.mkdir(self.temporary)

    def tearDown(self):
        self.folder.cleanup()

    def run_chaos(self, *arguments):
        variables = {**os.environ, "TIDEPOOL_BIN": PROGRAMS, "TMPDIR": self.temporary}
        command = [os.path.join(ROOT, "scripts", "chaos"), "--out", os.path.join(self.folder.name, "out"), *arguments]
        return subprocess.run(command, env=variables, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=LIMIT_S)

    def left_behind(self):
        """Processes that carry this test's TMPDIR, and files below it."""
        mark = b"TMPDIR=" + self.temporary.encode()
        processes = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as environment:
                    if mark in environment.read().split(b"\0"):
                        processes.append(pid)
            except OSError:
                pass
        return processes, os.listdir(self.temporary)

    def test_a_few_kills_change_no_bit_and_leave_nothing_behind(self):
        done = self.run_chaos("--preset", "tiny", "--steps", "40", "--kills", "3", "--seed", "99")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        kills = re.findall(r"^ +step +\d+: kill -9 of (?:a trainer rank|memserver|the keeper) \(pid \d+\)$", done.stdout, re.MULTILINE)
        self.assertIn(len(kills), (1, 2, 3), "a fast machine may be done before the last one")
        self.assertRegex(done.stdout, rf"(?m)^kills +{len(kills)}$")
        self.assertRegex(done.stdout, r"(?m)^losses +\d+ equal, 0 different, 0 not written$")
        hashes = re.findall(r"^weights, \w+ +sha256 ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
        self.assertEqual(len(hashes), 2, done.stdout)
        self.assertEqual(hashes[0], hashes[1])
        self.assertTrue(done.stdout.endswith("equal, bit for bit\n"), done.stdout)
        self.assertEqual(self.left_behind(), ([], []))

    def test_a_run_that_fails_is_told(self):
        done = self.run_chaos("--preset", "no-such-preset", "--steps", "2", "--kills", "1")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("there is no preset 'no-such-preset'", done.stdout)
        self.assertIn("the trainer ended with exit code", done.stdout)
        self.assertEqual(self.left_behind(), ([], []))


if __name__ == "__main__":
    unittest.main()
