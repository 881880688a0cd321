"""Names and texts: empty class names, house words, unfinished work, and paths of one machine."""

import re

from .tree import Finding, Tree

COLUMNS_MAX = 100
EMPTY_NAMES = ("Manager", "Helper", "Util", "Utils", "Common", "Impl", "Info", "Data")
# Split, so that this file does not match itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}{/~-])/(?:work|root|home/[a-z_][\w-]*|Users/\w+)(?=/)|\.\./" + r"shared\b")
OF_COMMENT = re.compile(r"\s*//[/!]?\s*Of\b")
GLOSSARY = "docs/glossary.md"
# Words that readers had to guess: pattern, replacement, and path prefixes where it applies. The glossary has the others.
EVERYWHERE = ("",)
GONE = (
    (r"\bseats?\b|\b\w*Seats?\b|\bseated\b", "session slot", EVERYWHERE),
    (r"\bconst Parts&|\bmemserver::Parts\b", "LoopNeighbours", EVERYWHERE),
    (r"\baway\(\)", "states_off_host()", EVERYWHERE),
    (r"\b\w*StandIns?\w*\b|\bstand_ins?_?\b|\bstand-ins?\b", "fallback slot", ("memserver/", "docs/nvme", "docs/durability.md")),
    (r"\bdry_(?!run)|\bdry\(\)|\b(go|goes|went|gone) dry\b|\bdry (pass|forward|evaluation)\b", "trace-only", ("trainer/", "docs/")),
    (r"\bTend([A-Z]\w*)?\(|\bTend[A-Z]\w*", "Poll...", EVERYWHERE),
    (r"\bbrings_rcache\b", "client_owned_rcache", EVERYWHERE),
    (r"\bBroughtParts\b", "ImportedRcache", EVERYWHERE),
    (r"\bkThere\b", "kAlreadyPresent", EVERYWHERE),
    (r"\bgives_way\b", "background", EVERYWHERE),
    (r"\bFormerSelf\w*|\bLoseFormerSelf\b", "stale incarnation", EVERYWHERE),
    (r"\bSaySleeping\b", "AnnounceSleep", EVERYWHERE),
    (r"\bEndForWantOf\b", "DieOutOf", EVERYWHERE),
    (r"\bkRidesMax\b|\bRides?\b|\brid(e|ing)\b", "staged piece", ("memserver/",)),
)
# Files with foreign text, which must not be changed.
FOREIGN = ("LICENSE",)


def check_names(tree: Tree) -> list[Finding]:
    """No class, struct or enum whose name, or last word of its name, is an empty one; no third-level namespace."""
    findings = []
    for source in tree.sources.values():
        for match in re.finditer(r"\b(?:class|struct|enum class|enum)\s+(?:\[\[\w+\]\]\s*)?([A-Z]\w*)\s*(?=[\s:{])", source.code):
            last_word = re.findall(r"[A-Z][a-z0-9]*", match[1])[-1:]
            if last_word and last_word[0] in EMPTY_NAMES:
                text = f"{match[1]} says nothing about its job: name what it holds or does"
                findings.append(Finding(source.path, source.line_of(match.start()), "names", text))
        for match in re.finditer(r"\bnamespace\s+(\w+(?:::\w+){2,})", source.code):
            findings.append(Finding(source.path, source.line_of(match.start()), "names", f"namespace {match[1]} has a third level"))
    return findings


def check_words(tree: Tree) -> list[Finding]:
    findings = []
    for path, text in tree.texts.items():
        if path in FOREIGN:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if UNFINISHED.search(line):
                findings.append(Finding(path, number, "words", "a note of unfinished work: finish it, or state the limit in the README"))
            found = MACHINE_PATH.search(line)
            if found:
                findings.append(Finding(path, number, "words", f"{found[0]} is a path of one machine: make it relative or configurable"))
    return findings + check_gone_words(tree)


def check_gone_words(tree: Tree) -> list[Finding]:
    """No word of GONE in C++, including comments, nor in the pages; decision records keep theirs."""
    findings = []
    for path, text in tree.texts.items():
        if path not in tree.sources and (not path.endswith(".md") or path.startswith("docs/decisions/")):
            continue
        rules = [(re.compile(pattern), say) for pattern, say, where in GONE if path.startswith(where)]
        for number, line in enumerate(text.splitlines(), start=1):
            for pattern, say in rules:
                if found := pattern.search(line):
                    findings.append(Finding(path, number, "words", f"{found[0]} is a word of this house alone: say {say} (docs/glossary.md)"))
    return findings


def check_of_comments(tree: Tree) -> list[Finding]:
    """No comment line of C++ begins with "Of": such a comment omits its subject."""
    findings = []
    for source in tree.sources.values():
        for number, line in enumerate(source.text.splitlines(), start=1):
            if OF_COMMENT.match(line):
                text = 'a comment that begins with "Of" leaves its subject out: begin with the subject'
                findings.append(Finding(source.path, number, "of-comments", text))
    return findings


def check_glossary(tree: Tree) -> list[Finding]:
    """Every word of the glossary has the literature's term and one existing file."""
    if GLOSSARY not in tree.texts:
        return [Finding(GLOSSARY, 1, "glossary", "the page is missing")]
    findings = []
    for number, line in enumerate(tree.texts[GLOSSARY].splitlines(), start=1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] == "word" or set(line) <= set("|-"):
            continue
        if len(cells) != 4 or not all(cells):
            findings.append(Finding(GLOSSARY, number, "glossary", "a row is: word | elsewhere | what it is | `file`"))
        elif cells[3].strip("`") not in tree.texts:
            findings.append(Finding(GLOSSARY, number, "glossary", f"there is no file {cells[3]}"))
    return findings


def check_columns(tree: Tree) -> list[Finding]:
    """No line of C++ exceeds COLUMNS_MAX, unless a string literal crosses that column: it cannot be wrapped."""
    findings = []
    for source in tree.sources.values():
        begin = 0
        for number, line in enumerate(source.text.split("\n"), start=1):
            if len(line) > COLUMNS_MAX and not source.in_string(begin + COLUMNS_MAX):
                findings.append(Finding(source.path, number, "columns", f"{len(line)} columns; the limit is {COLUMNS_MAX}"))
            begin += len(line) + 1
    return findings


def check_whitespace(tree: Tree) -> list[Finding]:
    """The rules of .editorconfig for every text: one newline at the end, no trailing spaces, no carriage returns."""
    findings = []
    for path, text in tree.texts.items():
        if path in FOREIGN or not text:
            continue
        if not text.endswith("\n"):
            findings.append(Finding(path, text.count("\n") + 1, "whitespace", "no newline at the end of the file"))
        for number, line in enumerate(text.split("\n"), start=1):
            if line != line.rstrip():
                findings.append(Finding(path, number, "whitespace", "blanks at the end of the line"))
    return findings
