"""Decision 029 names what shows each mend: every program and every case that it names exists, and every reproduction has a row there."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = ROOT / "docs/decisions/029-what-review-and-campaigns-found.md"
REPRODUCTIONS = ROOT / "docs/reproductions.md"
PROGRAM = re.compile(r"[a-z0-9_]+_(?:test|sweep|campaign|process_test)|memctl_bats|fake_cuda_thread_local")
CASE = re.compile(r"\b[A-Z]\w*[a-z]\w*(?:\.[A-Z]\w+)?")


ROWS = {f"{part}{number}" for part, count in zip("ABCDE", (24, 22, 12, 14, 15)) for number in range(1, count + 1)}


def others():
    """Rows that the page says belong to other work."""
    names = set()
    for line in TABLES.read_text().splitlines():
        if " belong" not in line or line.startswith("|"):
            continue
        for part, first, last in re.findall(r"\b([A-E])(\d+)(?: to [A-E](\d+))?", line.split(" belong")[0]):
            names.update(f"{part}{number}" for number in range(int(first), int(last or first) + 1))
    return names


def programs():
    names = set()
    for path in ROOT.glob("tests/**/CMakeLists.txt"):
        text = path.read_text()
        names.update(re.findall(r"tidepool_\w*\(\s*(\w+)", text))
        for subjects in re.findall(r"foreach\(subject ([^)]*)\)", text):
            names.update(f"{room}_{subject}_test" for room in ("base", "scripts") for subject in subjects.split())
    return names


def cases():
    names = set()
    for path in list(ROOT.glob("tests/**/*.cpp")) + list(ROOT.glob("tests/**/*.h")):
        for suite, case in re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", path.read_text()):
            names.update([suite, case, f"{suite}.{case}"])
        names.update(re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+)", path.read_text()))
    for path in ROOT.glob("tests/**/*.py"):
        names.update(re.findall(r"^class (\w+)", path.read_text(), re.M))
    return names


def rows(page):
    """The first cell of each row, and its whole text."""
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.match(r"[A-E]\d", cells[0]):
            yield cells[0], cells[-1], line


def wrong_names(what, cell, known_programs, known_cases):
    parts = re.split(r"`([^`]+)`", re.sub(r"\([^()]*\)", "", cell))
    for quoted in parts[1::2]:
        script = re.fullmatch(r"(scripts|tests)/\S+", quoted.split()[0])
        if PROGRAM.fullmatch(quoted) and quoted not in known_programs:
            yield f"{what}: there is no program {quoted}"
        if script and not (ROOT / quoted.split()[0]).exists():
            yield f"{what}: there is no {quoted}"
    for program, text in zip(parts[1::2], parts[2::2]):
        if not PROGRAM.fullmatch(program):
            continue
        for name in CASE.findall(text.split(";")[0].split(" simulation")[0]):
            if not any(known.startswith(name) or ("." not in name and name in known) for known in known_cases):
                yield f"{what}: {program} has no {name}"


def main():
    known_programs, known_cases = programs(), cases()
    wrong, named = [], set()
    for what, cell, line in rows(TABLES):
        named.update(re.findall(r"\b[A-E]\d+\b", what))
        wrong += wrong_names(what, cell, known_programs, known_cases)
        if not re.search(r"`[^`]+`", line):
            wrong.append(f"{what}: nothing shows it")
    reproduced = re.search(r"```reproductions\n(.*?)```", REPRODUCTIONS.read_text(), re.S).group(1)
    for row in {line.split("|")[0].strip() for line in reproduced.splitlines() if line.strip()}:
        if row not in named:
            wrong.append(f"{row}: is reproduced, and decision 029 has no such row")
    wrong += [f"{row}: is in no table and no list of other work" for row in sorted(ROWS - named - others())]
    print("\n".join(sorted(wrong)) or f"{len(named)} rows, each shown by what exists")
    return 1 if wrong or len(named) < 60 else 0


if __name__ == "__main__":
    sys.exit(main())
