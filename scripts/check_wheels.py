"""Prints each requirement ("name==version", ".*" allowed at the end) whose installation under a site-packages folder is not complete.

usage: check_wheels.py SITE_PACKAGES REQUIREMENT...

Complete means: the package's own RECORD is there and every file it lists exists with the size it states. Only the standard library is used.
"""

import csv
import fnmatch
import os
import re
import sys


def find_record(site: str, requirement: str) -> str | None:
    """The RECORD of an installed distribution that satisfies the requirement, or None."""
    name, version = requirement.split("==")
    prefix = re.sub(r"[-_.]+", "_", name).lower()
    if not os.path.isdir(site):
        return None
    for entry in os.listdir(site):
        match = re.fullmatch(r"(.+)-([^-]+)\.dist-info", entry)
        if match and match[1].lower() == prefix and fnmatch.fnmatch(match[2].split("+")[0], version):
            record = os.path.join(site, entry, "RECORD")
            return record if os.path.isfile(record) else None
    return None


def is_complete(site: str, requirement: str) -> bool:
    record = find_record(site, requirement)
    if record is None:
        return False
    with open(record, newline="", encoding="utf-8") as lines:
        for path, _, size in csv.reader(lines):
            if not size:
                continue  # RECORD itself, and bytecode caches
            try:
                if os.stat(os.path.join(site, path)).st_size != int(size):
                    return False
            except OSError:
                return False
    return True


def main() -> int:
    site, requirements = sys.argv[1], sys.argv[2:]
    for requirement in requirements:
        if not is_complete(site, requirement):
            print(requirement)
    return 0


if __name__ == "__main__":
    sys.exit(main())
