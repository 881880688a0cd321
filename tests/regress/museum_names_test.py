"""Every test that docs/museum.md names exists, and every test of the museum is named there."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENTRIES = 38  # known failures; a row may name two


def tests_of_sources():
    names = set()
    for path in (ROOT / "tests").rglob("*.cpp"):
        text = path.read_text()
        for kind, suite, name in re.findall(r"^\s*TEST(_F|_P)?\(\s*(\w+),\s*(\w+)\)", text, re.M):
            names.add(f"{suite}.{name}")
            if kind == "_P":
                prefixes = re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*" + suite + r"\b", text)
                names.update(f"{prefix}/{suite}.{name}" for prefix in prefixes)
    return names | {path.name for path in (ROOT / "tests").rglob("*_test.py")}


def main():
    page = (ROOT / "docs/museum.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| failure")]
    named = set(re.findall(r"`([\w/]+\.\w+)`", "\n".join(rows)))
    known = tests_of_sources()
    museum = {f"{suite}.{name}" for suite, name in
              re.findall(r"^TEST(?:_F)?\((\w+), (\w+)\)", (ROOT / "tests/regress/museum_test.cpp").read_text(), re.M)}
    wrong = [f"{name}: docs/museum.md names it, but there is no such test" for name in sorted(named - known)]
    wrong += [f"{name}: is in the museum, but not in docs/museum.md" for name in sorted(museum - named)]
    for row in rows:
        if not re.search(r"`[\w/]+\.\w+`", row) and "open: " not in row:
            wrong.append(f"neither a test nor open: {row}")
    if len(rows) != ENTRIES:
        wrong.append(f"{len(rows)} rows, {ENTRIES} are known")
    print("\n".join(wrong) or f"{len(rows)} failures, {len(named)} tests, {sum('open' in row for row in rows)} open")
    return 1 if wrong or not museum else 0


if __name__ == "__main__":
    sys.exit(main())
