#!/usr/bin/env python3
"""Checks the rules of the house (CONTRIBUTING.md): layers, doors, sizes, names, format. Run by ctest as `tidy`.

usage: scripts/tidy [--root DIR] [--only CHECK]... [--skip CHECK]... [--list]

Prints one line for each broken rule and ends with 1 when there is any. A rule can be set aside on one line with its reason beside it, or above:
    // tidy: allow CHECK, because REASON        (checks that look at calls, and parameters)
"""

import argparse
import os
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from tidy_checks import builds, commits, contracts, doors, layers, paragraphs, sizes, tools, words  # noqa: E402
from tidy_checks.tree import Tree  # noqa: E402

CHECKS = {
    "layers": layers.check_layers,
    "cycles": layers.check_cycles,
    "knots": layers.check_knots,
    "seams": layers.check_seams,
    "sizes": sizes.check_sizes,
    "classes": sizes.check_classes,
    "folders": sizes.check_folders,
    "paragraphs": paragraphs.check_paragraphs,
    "sentences": contracts.check_sentences,
    "heads": contracts.check_heads,
    "doors": doors.check_doors,
    "banned": doors.check_banned,
    "names": words.check_names,
    "words": words.check_words,
    "of-comments": words.check_of_comments,
    "glossary": words.check_glossary,
    "columns": words.check_columns,
    "whitespace": words.check_whitespace,
    "built": builds.check_built,
    "own-header": builds.check_own_header_first,
    "headers": builds.check_headers,
    "commits": commits.check_commits,
    "format": tools.check_format,
    "shell": tools.check_shell,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tidy", description=__doc__.partition("\n")[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), help="the repository (default: this one)")
    parser.add_argument("--only", action="append", choices=sorted(CHECKS), help="run this check only; may be given several times")
    parser.add_argument("--skip", action="append", default=[], choices=sorted(CHECKS), help="leave this check out; may be given several times")
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CHECKS))
        return 0
    begin = time.monotonic()
    tree = Tree.read(os.path.abspath(arguments.root))
    findings = []
    names = [name for name in arguments.only or CHECKS if name not in arguments.skip]
    for name in names:
        findings += CHECKS[name](tree)
    for finding in sorted(findings, key=lambda finding: (finding.path, finding.line)):
        print(finding)
    print(sizes.summary(tree))
    verdict = f"{len(findings)} broken rules" if findings else "tidy"
    print(f"{verdict}: {len(tree.texts)} files, {len(names)} checks, {time.monotonic() - begin:.1f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
