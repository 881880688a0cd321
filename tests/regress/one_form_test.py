"""All files of a build that use one library of Boost see the same form of it: no file has BOOST_ switches of its own.

usage: one_form_test.py compile_commands.json

Two object files of one program were once compiled with different allocator switches of Boost.Asio. Its functions are inline, the linker
keeps one copy of each, and so a block of the one form was given back to the allocator of the other.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINKING = re.compile(r"BOOST_\w+_(NO_LIB|DYN_LINK|STATIC_LINK)(=|$)|BOOST_ALL_NO_LIB")  # of one library of Boost: how it is linked
USED = re.compile(r'^\s*#\s*include\s*[<"]boost/(\w+)', re.M)
TOGETHER = re.compile(r'^#include "(/[^"]+)"$', re.M)
PART_OF = {"beast": "asio"}  # it includes the other


def form_of(command):
    """The switches of a compiler command that change what Boost's headers are."""
    switches = re.findall(r'[-/]D\s*"?(BOOST_[^\s"]+)', command)
    return tuple(sorted({switch for switch in switches if not LINKING.match(switch)}))


def compiled_by(entry):
    """The project's files that a command compiles: one, or those that CMake put together into one."""
    path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
    if not path.is_file():
        return []
    paths = [pathlib.Path(name) for name in TOGETHER.findall(path.read_text())] if path.parent.name == "Unity" else [path]
    return [each for each in paths if ROOT in each.parents and each.is_file()]


def forms_of(commands):
    """library of Boost -> form -> files that are compiled so."""
    forms = {}
    for entry in commands:
        for path in compiled_by(entry):
            for library in {PART_OF.get(name, name) for name in USED.findall(path.read_text(errors="replace"))}:
                forms.setdefault(library, {}).setdefault(form_of(entry["command"]), set()).add(str(path.relative_to(ROOT)))
    return forms


def switches_in_sources():
    found = []
    for folder in ("base", "client", "device", "memserver", "optim", "shm", "trainer", "tests", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".h", ".cpp") and re.search(r"^\s*#\s*define\s+BOOST_", path.read_text(), re.M):
                found.append(f"{path.relative_to(ROOT)}: defines a switch of Boost for itself; cmake/Packages.cmake does it for all")
    return found


def main():
    forms = forms_of(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    wrong = switches_in_sources()
    for library, form_files in sorted(forms.items()):
        if len(form_files) > 1:
            wrong += [f"Boost {library} with {' '.join(form) or 'no switches'}: {', '.join(sorted(files))}" for form, files in sorted(form_files.items())]
    if sum(len(files) for files in forms.get("asio", {}).values()) < 2:
        wrong.append("fewer than two files use Boost.Asio: this looks at the wrong build")
    print("\n".join(wrong) or f"{len(forms)} libraries of Boost, each in one form; Asio with: {' '.join(next(iter(forms['asio'])))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
