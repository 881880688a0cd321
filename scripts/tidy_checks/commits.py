"""Commit messages: a subject of one short line, and a body with the reason. Applies to commits after this rule."""

import subprocess

from .tree import Finding, Tree

SUBJECT_MAX = 72
THIS_FILE = "scripts/tidy_checks/commits.py"


def git(root: str, *arguments: str) -> str | None:
    """The output of git; None if there is no git, or no history here."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def judge(commit: str, subject: str, body: str) -> list[Finding]:
    findings = []
    if len(subject) > SUBJECT_MAX:
        findings.append(Finding(commit, 1, "commits", f"a subject of {len(subject)} characters; the limit is {SUBJECT_MAX}: {subject}"))
    if not body.strip():
        findings.append(Finding(commit, 1, "commits", f"no body: say why, and what was measured: {subject}"))
    return findings


def check_commits(tree: Tree) -> list[Finding]:
    """Skipped, with a message, without history: in an archive, or in a shallow clone."""
    added = git(tree.root, "log", "--diff-filter=A", "--format=%H", "--", THIS_FILE)
    if not added:
        print("commits: not checked, there is no history here")
        return []
    text = git(tree.root, "log", "--no-merges", "--format=%h%x00%s%x00%b%x01", f"{added.split()[-1]}..HEAD") or ""
    findings = []
    for entry in filter(str.strip, text.split("\x01")):
        commit, subject, body = entry.strip("\n").split("\0")
        findings += judge(commit, subject, body)
    return findings
