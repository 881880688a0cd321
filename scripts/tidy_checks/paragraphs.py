"""Paragraphs: in a function's body, a blank line or a comment separates steps."""

import collections
import os

from .sizes import find_functions
from .tree import Finding, SourceFile, Tree

RUN_MAX = 12  # consecutive lines of code
# Number of functions with a longer run, by folder, from before this rule. Numbers may only decrease.
RATCHET: dict[str, int] = {
}


def long_runs(source: SourceFile) -> list[tuple[str, int]]:
    """(function, first line) of each function's first run of code longer than RUN_MAX."""
    lines = source.text.split("\n")
    found = []
    for function in find_functions(source):
        run = 0
        for number in range(function.line, function.line + function.lines if function.has_body else 0):
            text = lines[number - 1].strip()
            run = 0 if not text or text.startswith("//") else run + 1
            if run > RUN_MAX:
                found.append((function.name, number - RUN_MAX))
                break
    return found


def check_paragraphs(tree: Tree) -> list[Finding]:
    """Production code only: a test is a list of steps anyway."""
    found: dict[str, list[Finding]] = collections.defaultdict(list)
    for source in tree.sources.values():
        for name, line in [] if source.is_test else long_runs(source):
            text = f"{name} has over {RUN_MAX} lines in a row: put a blank line between steps"
            found[os.path.dirname(source.path)].append(Finding(source.path, line, "paragraphs", text))
    findings = []
    for folder, of_folder in found.items():
        if len(of_folder) > RATCHET.get(folder, 0):
            findings += of_folder
    return findings
