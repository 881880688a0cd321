"""Lengths of files and functions, and numbers of parameters. Finds functions by matching braces, which our format allows."""

import collections
import dataclasses
import os
import re
import statistics

from .tree import Finding, SourceFile, Tree

FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
# Files with a lower limit than others, and why.
SMALL_FILES = {"memserver/keeper/keeper.cpp": (340, "it outlives every fault, so it must be easy to read as a whole")}
PARAMETERS_MAX = 5
# Files below the limits at 140 columns, with their lines at 100. Entries may only be removed.
RATCHET: dict[str, int] = {}

_CONTAINER = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
_NOT_A_NAME = {"alignas", "decltype", "noexcept", "requires", "explicit", "__attribute__", "defined", "sizeof", "static_assert", "if"}


@dataclasses.dataclass(frozen=True)
class Function:
    """A function with a body, or declared in a class: first line, total length in lines, number of parameters."""

    name: str
    line: int
    lines: int
    parameters: int
    has_body: bool


def without_directives(code: str) -> str:
    """Blanks preprocessor lines, including continuation lines."""
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda found: re.sub(r"[^\n]", " ", found[0]), code, flags=re.MULTILINE)


def closing(code: str, start: int, pair: str) -> int:
    """Index of the bracket that closes the one at `start`; the end of the text if none does."""
    depth = 0
    for at in range(start, len(code)):
        if code[at] == pair[0]:
            depth += 1
        elif code[at] == pair[1]:
            depth -= 1
            if depth == 0:
                return at
    return len(code) - 1


def parameter_list(head: str) -> tuple[str, str] | None:
    """(name, text between the parentheses) of the function that `head` declares, or None if it declares none."""
    head = re.sub(r"\boperator\s*\(\s*\)", "operator_call", head)
    for match in re.finditer(r"((?:~|\b)[A-Za-z_][\w:~]*(?:\s*<[^<>()]*>)?|\boperator\s*[^\s\w(]+)\s*\(", head):
        name = match[1].strip()
        before = head[: match.start()].replace("->", "")
        if name.split("::")[-1] in _NOT_A_NAME or before.count("<") > before.count(">"):
            continue
        start = match.end() - 1
        return name, head[start + 1:closing(head, start, "()")]
    return None


def count_parameters(text: str) -> int:
    """Commas outside all brackets, plus one; 0 for an empty list."""
    if not text.strip() or text.strip() == "void":
        return 0
    depth, count = 0, 1
    for at, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or (char == ">" and text[at - 1:at] != "-"):
            depth -= 1
        elif char == "," and depth == 0:
            count += 1
    return count


def _opens_container(head: str) -> bool:
    match = _CONTAINER.search(re.sub(r"template\s*<[^{}]*?>(?=\s*(class|struct|union|requires|\w))", "", head))
    return match is not None and "(" not in re.sub(r"\b(alignas|requires|__attribute__|decltype)\s*\(+[^()]*\)+", "", head)


def is_initializer(head: str) -> bool:
    """True for the brace of `int x{3}`, `= {`, and of a member in a constructor's initializer list (`Foo() : a_{1}`)."""
    tail = head.rstrip()
    if not tail or tail.endswith(("=", ",", "(", "return")):
        return True
    found = parameter_list(head)
    if found is None:
        return True
    after = head[head.index("(") :]
    in_list = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", after) is not None
    return in_list and re.search(r"[\w>]$", tail) is not None and not tail.endswith((")", "}", "try"))


def is_declaration(head: str) -> bool:
    """A type, a name and a parameter list: not a macro call, nor an initialised variable."""
    if re.match(r"\s*(using|typedef|friend|return|static_assert|TP_\w+|[A-Z_0-9]+\s*\()", head):
        return False
    before = head.partition("(")[0]
    return "=" not in before.replace("operator=", "") and len(re.findall(r"[\w>&*~]+", before)) >= 2


def find_functions(source: SourceFile) -> list[Function]:
    code = without_directives(source.code)
    functions: list[Function] = []
    head_start, at = 0, 0

    def add(end: int, has_body: bool) -> None:
        head = code[head_start:at]
        found = parameter_list(head)
        if found is None:
            return
        first = head_start + len(head) - len(head.lstrip())
        first_line = source.line_of(first)
        functions.append(Function(found[0], first_line, source.line_of(end) - first_line + 1, count_parameters(found[1]), has_body))

    while at < len(code):
        char = code[at]
        head = code[head_start:at]
        if char == "(":
            at = closing(code, at, "()")
        elif char == "{" and _opens_container(head):
            head_start = at + 1
        elif char == "{" and is_initializer(head):
            at = closing(code, at, "{}")
        elif char == "{":
            end = closing(code, at, "{}")
            add(end, has_body=True)
            at, head_start = end, end + 1
        elif char == "}":
            head_start = at + 1
        elif char == ";":
            if is_declaration(head):
                add(at, has_body=False)
            head_start = at + 1
        elif char == ":" and re.fullmatch(r"\s*(public|private|protected)\s*", head):
            head_start = at + 1
        at += 1
    return functions


