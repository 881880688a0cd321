"""Packs the wheel of the Python package from what a release build has made. Compiles nothing.

usage: pack.py BUILD_FOLDER OUT_FOLDER [PACKAGE_FOLDER]

In it: the package (python/tidepool), the op library and the programs, and every library that they are linked with and a system need not have.
Such a library gets a name of its own, so that it never meets another of that name in a process, and lies in tidepool/lib. torch is not in
it. Prints the wheel's path.
"""

import base64
import csv
import glob
import hashlib
import io
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import elf  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ("memserver", "memctl", "trainer")
HELPERS = ("tidepool-checkpoint",)  # started only by the programs
OP_LIBRARY = "libtidepool_torch.so"
# Libraries present on every manylinux system.
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+))\.so\.\d+")
TORCH = re.compile(r"lib(torch|torch_cpu|c10)\.so")
# torch beside tidepool/ in site-packages. If it is elsewhere, the programs' shims set its path.
TORCH_FOLDER = "$ORIGIN/../../torch/lib"


def project_version() -> str:
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(tidepool VERSION ([\d.]+)", file.read())[1]


def torch_of(build: str) -> str:
    """MAJOR.MINOR of the torch that the build folder was configured with; "" if unknown."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            deps = re.search(r"^TIDEPOOL_DEPS:\w+=(.*)$", file.read(), re.MULTILINE)
        headers = glob.glob(os.path.join(deps[1], "venv/lib/python3*/site-packages/torch/version.py")) if deps else []
        with open(headers[0], encoding="utf-8") as file:
            found = re.search(r"^__version__ = '(\d+\.\d+)", file.read(), re.MULTILINE)
    except (OSError, IndexError):
        return ""
    return found[1] if found else ""


def for_torch(dependencies: list[str], torch: str) -> list[str]:
    """The wheel's dependencies, with torch pinned to that minor version."""
    major, minor = torch.split(".")
    return [f"torch>={torch},<{major}.{int(minor) + 1}" if re.match(r"torch\b", text) else text for text in dependencies]


def own_name(name: str, path: str) -> str:
    """libfmt.so.9 -> libfmt-1a2b3c4d.so.9"""
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()[:8]
    stem, dot, rest = name.partition(".so")
    return f"{stem}-{digest}{dot}{rest}"


class Binaries:
    """The programs, the op library, and the libraries packed with them, under `folder`/tidepool."""

    def __init__(self, build: str, folder: str):
        self.folder = folder
        self.new_names: dict[str, str] = {}  # of the packed libraries
        self.sources: dict[str, str] = {}
        self.files: list[str] = []
        for program in PROGRAMS + HELPERS:
            self._add(os.path.join(build, "bin", program), "bin", program)
        self._add(os.path.join(build, "lib", OP_LIBRARY), "lib", OP_LIBRARY)
        for path in self.files:
            self._link(path)

    def _add(self, source: str, place: str, name: str) -> None:
        if not os.path.isfile(source):
            sys.exit(f"error: {source} is missing: build it first (scripts/wheel does)")
        target = os.path.join(self.folder, "tidepool", place, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        elf.strip(source, target)
        self.files.append(target)
        found = elf.found_libraries(source)
        for library in elf.needed(source):
            if SYSTEM.fullmatch(library) or TORCH.fullmatch(library) or library in self.new_names:
                continue
            if library not in found:
                sys.exit(f"error: {source} needs {library}, which this machine does not have")
            self.new_names[library] = own_name(library, found[library])
            self.sources[library] = os.path.realpath(found[library])
            self._add(self.sources[library], "lib", self.new_names[library])

    def _link(self, path: str) -> None:
        """Makes the file find its packed libraries wherever the wheel is unpacked."""
        program = os.path.basename(os.path.dirname(path)) == "bin"
        libraries = elf.needed(path)
        folders = []
        if any(library in self.new_names for library in libraries):
            folders.append("$ORIGIN/../lib" if program else "$ORIGIN")
        if any(TORCH.fullmatch(library) for library in libraries):
            folders.append(TORCH_FOLDER)
        name = os.path.basename(path)
        elf.change(path, folders, {old: new for old, new in self.new_names.items() if old in libraries},
                   soname=name if name in self.new_names.values() else None)

    def check(self) -> None:
        """Checks that all dependencies are in the wheel, the system's or torch's, and that no folder of this machine is named."""
        inside = {os.path.basename(path) for path in self.files}
        for path in self.files:
            for library in elf.needed(path):
                if not (library in inside or SYSTEM.fullmatch(library) or TORCH.fullmatch(library)):
                    sys.exit(f"error: {os.path.basename(path)} needs {library}, which is not in the wheel")
            for folder in elf.search_path(path):
                if not folder.startswith("$ORIGIN"):
                    sys.exit(f"error: {os.path.basename(path)} looks for libraries in {folder}")

    def tag(self) -> str:
        asked = set().union(*(elf.versions(path) for path in self.files))
        return f"py3-none-manylinux_2_{elf.oldest_glibc(asked)}_x86_64"

    def licences(self) -> dict[str, str]:
        """Debian package -> its copyright text, for each packed library; once for all packages of one source."""
        owners = {}
        for path in glob.glob("/var/lib/dpkg/info/*.list"):
            with open(path, encoding="utf-8") as file:
                owners.update(dict.fromkeys(file.read().split("\n"), os.path.basename(path).removesuffix(".list").partition(":")[0]))
        texts: dict[str, str] = {}
        for source in sorted(self.sources.values()):
            owner = owners.get(source) or owners.get(source.removeprefix("/usr"))  # dpkg knows a file by its name in the package
            if not owner:
                sys.exit(f"error: no Debian package has {source}, so that its licence is not known")
            with open(f"/usr/share/doc/{owner}/copyright", encoding="utf-8") as file:
                texts.setdefault(file.read(), owner)
        return {owner: text for text, owner in texts.items()}


SHIM = '''#!python
"""Becomes the program of this name that the package tidepool carries."""
import importlib.util
import os
import sys

name = os.path.basename(sys.argv[0])
package = importlib.util.find_spec("tidepool").submodule_search_locations[0]
torch = importlib.util.find_spec("torch")
if torch and not os.path.isdir(os.path.join(package, "..", "torch")):
    folders = [os.path.join(torch.submodule_search_locations[0], "lib"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
program = os.path.join(package, "bin", name)
os.execv(program, [program, *sys.argv[1:]])
'''


def metadata(project: dict, version: str) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}",
             f"License: {project['license']}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"Classifier: {text}" for text in project["classifiers"]]
    lines += [f"Requires-Dist: {text}" for text in project["dependencies"]]
    for extra, texts in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {text}; extra == "{extra}"' for text in texts]
    return "\n".join(lines) + "\n"


def write(folder: str, path: str, text: str, mode: int = 0o644) -> None:
    full = os.path.join(folder, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(full, mode)


def copy_package(package: str, folder: str) -> None:
    if not os.path.isfile(os.path.join(package, "__init__.py")):
        sys.exit(f"error: {package} is no package")
    shutil.copytree(package, os.path.join(folder, "tidepool"), ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "*.so"), dirs_exist_ok=True)


def zip_folder(folder: str, record: str, target: str) -> None:
    """Zips all files of the folder, RECORD last; reproducible: equal files give equal bytes."""
    moment = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800))[:6]  # zip files cannot have times before 1980
    paths = sorted(os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names)
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(target + ".new", "w", zipfile.ZIP_DEFLATED) as archive:

        def put(path: str, content: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(path, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)

        for path in paths:
            full = os.path.join(folder, path)
            with open(full, "rb") as file:
                content = file.read()
            put(path, content, 0o755 if os.access(full, os.X_OK) else 0o644)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            table.writerow([path, f"sha256={digest}", len(content)])
        table.writerow([record, "", ""])
        put(record, rows.getvalue().encode(), 0o644)
    os.replace(target + ".new", target)


def pack(build: str, out: str, package: str) -> str:
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    version, torch = project_version(), torch_of(build)
    if torch and for_torch(project["dependencies"], torch) != project["dependencies"]:
        project["dependencies"] = for_torch(project["dependencies"], torch)
        version += f"+torch{torch}"  # distinguishes it from the wheel for the torch that scripts/setup installs
    info = f"tidepool-{version}.dist-info"
    with tempfile.TemporaryDirectory() as folder:
        os.umask(0o022)
        copy_package(package, folder)
        binaries = Binaries(build, folder)
        binaries.check()
        tag = binaries.tag()
        write(folder, f"{info}/METADATA", metadata(project, version))
        write(folder, f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tidepool ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n")
        with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as file:
            write(folder, f"{info}/licenses/LICENSE", file.read())
        for name, text in binaries.licences().items():
            write(folder, f"{info}/licenses/{name}", text)
        for program in PROGRAMS:
            write(folder, f"tidepool-{version}.data/scripts/{program}", SHIM, 0o755)
        os.makedirs(out, exist_ok=True)
        target = os.path.join(out, f"tidepool-{version}-{tag}.whl")
        zip_folder(folder, f"{info}/RECORD", target)
    return target


def main() -> int:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    package = sys.argv[3] if len(sys.argv) == 4 else os.path.join(ROOT, "python", "tidepool")
    print(pack(sys.argv[1], sys.argv[2], package))
    return 0


if __name__ == "__main__":
    sys.exit(main())
