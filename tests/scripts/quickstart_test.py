"""The course of scripts/quickstart, with small stand-ins for the three programs: what it starts, shows, ends, and finds left behind."""

import json
import os
import signal
import stat
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

MEMSERVER = """
while (($#)); do [[ $1 != --socket-dir ]] || dir=$2; shift; done
trap 'rm -f "$dir/data.sock"; exit 0' TERM
: > "$dir/data.sock"
while :; do sleep 0.05; done
"""
MEMCTL = """
case $3 in
  wait-ready) for ((i = 0; i < 200; ++i)); do [[ ! -e $2/data.sock ]] || exit 0; sleep 0.05; done; exit 6 ;;
  residency) echo "rank 0 rCache CC..HH" ;;
esac
"""
TRAINER = """
case $1 in
  estimate) echo '{"pool_bytes": 2097152, "rcache_limit_bytes": 1048576, "params": 1000, "rcache": {"resident_share": 0.1, "fraction": 0.25}}' ;;
  sample) [[ $2 == */untrained ]] && echo "xqz" || echo "$3are free" ;;
  launch)
    while (($#)); do [[ $1 != --out ]] || out=$2; [[ $1 != --steps ]] || steps=$2; shift; done
    [[ -z ${FAIL_WITH:-} ]] || exit "$FAIL_WITH"
    line() { printf '{"step":%d,"loss":%d.5,"val_loss":%d.5,"tokens_per_s":9,"hit_rate":0.5,"bytes_h2d":8,"bytes_h2d_theory":8,"bytes_d2h":4}\\n' "$@"; }
    for ((i = 0; i <= steps; ++i)); do line "$i" $((9 - i)) $((9 - i)) >> "$out/metrics.jsonl"; for ((k = 0; k < ${STEP_TENTHS:-1}; ++k)); do sleep 0.1; done; done ;;
esac
"""


class Quickstart(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bin = os.path.join(self.folder.name, "bin")
        self.temporary = os.path.join(self.folder.name, "tmp")
        self.out = os.path.join(self.folder.name, "out")
        os.mkdir(self.bin)
        os.mkdir(self.temporary)
        for name, text in [("memserver", MEMSERVER), ("memctl", MEMCTL), ("trainer", TRAINER)]:
            self.program(name, text)

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def start(self, *arguments, **environment):
        variables = {**os.environ, "TIDEPOOL_BIN": self.bin, "TMPDIR": self.temporary, **environment}
        command = [os.path.join(ROOT, "scripts", "quickstart"), "--out", self.out, "--steps", "4", *arguments]
        return subprocess.Popen(command, env=variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

    def ended(self, process):
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def processes_left(self):
        return subprocess.run(["pgrep", "-f", self.bin], capture_output=True, text=True, check=False).stdout.split()

    def test_the_whole_course(self):
        figures = os.path.join(self.folder.name, "figures.json")
        code, out, err = self.ended(self.start("--json", figures))
        self.assertEqual(code, 0, err)
        for text in ["9.500 at the start, 5.500 at the end", "rank 0 rCache CC..HH", "| If you are free", "xqz  ", "loss.svg", "0 processes"]:
            self.assertIn(text, out)
        with open(figures, encoding="utf-8") as file:
            found = json.load(file)
        self.assertEqual((found["loss_first"], found["loss_last"], found["steps"], found["ranks"], found["leaks"]), (9.5, 5.5, 4, 2, 0))
        self.assertEqual(os.listdir(self.temporary), [])
        self.assertEqual(self.processes_left(), [])

    def test_ctrl_c_leaves_nothing_behind(self):
        process = self.start(STEP_TENTHS="600")
        deadline = time.monotonic() + 20
        while not os.path.exists(os.path.join(self.out, "metrics.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        code, _, _ = self.ended(process)
        self.assertEqual(code, 130)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assertEqual(self.processes_left(), [])

    def test_a_failed_training_gives_its_exit_code(self):
        code, _, err = self.ended(self.start(FAIL_WITH="22"))
        self.assertEqual(code, 22)
        self.assertIn("exit code 22", err)
        self.assertEqual(self.processes_left(), [])

    def test_a_server_that_forgets_its_socket_is_told_on(self):
        self.program("memserver", MEMSERVER.replace('rm -f "$dir/data.sock"; ', ""))
        code, out, err = self.ended(self.start())
        self.assertEqual(code, 1)
        self.assertIn("1 processes, sockets or files", out)
        self.assertIn("data.sock", err)
        self.assertEqual(os.listdir(self.temporary), [])

    def test_a_process_that_stays_is_told_on(self):
        self.program("memserver", MEMSERVER.replace("trap 'rm", "(trap '' TERM; while :; do sleep 0.05; done) < /dev/null > /dev/null 2>&1 &\ntrap 'rm"))
        code, _, err = self.ended(self.start())
        left = self.processes_left()
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(len(left), 1)
        self.assertEqual(code, 1)
        self.assertIn("process " + left[0], err)

    def test_a_server_that_does_not_start(self):
        self.program("memserver", "echo 'error[TP2001]: no memory' >&2; exit 21\n")
        self.program("memctl", "for ((k = 0; k < 600; ++k)); do sleep 0.1; done\n")
        code, _, err = self.ended(self.start())
        self.assertEqual(code, 21)
        self.assertIn("TP2001", err)


if __name__ == "__main__":
    unittest.main()
