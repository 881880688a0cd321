import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("repro", str(ROOT / "scripts/repro"))
repro = importlib.util.module_from_spec(importlib.util.spec_from_loader("repro", LOADER))
sys.modules["repro"] = repro
LOADER.exec_module(repro)
PAGE = (ROOT / "docs/reproductions.md").read_text()


def tests_of_sources():
    """Names of all tests, SUITE.NAME, with the parameters' place left open."""
    names = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        names.update(f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", path.read_text(), re.MULTILINE))
    return names


class Page(unittest.TestCase):
    def test_every_program_is_one(self):
        made = set()
        for path in (ROOT / "tests").rglob("CMakeLists.txt"):
            made.update(re.findall(r"tidepool_(?:test|program)\((\w+)", path.read_text()))
        for subject in re.findall(r"^foreach\(subject ([^)]*)\)", (ROOT / "tests/base/CMakeLists.txt").read_text(), re.MULTILINE):
            made.update(f"base_{name}_test" for name in subject.split())
        made.update(f"base_{path.stem}" for path in (ROOT / "tests/base").glob("*_test.cpp"))
        for one in repro.read_page(PAGE):
            there = os.access(ROOT / one.program, os.X_OK) if one.is_script else one.program in made
            self.assertTrue(there, one)

    def test_every_filter_names_tests(self):
        names = tests_of_sources()
        for one in repro.read_page(PAGE):
            found = re.search(r"--gtest_filter=(\S+)", one.command)
            for pattern in found[1].split(":") if found else []:
                self.assertTrue(any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) for name in names), f"{one.command}: {pattern}")

    def test_the_mended_rows_of_the_record_that_were_reproduced_are_there(self):
        rows = {one.row for one in repro.read_page(PAGE)}
        for row in "A1 A2 A3 A4 A5 A8 A9 A10 A12 A14 A19 A21 A23 B1 B2 B9 C6 C8 C10 C12 D3 D11 E1 E3 E4".split():
            self.assertIn(row, rows)

    def test_what_is_no_row_is_refused(self):
        for line in ("A1 copy_team_test", "A1 | | words", "| copy_team_test | words", "F1 | copy_team_test | words"):
            with self.assertRaises(ValueError, msg=line):
                repro.read_page(f"```reproductions\n{line}\n```\n")
        with self.assertRaises(ValueError):
            repro.read_page("no block")


class Running(unittest.TestCase):
    def test_a_command_that_fails_or_runs_no_test_has_failed(self):
        with contextlib.redirect_stderr(io.StringIO()):
            for words, result in ((["true"], "ok"), (["false"], "FAILED"), (["echo", "[==========] Running 0 tests from 0 test suites."], "FAILED"),
                                  (["/no/such/program"], "FAILED"), (None, "left out")):
                repro.words_of = lambda one, words=words: words
                self.assertEqual(repro.run(repro.Reproduction("A1", "x", "y")), result)

    def test_rows_that_there_are_not_are_a_usage_error(self):
        done = subprocess.run([ROOT / "scripts/repro", "--list", "A99"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("A99", done.stderr)
        done = subprocess.run([ROOT / "scripts/repro", "--list", "A3"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertEqual({line.split()[0] for line in done.stdout.splitlines()}, {"A3"})


if __name__ == "__main__":
    unittest.main()
