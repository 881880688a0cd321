"""Makes stand-ins for the NVIDIA libraries that PyPI's torch is linked with, so that `import torch` works where only scripts/setup's CPU set is.

usage: make_stubs.py SITE_PACKAGES FOLDER COMPILER

Python binds all symbols of an extension when it loads it, and libtorch_python.so brings libtorch_cuda.so along: each library has to be there,
with every function that torch names, in the version that it names. Calling one ends the process; without a GPU torch calls none. Libraries
that are under SITE_PACKAGES/nvidia are left out: torch finds those by its own rpath, before LD_LIBRARY_PATH.
"""

import glob
import os
import re
import subprocess
import sys

# The libraries of torch that `import torch` loads.
LOADED = ("libtorch_python.so", "libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libc10_cuda.so")
NVIDIA = re.compile(r"lib(cu\w+|nv\w+|nccl)\.so\.\d+")
# What a library's functions begin with, where that is not the library's name.
PREFIXES = {"libcusparseLt": "cusparselt", "libnvshmem_host": "nvshmem"}

SOURCE = """#include <stdlib.h>
#include <unistd.h>
static void called(void) {
  static const char text[] = "a function of %(name)s was called, but this is a stand-in for it (scripts/setup --gpu installs the library)\\n";
  if (write(2, text, sizeof text - 1) >= 0) abort();
  abort();
}
%(functions)s
"""


def readelf(*words: str) -> str:
    return subprocess.run(["readelf", "-W", *words], check=True, capture_output=True, text=True).stdout


def missing_libraries(site: str) -> list[str]:
    """Names of the NVIDIA libraries that torch needs and nobody installed."""
    needed = set()
    for library in LOADED:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", os.path.join(site, "torch", "lib", library))))
    there = {os.path.basename(path) for path in glob.glob(os.path.join(site, "nvidia", "*", "lib", "*.so*"))}
    return sorted(name for name in needed if NVIDIA.fullmatch(name) and name not in there)


def asked_functions(site: str) -> dict[str, str]:
    """Function -> the version that torch asks it in ("" for none), for all that its libraries do not define."""
    found = {}
    for library in LOADED:
        for name, version in re.findall(r" UND (\w+)(?:@(\S+))?", readelf("--dyn-syms", os.path.join(site, "torch", "lib", library))):
            found[name] = version
    return found


def library_of(function: str, libraries: list[str]) -> str | None:
    """The library with the longest prefix that the function has."""
    prefixes = {PREFIXES.get(library.partition(".")[0], library.partition(".")[0].removeprefix("lib").lower()): library for library in libraries}
    fitting = [prefix for prefix in prefixes if function.lower().startswith(prefix)]
    return prefixes[max(fitting, key=len)] if fitting else None


def make(name: str, functions: dict[str, str], folder: str, compiler: str) -> None:
    lines = [f'void {function}(void) __attribute__((alias("called")));' for function in sorted(functions)]
    versions = {version for version in functions.values() if version}
    options = []
    if versions:
        script = os.path.join(folder, name + ".map")
        with open(script, "w", encoding="utf-8") as file:
            for version in sorted(versions):
                exported = " ".join(function + ";" for function, asked in sorted(functions.items()) if asked == version)
                file.write(f"{version} {{ global: {exported} }};\n")
        options = [f"-Wl,--version-script={script}"]
    text = SOURCE % {"name": name, "functions": "\n".join(lines)}
    target = os.path.join(folder, name)
    command = [compiler, "-x", "c", "-", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", *options, "-o", target + ".new"]
    subprocess.run(command, input=text, check=True, text=True)
    os.replace(target + ".new", target)


def main() -> int:
    site, folder, compiler = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    libraries = missing_libraries(site)
    shares: dict[str, dict[str, str]] = {library: {} for library in libraries}
    for function, version in asked_functions(site).items():
        library = library_of(function, libraries)
        if library:
            shares[library][function] = version
    for library, functions in shares.items():
        make(library, functions, folder, compiler)
    return 0


if __name__ == "__main__":
    sys.exit(main())
