#!/usr/bin/env -S /usr/bin/python3 -B
"""Every error of the catalogue is shown by a test with its text: shown_errors.txt says which test, and it is there and expects that text of that error."""

import os
import re
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def body_of(text, test):
    """The test of this name, from its head to the next one, with adjacent literals joined."""
    found = re.search(r"^TEST(?:_F|_P)?\(\w+,\s*" + test + r"\)(.*?)(?=^TEST(?:_F|_P)?\(|\Z)", text, re.MULTILINE | re.DOTALL)
    return re.sub(r'"\s*\n\s*"', "", found[1]) if found else None


class ShownErrors(unittest.TestCase):
    def test_every_error_of_the_catalogue_has_its_test(self):
        errors = {number: name for name, number in re.findall(r"X\((\w+), (\d+),", read("base/error_catalog.h"))}
        self.assertGreater(len(errors), 60)
        rows = [line.split(" ", 3) for line in read("tests/scripts/shown_errors.txt").splitlines() if not line.startswith("#")]
        self.assertEqual([row[0] for row in rows], sorted(errors), "one line for each error, by number")
        for number, path, test, text in rows:
            with self.subTest(error=f"TP{number} {errors[number]}"):
                body = body_of(read(path), test)
                self.assertIsNotNone(body, f"{path} has no test {test}")
                self.assertIn(text, body, f"{path}, {test}")
                self.assertRegex(body, rf"\bk{errors[number]}\b|TP{number}", f"{path}, {test} does not name the error")


    def test_programs_show_errors_by_the_function_that_folds_them(self):
        # Format() alone is for what folds it later, or takes it apart: memctl's main, and Python's errors.
        may = {"client/memctl/views/usage.cpp", "client/memctl/flags/flags.cpp", "client/memctl/commands/commands.cpp", "trainer/engine/open_steps.cpp", "python/binding/job_class.cpp"}
        found = set()
        for folder in ("trainer", "client", "memserver", "python"):
            for place, _, files in os.walk(os.path.join(ROOT, folder)):
                for file in (os.path.relpath(os.path.join(place, file), ROOT) for file in files if file.endswith((".cpp", ".h"))):
                    if ".Format()" in read(file):
                        found.add(file)
        self.assertEqual(found, may, "print ErrorText(status), whose lines are at most 100 columns wide")
        self.assertIn("FoldText(line.text)", read("client/memctl/main.cpp"))


if __name__ == "__main__":
    unittest.main()
