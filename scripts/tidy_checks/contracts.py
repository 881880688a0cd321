"""Contracts: a header states its purpose, and every public declaration in it has a comment."""

import os
import re

from .sizes import closing, is_declaration, is_initializer, parameter_list, without_directives
from .tree import Finding, SourceFile, Tree

FOREIGN = "trainer/comm/gloo_shim/"  # declarations repeated from another project

_TYPE = re.compile(r"\s*(?:template\s*<.*?>\s*)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\b[\s\w\[\]()]*?\b(?P<name>[A-Z]\w*)\s*(?:final\s*)?(?::(?!:).*)?", re.DOTALL)
_BRACKET = re.compile(r"[(){};:]")
_ACCESS = re.compile(r"\s*(public|private|protected)\s*")
# Self-explanatory declarations: overrides, defaulted or deleted functions, operators, and accessors that return the member of their name.
_SILENT = re.compile(r"\boverride\b|\bfinal\s*$|=\s*(?:default|delete)\s*$|\bfriend\b|\boperator\b")
_ACCESSOR = re.compile(r"\{\s*return\s+(\w+)_(?:\.get\(\))?;\s*\}")
_PART = re.compile(r"(?<!every )(?<!each )\b(?:half|parts?|rest) of (?:the )?`?(?:class\b|[A-Z]\w*[a-z][A-Z]\w*|\w+\.(?:h|cpp)\b)|^The (?:\w+ )?(?:half|part|rest) of\b")


def head_of(source: SourceFile) -> str:
    """The comment at the beginning of a file, as one line; empty if the file begins otherwise."""
    return " ".join(line.strip("/ ") for line in re.match(r"(?://[^\n]*\n)*", source.text)[0].splitlines())


def _declarations(code: str) -> list[tuple[str, int, int]]:
    """(name, first offset, last offset) of types and functions at namespace scope, and of functions in public parts of classes."""
    found, scopes = [], []  # of scopes: (name, "open" if its declarations are public, else "closed")
    start = at = 0
    while bracket := _BRACKET.search(code, at):
        at = bracket.start()
        char, head = code[at], code[start:at]
        is_open = all(state == "open" for _, state in scopes)
        first = start + len(head) - len(head.lstrip())
        type_head = _TYPE.fullmatch(head) if char == "{" else None
        if char == "(":
            at = closing(code, at, "()")
        elif char == "{" and (type_head or re.match(r'\s*(inline\s+)?namespace\b|\s*extern\s*"', head)):
            if type_head and is_open and not any(name for name, _ in scopes):
                found.append((type_head["name"], first, at))
            if type_head and "enum" in head.split():
                at = closing(code, at, "{}")
            else:
                name = type_head["name"] if type_head else ""
                closed = re.search(r"\bclass\b", head) if type_head else re.search(r"namespace\s*$|\b(internal|detail)\b", head)
                scopes.append((name, "closed" if closed else "open"))
            start = at + 1
        elif char in ";{":
            body = "" if char == ";" else code[at:closing(code, at, "{}") + 1]
            if body and is_initializer(head):
                at += len(body) - 1
            elif "{" in head.partition("(")[0]:  # a member with an initializer
                start = at + 1
            else:
                function = parameter_list(head)
                owner = next((name for name, _ in reversed(scopes) if name), "")
                built = function and function[0].lstrip("~") == owner
                if function and is_open and not built and "::" not in function[0] and (body or is_declaration(head)) and not _SILENT.search(head):
                    accessor = _ACCESSOR.fullmatch(body)
                    if not accessor or accessor[1] != function[0]:
                        found.append((function[0], first, at))
                at += max(len(body) - 1, 0)
                start = at + 1
        elif char == "}":
            scopes = scopes[:-1]
            start = at + 1
        elif char == ":" and _ACCESS.fullmatch(head):
            scopes[-1] = (scopes[-1][0], "open" if "public" in head else "closed")
            start = at + 1
        at += 1
    return found


def _has_sentence(source: SourceFile, lines: list[str], first: int, last: int) -> bool:
    """Whether a comment is at the end of a line of the declaration, or above the run of lines that contains it."""
    if any("//" in line for line in lines[first - 1:last]):
        return True
    indent = re.match(r" *", lines[first - 1])[0]
    for line in reversed(lines[:first - 1]):
        text = line.strip()
        if text and not line.startswith(("#", indent)):
            return False  # start of its scope
        if line.startswith(indent + "//"):
            return True
        if not text or text.startswith("#") or re.fullmatch(r"(public|private|protected):|namespace\b.*\{", text):
            return False
    return False


def check_sentences(tree: Tree) -> list[Finding]:
    """Types and functions that others may use: in production headers only."""
    findings = []
    for source in tree.sources.values():
        if source.is_test or not source.path.endswith(".h") or source.path.startswith(FOREIGN):
            continue
        head, lines = head_of(source), source.text.split("\n")
        for name, first, last in _declarations(without_directives(source.code)):
            line = source.line_of(first)
            if not re.search(rf"\b{re.escape(name)}s?\b", head) and not _has_sentence(source, lines, line, source.line_of(last)):
                text = f"{name} has no sentence: say above it what it is, or what comes back and which errors"
                findings.append(Finding(source.path, line, "sentences", text))
    return findings


def check_heads(tree: Tree) -> list[Finding]:
    """A header's first sentence has the noun of the file's name, and no file is described as a part of another."""
    findings = []
    for source in tree.sources.values():
        if source.is_test:
            continue
        head, words = head_of(source), os.path.basename(source.path).rpartition(".")[0].split("_")
        sentence = re.split(r"\.\s|: ", head)[0].lower()
        named = re.match(r"[^:]{1,80}: \S", head) or any(word[:5] in sentence for word in words)
        if source.path.endswith(".h") and not named:
            findings.append(Finding(source.path, 1, "heads", "a header begins with `// Name: its job`, or a sentence that has a word of the file's name"))
        if _PART.search(head):
            text = "described as a part of something else: name the state or the job that the file owns"
            findings.append(Finding(source.path, 1, "heads", text))
    return findings
