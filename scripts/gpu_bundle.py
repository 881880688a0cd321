"""A bundle: the parts of a build needed to check a GPU on another machine, in one folder: programs, tests labelled gpu, shared libraries.

For scripts/gpu_check. The other machine provides the checkout (scripts, peers), its own PyTorch, glibc and C++ runtime. A bundle has the
layout of the build folder, whose path the tests contain: on the other machine a link with that path is made to it (`place`).
"""

import json
import os
import re
import shutil
import subprocess

PROGRAMS = ("memserver", "memctl", "trainer", "bench_gpu", "machine_probe")
OP_LIBRARY = "lib/libtidepool_torch.so"  # of the Python package
MANIFEST, TESTS = "bundle.json", "gpu_tests.json"
# Libraries that every machine with PyTorch has, or needs in its own version: glibc, the compiler's runtime, PyTorch and CUDA.
LEFT_OUT = re.compile(r"(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s|libtorch.*|libc10.*|libcu.*|libnv.*|libnccl)\.so.*")


def gpu_tests(build: str) -> list[dict]:
    """The tests labelled gpu of a configured build folder: name, command, environment and ctest's properties."""
    listed = subprocess.run(["ctest", "--test-dir", build, "-L", "^gpu$", "--show-only=json-v1"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise ValueError(f"ctest cannot list the tests of {build}: {listed.stderr.strip() or listed.stdout.strip()}")
    tests = []
    for test in json.loads(listed.stdout)["tests"]:
        properties = {found["name"]: found["value"] for found in test.get("properties", [])}
        tests.append({"name": test["name"], "command": test.get("command", []), "environment": properties.get("ENVIRONMENT", []),
                      "timeout": float(properties.get("TIMEOUT", 120)), "skip": as_list(properties.get("SKIP_REGULAR_EXPRESSION", [])),
                      "skip_code": properties.get("SKIP_RETURN_CODE")})
    return tests


def as_list(value) -> list[str]:
    return value if isinstance(value, list) else [value]


def programs_of(tests: list[dict], build: str) -> list[str]:
    """Files in the build folder that the tests run: a subject's wrapper, the program that it starts, and further files named by it."""
    found: set[str] = set()
    waiting = [word for test in tests for word in test["command"]]
    while waiting:
        path = waiting.pop()
        if path in found or not path.startswith(build + "/") or not os.path.isfile(path) or not os.access(path, os.X_OK):
            continue
        found.add(path)
        with open(path, "rb") as file:
            named = re.findall(re.escape(build.encode()) + rb"/(?:bin|tests)/[\w.-]+", file.read())
        waiting += [name.decode() for name in named]
    return sorted(found)


def libraries_of(program: str) -> dict[str, str]:
    """Names and paths of the shared libraries that the other machine may lack."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return {name: path for name, path in found if not LEFT_OUT.fullmatch(name) and "/site-packages/" not in path}


def copy_program(path: str, target: str) -> None:
    """Copies it without debug information, which is most of the file."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(path, "rb") as file:
        is_program = file.read(4) == b"\x7fELF"
    if is_program and subprocess.run(["strip", "-o", target, path], capture_output=True, check=False).returncode == 0:
        shutil.copymode(path, target)
    else:
        shutil.copy2(path, target)


def make(folder: str, build: str, root: str, facts: dict) -> dict:
    """Fills `folder`; returns its manifest. ValueError if the build lacks a program."""
    missing = [name for name in PROGRAMS if not os.path.isfile(os.path.join(build, "bin", name))]
    if missing:
        raise ValueError(f"{build}/bin lacks {', '.join(missing)}")
    tests = gpu_tests(build)
    programs = [os.path.join(build, "bin", name) for name in PROGRAMS] + programs_of(tests, build)
    if os.path.isfile(os.path.join(build, OP_LIBRARY)):
        programs.append(os.path.join(build, OP_LIBRARY))
    unbuilt = [test["name"] for test in tests if not any(word in programs for word in test["command"])]
    if unbuilt:
        raise ValueError(f"{build} has not built the programs of {', '.join(unbuilt)}")
    shutil.rmtree(folder, ignore_errors=True)
    libraries: dict[str, str] = {}
    for path in programs:
        copy_program(path, os.path.join(folder, os.path.relpath(path, build)))
        libraries |= libraries_of(path)
    os.makedirs(os.path.join(folder, "lib"), exist_ok=True)
    for name, path in libraries.items():
        shutil.copy2(os.path.realpath(path), os.path.join(folder, "lib", name))
    manifest = {"root": root, "build": build, "libraries": sorted(libraries), "tests": len(tests)} | facts
    for name, content in ((MANIFEST, manifest), (TESTS, tests)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
    manifest["bytes"] = sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
    return manifest


def read(folder: str) -> tuple[dict, list[dict]]:
    try:
        with open(os.path.join(folder, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        with open(os.path.join(folder, TESTS), encoding="utf-8") as file:
            return manifest, json.load(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} is no bundle that `scripts/gpu_check --bundle` made: {error}") from error


def link(path: str, target: str) -> None:
    if os.path.realpath(path) == os.path.realpath(target):
        return
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.exists(path):
        raise ValueError(f"{path} is in the way: the bundle's programs look for themselves there; move it, or use --build {path}")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    except OSError as error:
        raise ValueError(f"cannot make the link {path}, where the bundle's programs look for themselves: {error}") from error


def place(folder: str, manifest: dict, root: str) -> str:
    """Creates the paths with which the programs were built; returns the build folder's path."""
    if not os.path.exists(manifest["root"]):
        link(manifest["root"], root)
    link(manifest["build"], os.path.abspath(folder))
    return manifest["build"]
