"""The wheel that pip makes of a checkout works in a virtual environment that has nothing of the checkout."""

import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.environ["TIDEPOOL_ROOT"]
PROGRAMS = ("memserver", "memctl", "trainer")
SYSTEM = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+)\.so")

TRAINING = """
import sys
import torch
import tidepool

assert tidepool.__file__.startswith(sys.prefix), tidepool.__file__
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model = tidepool.wrap(model, job="wheel")
optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(16, 8)
losses = []
for step in range(10):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print("trained")
"""


def run(*words, environment=None):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL, env=environment, cwd="/")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        out = os.path.join(cls.folder.name, "out")
        cls.venv = os.path.join(cls.folder.name, "venv")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
        offline = {**os.environ, "PIP_NO_INDEX": "1"}
        steps = (
            (*pip, "wheel", "--no-deps", "--config-settings", "no-build=1", "--wheel-dir", out, ROOT),
            ("/usr/bin/python3", "-m", "venv", "--without-pip", cls.venv),
            (*pip, "--python", os.path.join(cls.venv, "bin", "python"), "install", "--no-deps", "--find-links", out, "tidepool"),
        )
        for words in steps:
            done = run(*words, environment=offline)
            assert done.returncode == 0, done.stdout + done.stderr
        cls.wheel = os.path.join(out, os.listdir(out)[0])
        cls.site = run(os.path.join(cls.venv, "bin", "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        # All but Tidepool itself comes from where the tests have it.
        with open(os.path.join(cls.site, "others.pth"), "w", encoding="utf-8") as file:
            file.write(next(path for path in sys.path if path.endswith("site-packages")) + "\n")

    def inside(self, *words):
        """Runs a program of the virtual environment, without the paths that the tests have."""
        known = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "OMP_NUM_THREADS") if name in os.environ}
        environment = {"PATH": os.path.join(self.venv, "bin") + ":/usr/bin:/bin", "HOME": self.folder.name, "TMPDIR": self.folder.name, **known}
        return run(os.path.join(self.venv, "bin", words[0]), *words[1:], environment=environment)

    def test_its_record_has_every_file(self):
        with zipfile.ZipFile(self.wheel) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            rows = {path: (digest, size) for path, digest, size in csv.reader(archive.read(record).decode().splitlines())}
            self.assertEqual(set(rows), set(archive.namelist()))
            for path, (digest, size) in rows.items():
                if path != record:
                    content = archive.read(path)
                    self.assertEqual(digest, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode())
                    self.assertEqual(int(size), len(content))

    def test_its_name_and_metadata_say_what_it_needs(self):
        self.assertRegex(os.path.basename(self.wheel), r"^tidepool-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            text = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        self.assertIn("\nRequires-Dist: torch>=2.11,<2.12\n", text)
        self.assertIn("tidepool/py.typed", names)
        for licence in ("LICENSE", "libboost-json1.81.0", "libudev1"):
            self.assertTrue(any(name.endswith(".dist-info/licenses/" + licence) for name in names), licence)

    def test_nothing_in_it_looks_outside_for_a_library(self):
        for place in ("bin", "lib"):
            folder = os.path.join(self.site, "tidepool", place)
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                searched = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", run("readelf", "-d", path).stdout)
                self.assertTrue(all(part.startswith("$ORIGIN") for text in searched for part in text.split(":")), (name, searched))
                for line in run("ldd", path, environment={"PATH": os.environ["PATH"]}).stdout.splitlines():
                    if not SYSTEM.search(line) and not re.search(r"lib(torch_cpu|c10)\.so => not found", line):
                        self.assertIn(os.path.join(self.site, "tidepool"), line, name)

    def test_its_programs_run(self):
        for program in PROGRAMS:
            done = self.inside(program, "--version")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.startswith(program + " "), done.stdout)
        self.assertEqual(self.inside("memctl", "no-such-command").returncode, 2)
        folder = os.path.join(self.site, "checkpoints")
        done = self.inside("trainer", "run", "--standalone", "--steps", "1", "--checkpoint-every", "1", "--checkpoint-dir", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(folder), ["step-00000001"], done.stderr)

    def test_its_package_trains(self):
        done = self.inside("python", "-c", TRAINING)
        self.assertEqual((done.returncode, done.stdout.strip()[-7:]), (0, "trained"), done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
