"""scripts/quickstart with the programs that were built: usage: quickstart_process_test.py FOLDER-OF-PROGRAMS. It trains, tells the truth, and
leaves nothing behind, also after Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 400


def contents(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


class QuickstartProcess(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.temporary = os.path.join(self.folder.name, "tmp")
        self.out = os.path.join(self.folder.name, "out")
        os.mkdir(self.temporary)

    def tearDown(self):
        self.folder.cleanup()

    def start(self, *arguments):
        """In a process group of its own, as a shell on a terminal does it."""
        variables = {**os.environ, "TIDEPOOL_BIN": PROGRAMS, "TMPDIR": self.temporary}
        command = [os.path.join(ROOT, "scripts", "quickstart"), "--out", self.out, *arguments]
        return subprocess.Popen(command, env=variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                                start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def left_behind(self):
        """Processes that carry this test's TMPDIR, sockets and files below it, and shared memory of ours."""
        mark = b"TMPDIR=" + self.temporary.encode()
        processes = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in contents(f"/proc/{pid}/environ").split(b"\0")]
        sockets = [line for line in contents("/proc/net/unix").splitlines() if self.temporary.encode() in line]
        return processes, sockets, os.listdir(self.temporary)

    def test_it_trains_and_leaves_nothing_behind(self):
        figures = os.path.join(self.folder.name, "figures.json")
        process = self.start("--steps", "5", "--json", figures)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 0, out + err)
        found = json.loads(contents(figures))
        self.assertEqual((found["steps"], found["ranks"], found["leaks"]), (5, 2, 0))
        self.assertLess(found["loss_last"], found["loss_first"])
        self.assertGreater(found["params"], 800_000)
        self.assertAlmostEqual(found["rcache_fraction"], 0.25, delta=0.05)  # whole blocks
        self.assertEqual(found["bytes_h2d_per_step"], found["bytes_h2d_theory"])
        for name in ["residency.txt", "loss.svg", "untrained.txt", "sample.txt", "weights/model.safetensors"]:
            self.assertGreater(os.path.getsize(os.path.join(self.out, name)), 0, name)
        self.assertEqual(self.left_behind(), ([], [], []))

    def test_ctrl_c_in_mid_run_leaves_nothing_behind(self):
        process = self.start("--steps", "100000")
        deadline = time.monotonic() + LIMIT_S / 2
        while contents(os.path.join(self.out, "metrics.jsonl")).count(b"\n") < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        processes, sockets, files = self.left_behind()
        self.assertGreaterEqual(len(processes), 4)  # the script, memserver, its keeper or the launcher, and two ranks
        self.assertTrue(sockets and files)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertEqual(self.left_behind(), ([], [], []))


if __name__ == "__main__":
    unittest.main()
