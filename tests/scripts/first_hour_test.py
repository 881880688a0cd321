#!/usr/bin/env -S /usr/bin/python3 -B
"""A stranger who types what the pages say: every block of docs/first_hour.md as it stands, in one shell; every code, command and flag that
docs/symptoms.md names is one that the programs know. usage: first_hour_test.py BIN_FOLDER"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop()).resolve()


def blocks(page):
    """The shell blocks of a page, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def help_of(*words):
    return subprocess.run([*words, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


class FirstHour(unittest.TestCase):
    def test_every_block_works_as_it_stands(self):
        typed = blocks("first_hour.md")
        self.assertGreaterEqual(len(typed), 6)
        with tempfile.TemporaryDirectory(prefix="tidepool-hour-") as folder:
            (pathlib.Path(folder) / "build").mkdir()
            (pathlib.Path(folder) / "build" / "bin").symlink_to(BIN)
            (pathlib.Path(folder) / "README.md").write_bytes((ROOT / "README.md").read_bytes())
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEPOOL_")}
            script = "".join(f"echo '--- block {number}'\n{block}" for number, block in enumerate(typed, 1))
            # Whatever a failed block leaves running ends with the folder that it serves.
            end = 'trap \'build/bin/memctl -s "$PWD/out/run" shutdown --yes > /dev/null 2>&1 || true\' EXIT\n'
            done = subprocess.run(["bash", "-eu", "-c", end + script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  check=False, timeout=400)
            told = done.stdout + done.stderr
            self.assertEqual(done.returncode, 0, told)
            self.assertRegex(told, r"second +(training|updating) +1/1")  # whichever it does at that moment
            self.assertRegex(told, r"second +detached until")
            self.assertIn("done      1000 steps", told, "after both kills the job has come to its end")
            self.assertTrue((pathlib.Path(folder) / "out" / "hf" / "config.json").exists())
            self.assertIn("memserver ends", told)


class Symptoms(unittest.TestCase):
    page = (ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")

    def test_its_codes_are_of_the_catalogue(self):
        codes = set(re.findall(r"TP\d{4}", self.page))
        self.assertGreater(len(codes), 5)
        for code in codes:
            done = subprocess.run([BIN / "memctl", "explain", code], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_its_commands_and_flags_exist(self):
        known = {name: set(re.findall(r"--[a-z0-9-]+", help_of(BIN / name))) for name in ("memctl", "memserver", "trainer")}
        quoted = re.findall(r"`([^`]+)`", self.page)
        everything = set().union(*known.values())
        for words in (words.split() for words in quoted):
            if words[0] not in known or len(words) < 2 or words[1].startswith("-"):
                continue
            flags = known[words[0]] | set(re.findall(r"--[a-z0-9-]+", help_of(BIN / words[0], words[1])))
            everything |= flags
            self.assertEqual({word for word in words if word.startswith("--")} - flags, set(), " ".join(words))
        for command in ("run", "launch"):
            everything |= set(re.findall(r"--[a-z0-9-]+", help_of(BIN / "trainer", command)))
        everything |= set(re.findall(r"--[a-z0-9-]+", help_of(BIN / "memserver", "run"))) | {"--gpu"}
        for words in (words.split() for words in quoted):
            self.assertEqual({word for word in words if word.startswith("--")} - everything, set(), " ".join(words))


if __name__ == "__main__":
    unittest.main()
