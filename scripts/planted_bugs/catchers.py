"""tests/planted/catchers.txt: for each planted bug, tests known to catch it quickly.

A line is `bug: program arguments`; a bug with several lines is caught if one of them fails. `#` starts a comment.
"""

import os

from .sources import Bug

PAGE = os.path.join("tests", "planted", "catchers.txt")


def read(repo: str) -> dict[str, list[str]]:
    known: dict[str, list[str]] = {}
    with open(os.path.join(repo, PAGE), encoding="utf-8") as page:
        for line in page:
            name, colon, command = line.partition("#")[0].strip().partition(": ")
            if colon:
                known.setdefault(name, []).append(command.strip())
    return known


def mismatches(bugs: list[Bug], known: dict[str, list[str]]) -> list[str]:
    """One line per bug without a catcher, catcher without a bug, and bug name that is planted twice."""
    names = [bug.name for bug in bugs]
    wrong = [f"{bug.place}: {bug.name} has no catcher in {PAGE}; find one with scripts/planted --search --bug {bug.name}"
             for bug in bugs if bug.name not in known]
    wrong += [f"{PAGE}: {name} is planted nowhere" for name in known if name not in names]
    wrong += [f"{bug.place}: {bug.name} is planted twice" for bug in bugs if names.count(bug.name) > 1]
    return wrong
