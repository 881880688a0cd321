"""The resources of a machine with a GPU: the GPU by its driver, a PyTorch, and the packages needed for a build.

For scripts/gpu_check. Needs only Python: it inspects PyTorch without importing it, and queries the driver through ctypes.
"""

import ctypes
import dataclasses
import glob
import importlib.util
import os
import shutil
import subprocess
import sys

# Library folders of NVIDIA's wheels under site-packages: a common one since CUDA 13, one per package before.
NVIDIA_FOLDERS = "nvidia/*/lib"
# Files that cmake/Torch.cmake requires.
TORCH_FILES = ("torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/include/torch/csrc/api/include/torch/torch.h")
CUDA_LIBRARIES = ("libcudart.so.13", "libcupti.so.13")


@dataclasses.dataclass
class Gpus:
    names: list[str]
    driver: str  # CUDA version that the driver supports, "13.0"
    why_none: str = ""
    total_gib: float = 0  # of the first GPU


def find_gpus() -> Gpus:
    """Queries the driver itself, like the programs."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Gpus([], "none", f"no CUDA driver: {error}")
    code = cuda.cuInit(0)
    if code != 0:
        return Gpus([], "unknown", f"the CUDA driver does not start: cuInit answered {code}")
    version, count, total = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_size_t(0)
    if hasattr(cuda, "cuDriverGetVersion"):  # a fake for tests may lack it
        cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    names = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0 and cuda.cuDeviceGetName(name, 128, device) == 0:
            names.append(name.value.decode("utf-8", "replace"))
        if ordinal == 0:
            cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    text = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value > 0 else "unknown"
    return Gpus(names, text, "" if names else "the CUDA driver shows no GPU", total.value / 2**30)


def driver_version() -> str:
    """The kernel module's version, "580.95.05"; "unknown" without one."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
        return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    except OSError:
        return "unknown"


@dataclasses.dataclass
class Torch:
    site: str  # the folder that contains torch/
    python: str  # the program that imports it
    version: str

    def library_folders(self) -> list[str]:
        return [os.path.join(self.site, "torch", "lib")] + sorted(glob.glob(os.path.join(self.site, NVIDIA_FOLDERS)))


def python_of(site: str) -> str:
    """The program in ENV/bin for ENV/lib/python3.x/site-packages."""
    program = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin", "python3")
    return program if os.access(program, os.X_OK) else sys.executable


def find_torch(folder: str | None, deps: str) -> Torch:
    """The PyTorch of --torch (a site-packages or its torch folder), else scripts/setup's, else this Python's. ValueError if there is none."""
    if folder is not None:
        site = os.path.abspath(folder)
        if not os.path.isdir(os.path.join(site, "torch")) and os.path.isfile(os.path.join(site, "lib", "libtorch_cpu.so")):
            site = os.path.dirname(site)
        wanted = f"--torch {folder}"
    else:
        of_setup = glob.glob(os.path.join(deps, "venv/lib/python3*/site-packages"))
        spec = None if of_setup else importlib.util.find_spec("torch")
        if not of_setup and (spec is None or spec.origin is None):
            raise ValueError(f"no PyTorch: neither in {deps}, where scripts/setup puts it, nor for {sys.executable}; name one with --torch DIR")
        site = of_setup[0] if of_setup else os.path.dirname(os.path.dirname(spec.origin))
        wanted = site
    missing = [name for name in TORCH_FILES if not os.path.isfile(os.path.join(site, name))]
    if missing:
        raise ValueError(f"{wanted} is no PyTorch to build with: {site} lacks {', '.join(missing)}")
    version = "unknown"
    with open(os.path.join(site, "torch", "version.py"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("__version__"):
                version = line.split("=")[1].strip().strip("'\"")
    return Torch(site, python_of(site), version)


def make_deps(torch: Torch, folder: str) -> None:
    """Makes a folder of links in the form of TIDEPOOL_DEPS (cmake/Torch.cmake). ValueError if CUDA's libraries are not beside PyTorch."""
    site = os.path.join(folder, "venv/lib/python3/site-packages")
    shutil.rmtree(os.path.join(folder, "venv"), ignore_errors=True)
    os.makedirs(os.path.join(site, "nvidia/cu13/lib"))
    os.symlink(os.path.join(torch.site, "torch"), os.path.join(site, "torch"))
    for name in CUDA_LIBRARIES:
        found = [path for path in (os.path.join(lib, name) for lib in torch.library_folders() + ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"])
                 if os.path.exists(path)]
        if not found:
            raise ValueError(f"{name} is neither beside {torch.site}/torch (in {NVIDIA_FOLDERS}) nor in /usr/local/cuda")
        os.symlink(found[0], os.path.join(site, "nvidia/cu13/lib", name))


def missing_packages(root: str) -> list[str]:
    """Debian packages of scripts/apt-packages.txt that are not installed; all of them if there is no dpkg."""
    with open(os.path.join(root, "scripts/apt-packages.txt"), encoding="utf-8") as file:
        wanted = [line.split("#")[0].split()[0] for line in file if line.split("#")[0].split()]
    if shutil.which("dpkg-query") is None:
        return wanted
    listed = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n"], capture_output=True, text=True, check=False).stdout
    installed = {line[3:].strip() for line in listed.splitlines() if line[1:2] == "i"}
    return [name for name in wanted if name not in installed]
