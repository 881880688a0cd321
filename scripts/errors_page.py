#!/usr/bin/env python3
"""Makes the tables of docs/errors.md from the catalogue that the programs use.

usage: errors_page.py [--memctl FILE] [--check]

memctl prints the catalogue (`memctl explain -o json`); FILE is build/bin/memctl where it is not given. Each table of the page has the errors
of its first digit; everything else there is written by hand. With --check nothing is changed; ends with 1 when the tables are others.
"""

import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "errors.md")


def row_of(error: dict) -> str:
    return f"| {error['code']} | {error['name']} | {error['exit_code']} | {error['meaning']} | {error['remedy']} |\n"


def page_with(errors: list[dict], page: str) -> str:
    """`page` with its tables regenerated; refuses errors whose digit has no table yet."""

    def table(match: re.Match) -> str:
        digit = match.group(1)
        return "".join(row_of(error) for error in errors if error["code"][2] == digit)

    made = re.sub(r"(?:^\| TP(\d)\d+ \|.*\n)+", table, page, flags=re.MULTILINE)
    missing = [error["code"] for error in errors if row_of(error) not in made]
    if missing:
        sys.exit(f"errors_page.py: docs/errors.md has no table for {', '.join(missing)}: add one with a first row of that digit")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="errors_page.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--memctl", default=os.path.join(ROOT, "build", "bin", "memctl"), metavar="FILE", help="prints the catalogue")
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 when the page is another")
    arguments = parser.parse_args()
    try:
        printed = subprocess.run([arguments.memctl, "explain", "-o", "json"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"errors_page.py: {arguments.memctl} does not print the catalogue: {error}; build it: cmake --build build --target memctl", file=sys.stderr)
        return 9
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    made = page_with(json.loads(printed)["errors"], page)
    if made == page:
        return 0
    if arguments.check:
        print("errors_page.py: docs/errors.md is not what the catalogue makes: run scripts/errors_page.py", file=sys.stderr)
        return 1
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
