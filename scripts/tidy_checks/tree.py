"""The tree for the checks: files with their text, and C++ text with comments and literals blanked."""

import dataclasses
import os
import re
import subprocess

SOURCE_ENDINGS = (".h", ".cpp", ".cu", ".cuh")
CORPORA = "tests/fuzz/corpus/"  # inputs of fuzzers: bytes, not text


@dataclasses.dataclass(frozen=True)
class Finding:
    """One broken rule: location, check, problem and remedy."""

    path: str
    line: int
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.check}] {self.text}"


# A comment, a string literal (including raw ones) or a character literal.
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)


def blank_literals(text: str) -> str:
    """The text with comments, string and character literals replaced by spaces; line numbers and lengths stay."""

    def blank(match: re.Match) -> str:
        found = match[0]
        inner = re.sub(r"[^\n]", " ", found)
        if found.startswith(("/",)) or len(found) < 2:
            return inner
        return found[0] + inner[1:-1] + found[-1]  # keeps the quotes, so that a literal is still one operand

    return LITERAL.sub(blank, text)


class SourceFile:
    """One C++ file: its path from the root, its text, and the text without comments and literals (computed once)."""

    def __init__(self, path: str, text: str):
        self.path = path
        self.text = text
        self.code = blank_literals(text)

    @property
    def lines(self) -> int:
        return self.text.count("\n") + (not self.text.endswith("\n"))

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    def includes(self) -> list[tuple[int, str, bool]]:
        """(line, name, quoted) of every include."""
        found = []
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', self.text, re.MULTILINE):
            found.append((self.line_of(match.start(2)), match[2], match[1] == '"'))
        return found

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def in_string(self, offset: int) -> bool:
        """True where the character is part of a string literal."""
        return any(match.start() < offset < match.end() and not match[0].startswith("/") for match in LITERAL.finditer(self.text))

    def allows(self, line: int, check: str) -> bool:
        """True if the line, or a comment directly above it, has `tidy: allow CHECK, because ...`: a suppression needs its reason."""
        lines = self.text.splitlines()
        above = lines[line - 2] if line > 1 and lines[line - 2].lstrip().startswith("//") else ""
        return any(re.search(r"tidy: allow " + re.escape(check) + r", because \w+", text) for text in (lines[line - 1], above))


class Tree:
    """All files of the repository: tracked, or new and not ignored."""

    def __init__(self, root: str, texts: dict[str, str]):
        self.root = root
        self.texts = texts
        self.sources = {path: SourceFile(path, text) for path, text in texts.items() if path.endswith(SOURCE_ENDINGS)}

    @staticmethod
    def read(root: str) -> "Tree":
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"], check=True, capture_output=True
        ).stdout.decode()
        texts = {}
        for path in sorted(set(filter(None, listed.split("\0")))):
            full = os.path.join(root, path)
            if os.path.isfile(full) and not os.path.islink(full) and not path.startswith(CORPORA):
                with open(full, "rb") as file:
                    content = file.read()
                if b"\0" not in content[:4096]:
                    texts[path] = content.decode("utf-8", errors="replace")
        return Tree(root, texts)

    def fenced_block(self, path: str, name: str) -> list[tuple[int, str]]:
        """(line number, text) of the lines in the ```name block of a page, without blank lines and # comments."""
        lines, inside = [], False
        for number, line in enumerate(self.texts.get(path, "").splitlines(), start=1):
            if line.strip() == "```" + name:
                inside = True
            elif inside and line.strip() == "```":
                return lines
            elif inside and line.strip() and not line.lstrip().startswith("#"):
                lines.append((number, line.strip()))
        return lines