def check_sizes(tree: Tree) -> list[Finding]:
    findings = []
    for source in tree.sources.values():
        limit = TEST_FILE_LINES_MAX if source.is_test else FILE_LINES_MAX
        if source.lines >= limit and source.lines > RATCHET.get(source.path, 0):
            findings.append(Finding(source.path, 1, "file-size", f"{source.lines} lines; the limit is {limit - 1}: split it by subject"))
        small, why = SMALL_FILES.get(source.path, (limit, ""))
        if small <= source.lines < limit:
            findings.append(Finding(source.path, 1, "file-size", f"{source.lines} lines; this file's limit is {small - 1}: {why}"))
        for function in find_functions(source):
            known = RATCHET.get(f"{source.path}: {function.name}", 0)
            if function.lines >= FUNCTION_LINES_MAX and function.has_body and function.lines > known:
                text = f"{function.name} has {function.lines} lines; the limit is {FUNCTION_LINES_MAX - 1}: give its parts names"
                findings.append(Finding(source.path, function.line, "function-size", text))
            if function.parameters > PARAMETERS_MAX and not source.allows(function.line, "parameters"):
                text = f"{function.name} takes {function.parameters} parameters; the limit is {PARAMETERS_MAX}, then a struct"
                findings.append(Finding(source.path, function.line, "parameters", text))
    return findings


# Limit of a class's functions defined outside its braces, over all files, and of their lines.
CLASS_DEFINITIONS_MAX = 40
CLASS_LINES_MAX = 600
# Classes that exceeded the limit when the rule was added: definitions, lines. Entries may only be removed.
CLASS_RATCHET: dict[str, tuple[int, int]] = {}


def definitions_of_classes(tree: Tree) -> dict[str, list[tuple[str, Function]]]:
    """Class -> its functions defined outside its braces, with the file."""
    definitions: dict[str, list[tuple[str, Function]]] = collections.defaultdict(list)
    for source in tree.sources.values():
        if source.is_test:
            continue
        for function in find_functions(source):
            owner, _, _ = function.name.rpartition("::")
            if function.has_body and owner:
                definitions[owner].append((source.path, function))
    return definitions


def check_classes(tree: Tree) -> list[Finding]:
    """A class split over several files counts with all of them."""
    findings = []
    for owner, found in definitions_of_classes(tree).items():
        count, lines = len(found), sum(function.lines for _, function in found)
        count_max, lines_max = CLASS_RATCHET.get(owner, (CLASS_DEFINITIONS_MAX, CLASS_LINES_MAX))
        if count > count_max or lines > lines_max:
            path, function = found[0]
            text = f"{owner} has {count} definitions of {lines} lines; the limits are {count_max} and {lines_max}: give it one kind of state"
            findings.append(Finding(path, function.line, "class-size", text))
    return findings


FOLDER_FILES_MAX = 30
TEST_FOLDER_FILES_MAX = 40
# Name pattern of a file that continues a class.
CONTINUED = re.compile(r"(_part|_half|_rest|_more|_?2)\.(h|cpp|cu)$")


def check_folders(tree: Tree) -> list[Finding]:
    """At most so many files per folder, so that it reads as a list, and no file named as the continuation of another."""
    folders = collections.Counter(os.path.dirname(path) for path in tree.sources)
    findings = []
    for folder, count in folders.items():
        limit = TEST_FOLDER_FILES_MAX if folder.startswith("tests") else FOLDER_FILES_MAX
        if count > limit:
            findings.append(Finding(folder, 1, "folders", f"{count} files; the limit is {limit}: make rooms, named for what they own"))
    for path in tree.sources:
        if CONTINUED.search(path) and not re.search(r"_v\d\.cpp$", path):
            findings.append(Finding(path, 1, "folders", "named as a part of another file: name the state or the job that it owns"))
    return findings


def comment_share(sources: list[SourceFile]) -> str:
    """Percentage of lines that are, or end in, comments."""
    lines = sum(source.lines for source in sources)
    comments = sum(len(re.findall(r"^.*//", source.text, re.MULTILINE)) for source in sources)
    return f"{100 * comments / lines:.1f} %" if lines else "none"


def pages(tree: Tree) -> int:
    """Words of README and docs, without decision records."""
    return sum(len(text.split()) for path, text in tree.texts.items()
               if path.endswith(".md") and (path == "README.md" or path.startswith("docs/")) and not path.startswith("docs/decisions/"))


def summary(tree: Tree) -> str:
    """Median and 90th percentile, and unlimited counts, for the report at the end."""

    def spread(values: list[int]) -> str:
        ordered = sorted(values)
        return f"median {statistics.median_low(ordered)}, p90 {ordered[int(0.9 * (len(ordered) - 1))]}, max {ordered[-1]}" if ordered else "none"

    production = [source for source in tree.sources.values() if not source.is_test]
    tests = [source for source in tree.sources.values() if source.is_test]
    functions = [function.lines for source in production for function in find_functions(source) if function.has_body]
    lines = sum(source.lines for source in production)
    ratio = sum(source.lines for source in tests) / lines if lines else 0.0
    largest = max(((len(found), owner) for owner, found in definitions_of_classes(tree).items()), default=(0, "none"))
    folder, files = max(collections.Counter(os.path.dirname(source.path) for source in production).items(), key=lambda item: item[1], default=("none", 0))
    headers = [source for source in production if source.path.endswith(".h")]
    bodies = [source for source in production if not source.path.endswith(".h")]
    return "\n".join([
        f"files (lines):     {len(production)} production: {spread([source.lines for source in production])}",
        f"                   {len(tests)} tests: {spread([source.lines for source in tests])}; test lines per production line {ratio:.2f}",
        f"functions (lines): {len(functions)} production: {spread(functions)}",
        f"largest:           folder {folder} ({files} files), class {largest[1]} ({largest[0]} definitions)",
        f"comments (lines):  headers {comment_share(headers)}, bodies {comment_share(bodies)}",
        f"pages (words):     {pages(tree)} of README and docs",
    ])
