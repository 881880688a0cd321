"""Programs and shared libraries: reads and changes their dependencies, and reads the library versions that they need."""

import os
import re
import subprocess


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def needed(path: str) -> list[str]:
    """Names of the libraries that the file is linked with."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-W", "-d", path))


def search_path(path: str) -> list[str]:
    """Folders in the file's own search path (RPATH or RUNPATH)."""
    return [folder for text in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", run("readelf", "-W", "-d", path)) for folder in text.split(":") if folder]


def versions(path: str) -> set[str]:
    """Symbol versions that the file needs from other libraries: GLIBC_2.34 and the like."""
    needs = run("readelf", "-W", "-V", path).partition("Version needs section")[2]
    return set(re.findall(r"Name: (\S+)", needs))


def found_libraries(path: str) -> dict[str, str]:
    """Name -> file of each library that this machine's loader finds for the file."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", path), re.MULTILINE))


def strip(source: str, target: str) -> None:
    run("strip", "--strip-unneeded", "-o", target, source)
    os.chmod(target, 0o755)


def change(path: str, folders: list[str], names: dict[str, str], soname: str | None = None) -> None:
    """Sets the search folders, the new names of dependencies, and the file's own name."""
    for old, new in names.items():  # one change per call: patchelf 0.14 confuses several texts
        run("patchelf", "--replace-needed", old, new, path)
    if soname:
        run("patchelf", "--set-soname", soname, path)
    run("patchelf", *(["--set-rpath", ":".join(folders)] if folders else ["--remove-rpath"]), path)


# The oldest glibc of the systems with a given version of the C++ library (that of GCC 9, 11, 12, 13 and 14).
CXX_AGES = {"GLIBCXX": [((3, 4, 28), 31), ((3, 4, 29), 34), ((3, 4, 30), 35), ((3, 4, 32), 38), ((3, 4, 33), 40)],
            "CXXABI": [((1, 3, 12), 31), ((1, 3, 13), 34), ((1, 3, 14), 38), ((1, 3, 15), 40)]}
OLDEST_GLIBC = 28


def oldest_glibc(asked: set[str]) -> int:
    """MINOR of the oldest glibc 2.MINOR whose systems have all these symbol versions."""
    minor = OLDEST_GLIBC
    for version in asked:
        library, _, number = version.partition("_")
        if not re.fullmatch(r"[\d.]+", number):
            continue
        parts = tuple(int(part) for part in number.split("."))
        if library == "GLIBC":
            minor = max(minor, parts[1])
        elif library in CXX_AGES:
            ages = [age for limit, age in CXX_AGES[library] if parts <= limit]
            if not ages:
                raise ValueError(f"{version} is newer than what CXX_AGES of python/wheel/elf.py knows")
            minor = max(minor, ages[0])
    return minor
