"""No file is outside the build: every source is named by a CMakeLists.txt, and every header compiles on its own."""

import concurrent.futures
import glob
import os
import re
import subprocess

from .tree import Finding, Tree

# Macros that CMakeLists.txt files define for the headers in their folder.
BUILD_DEFINITIONS = ['-DTIDEPOOL_VERSION=""', '-DTIDEPOOL_BUILD=""']


def names_file(text: str, name: str) -> bool:
    """True if a CMakeLists.txt names the file: as a word, or in a loop (`${subject}_test.cpp` with `subject` among its words)."""
    if re.search(r"(?<![\w./-])" + re.escape(name) + r"(?![\w./-])", text):
        return True
    for template in re.findall(r"[\w./-]*\$\{\w+\}[\w./-]*\.(?:cpp|cu)", text):
        before, _, after = re.fullmatch(r"(.*?)(\$\{\w+\})(.*)", template).groups()
        if name.startswith(before) and name.endswith(after):
            word = name[len(before):len(name) - len(after)]
            if re.search(r"(?<![\w./$-])" + re.escape(word) + r"(?![\w./-])", text):
                return True
    return False


def check_built(tree: Tree) -> list[Finding]:
    """Every .cpp and .cu is named by the CMakeLists.txt of its folder, or of a parent folder."""
    lists = {path: re.sub(r"#.*", "", text) for path, text in tree.texts.items() if os.path.basename(path) == "CMakeLists.txt"}
    findings = []
    for path in tree.sources:
        if not path.endswith((".cpp", ".cu")):
            continue
        folder = os.path.dirname(path)
        while not names_file(lists.get(os.path.join(folder, "CMakeLists.txt"), ""), os.path.relpath(path, folder or ".")):
            if not folder:
                findings.append(Finding(path, 1, "built", "no CMakeLists.txt names this file: build it or remove it"))
                break
            folder = os.path.dirname(folder)
    return findings


def includes_torch(tree: Tree, path: str, seen: set[str] | None = None) -> bool:
    """True if the file includes a header of LibTorch, directly or indirectly."""
    seen = seen if seen is not None else set()
    seen.add(path)
    for _, name, quoted in tree.sources[path].includes():
        if not quoted and name.startswith(("torch/", "ATen/", "c10/")):
            return True
        if quoted and name in tree.sources and name not in seen and includes_torch(tree, name, seen):
            return True
    return False


def headers_to_compile(tree: Tree) -> list[str]:
    """Headers that no source includes first. The build has already compiled all others on their own."""
    proven = set()
    for path, source in tree.sources.items():
        if path.endswith((".cpp", ".cu")):
            includes = source.includes()
            if includes and includes[0][2]:
                proven.add(includes[0][1])
    return sorted(path for path in tree.sources if path.endswith(".h") and path not in proven)


def check_own_header_first(tree: Tree) -> list[Finding]:
    findings = []
    for path, source in tree.sources.items():
        own = re.sub(r"\.(cpp|cu)$", ".h", path)
        includes = source.includes()
        if own != path and own in tree.sources and includes and includes[0][1] != own:
            findings.append(Finding(path, includes[0][0], "own-header", f'"{own}" must be the first include: it proves that the header stands alone'))
    return findings


def torch_flags(root: str) -> list[str]:
    deps = os.environ.get("TIDEPOOL_DEPS") or os.path.join(root, ".deps")
    flags = []
    for base in glob.glob(os.path.join(deps, "venv/lib/python3*/site-packages/torch/include")):
        flags += ["-isystem", base, "-isystem", os.path.join(base, "torch/csrc/api/include")]
    return flags


def check_headers(tree: Tree) -> list[Finding]:
    """Compiles (syntax only) each header that the build has not already proven complete."""

    def compile_alone(path: str) -> Finding | None:
        command = ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", tree.root, *BUILD_DEFINITIONS]
        command += torch_flags(tree.root) if includes_torch(tree, path) else []
        text = f'#include "{path}"\n'
        done = subprocess.run(command + ["-x", "c++", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        first = next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[:200])
        return Finding(path, 1, "headers", f"does not compile alone: {first.split('error:')[-1].strip()}")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [finding for finding in pool.map(compile_alone, headers_to_compile(tree)) if finding]
