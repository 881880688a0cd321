"""Checks by other programs: clang-format 14 for C++, shellcheck for the scripts."""

import concurrent.futures
import os
import re
import shutil
import subprocess

from .tree import Finding, Tree

CLANG_FORMAT = "clang-format-14"


def parse_format_output(text: str, root: str) -> list[Finding]:
    """One finding per file that clang-format reports, at its first line."""
    findings = {}
    for match in re.finditer(r"^(.+?):(\d+):\d+: error: code should be clang-formatted", text, re.MULTILINE):
        path = os.path.relpath(match[1], root)
        findings.setdefault(path, Finding(path, int(match[2]), "format", f"run: {CLANG_FORMAT} -i {path}"))
    return list(findings.values())


def check_format(tree: Tree) -> list[Finding]:
    if not shutil.which(CLANG_FORMAT):
        return [Finding("scripts/apt-packages.txt", 1, "format", f"{CLANG_FORMAT} is not installed: run scripts/setup")]
    paths = [os.path.join(tree.root, path) for path in tree.sources]
    if not paths:
        return []
    workers = os.cpu_count() or 1
    shares = [paths[first::workers] for first in range(min(workers, len(paths)))]

    def run(share: list[str]) -> str:
        command = [CLANG_FORMAT, "--dry-run", "-Werror", f"--style=file:{os.path.join(tree.root, '.clang-format')}", *share]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return parse_format_output("".join(pool.map(run, shares)), tree.root)


def shell_scripts(tree: Tree) -> list[str]:
    first_lines = {path: text.partition("\n")[0] for path, text in tree.texts.items()}
    return sorted(path for path, line in first_lines.items() if re.match(r"#!.*\b(bash|sh)\b", line) or path.endswith(".sh"))


def check_shell(tree: Tree) -> list[Finding]:
    if not shutil.which("shellcheck"):
        return [Finding("scripts/apt-packages.txt", 1, "shell", "shellcheck is not installed: run scripts/setup")]
    paths = shell_scripts(tree)
    if not paths:
        return []
    done = subprocess.run(
        ["shellcheck", "--external-sources", "--source-path", tree.root, "--format", "gcc", *paths],
        cwd=tree.root, capture_output=True, text=True, check=False,
    )
    findings = []
    for match in re.finditer(r"^(.+?):(\d+):\d+: \w+: (.+)$", done.stdout, re.MULTILINE):
        findings.append(Finding(match[1], int(match[2]), "shell", match[3]))
    return findings
