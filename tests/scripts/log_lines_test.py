#!/usr/bin/env -S /usr/bin/python3 -B
"""What programs say during real runs: usage: log_lines_test.py FOLDER-OF-PROGRAMS.

A memserver with a JSON log serves a run, changes by an admin, a restart and a run that continues; the lines are events with fields: no sentence is
made up of numbers, no value has a unit in it, no key has a blank, and nothing is said twice. The trainer says no line twice either.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAMS = os.path.abspath(sys.argv.pop(1))
LIMIT_S = 120
# A number with a unit, as people write it, makes up the whole value.
UNIT = re.compile(r"^[0-9][0-9.,]* ?(ns|us|µs|ms|s|min|h|B|KiB|MiB|GiB|TiB|bytes|%)(/s)?$")


class LogLines(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.sockets, self.temporary = os.path.join(self.folder.name, "s"), os.path.join(self.folder.name, "tmp")
        os.mkdir(self.temporary)
        self.log = open(os.path.join(self.folder.name, "log"), "a+", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.server = None

    def program(self, name, *words, check=True):
        variables = {**os.environ, "TMPDIR": self.temporary}
        done = subprocess.run([os.path.join(PROGRAMS, name), *words], env=variables, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        if check:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def start(self):
        self.server = subprocess.Popen([os.path.join(PROGRAMS, "memserver"), "run", "--socket-dir", self.sockets, "--pool", "64MiB", "--rcache-limit", "64MiB", "--log-format", "json", "--no-respawn", "--measure-rates", "off"],
                                       stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.temporary})
        self.memctl("wait-ready")

    def memctl(self, *words):
        return self.program("memctl", "-s", self.sockets, *words).stdout

    def end(self):
        """As an admin ends it: the keeper holds the jobs for the next one."""
        self.memctl("shutdown", "--yes")
        self.assertEqual(self.server.wait(LIMIT_S), 0)

    def train(self):
        words = ["run", "--socket-dir", self.sockets, "--preset", "tiny", "--job", "gpt", "--resume", "auto", "--steps", "120", "--eval-every", "40", "--save", os.path.join(self.folder.name, "weights")]
        return subprocess.Popen([os.path.join(PROGRAMS, "trainer"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.temporary})

    def wait_for_step(self, step):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            jobs = json.loads(self.memctl("ps", "-o", "json"))["jobs"]
            if jobs and jobs[0]["version"] >= step:
                return
            time.sleep(0.02)
        self.fail(f"the job does not come to step {step}")

    def events(self):
        self.log.seek(0)
        lines = [line for line in self.log.read().splitlines() if line]
        return [json.loads(line) for line in lines]

    def check_event(self, event):
        self.assertEqual(list(event)[:2], ["time", "level"], event)
        self.assertRegex(event["message"], r"^[A-Za-z]", event)
        self.assertNotRegex(event["message"], r"[0-9]{2}|=", "numbers are fields")
        for key, value in event.items():
            self.assertRegex(key, r"^[a-z][a-z0-9_]*$", event)
            self.assertIsInstance(value, (str, int, float, bool), event)
            if isinstance(value, str):
                self.assertNotRegex(value, UNIT, f"{key}: the unit belongs to the key")
                self.assertFalse(re.fullmatch(r"-?[0-9.]+", value), f"{key} is a number and has quotes")

    def check_once(self, said, what):
        twice = [line for line, count in collections.Counter(said).items() if count > 1]
        self.assertEqual(twice, [], f"{what} says these more than once")

    def test_a_log_has_events_with_fields_and_no_line_twice(self):
        self.start()
        trainer = self.train()
        self.addCleanup(trainer.kill)
        self.wait_for_step(2)
        for words in (("job", "suspend", "gpt"), ("job", "resume", "gpt"), ("drain",), ("undrain",)):
            self.memctl(*words)
        self.end()
        self.start()
        output = trainer.communicate(timeout=LIMIT_S)[0]
        self.assertEqual(trainer.returncode, 0, output)
        self.end()

        events = self.events()
        self.assertGreater(len(events), 10)
        for event in events:
            with self.subTest(message=event.get("message")):
                self.check_event(event)
        # Two servers each say what they are; within one nothing comes twice.
        starts = [i for i, event in enumerate(events) if event["message"] == "ready"] + [len(events)]
        self.assertEqual(len(starts), 3, [event["message"] for event in events])
        for begin, end in zip(starts, starts[1:]):
            said = [json.dumps({key: value for key, value in event.items() if key != "time"}) for event in events[begin:end]]
            self.check_once(said, "memserver")
        self.check_once([line for line in output.splitlines() if line.strip()], "the trainer")
        self.assertEqual(os.listdir(self.temporary), [], "nothing is left in the temporary folder")


if __name__ == "__main__":
    unittest.main()
