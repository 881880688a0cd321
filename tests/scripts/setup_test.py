"""scripts/setup on machines that lack something: each is a PATH of small stand-ins for the system's programs."""

import os
import re
import stat
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SETUP = os.path.join(ROOT, "scripts", "setup")
REAL = ("bash", "dirname", "basename", "uname", "sed", "awk", "wc", "cat", "mkdir", "mktemp", "rm", "flock", "grep", "tail", "tr", "env", "df", "find")


def package_names():
    with open(os.path.join(ROOT, "scripts", "apt-packages.txt"), encoding="utf-8") as file:
        return [line.split()[0] for line in file if line.split("#")[0].strip()]


class Machine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.bin = os.path.join(self.folder.name, "bin")
        os.mkdir(self.bin)
        for name in REAL:
            os.symlink(subprocess.check_output(["which", name], text=True).strip(), os.path.join(self.bin, name))
        self.program("g++", "echo 12")
        self.program("apt-get", 'echo "apt-get $*" >> "$0.calls"; exit ${APT_CODE:-0}')
        self.program("apt-cache", 'shift; for name; do printf "%s:\\n  Candidate: 1\\n" "$name"; done')
        self.installed(package_names())

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + text + "\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def installed(self, names):
        lines = "".join(f"ii {name}\\n" for name in names)
        self.program("dpkg-query", f"printf '{lines}'")

    def setup(self, *arguments, **environment):
        deps = os.path.join(self.folder.name, "deps")
        variables = {"PATH": self.bin, "HOME": self.folder.name, "TIDEPOOL_DEPS": deps, **environment}
        return subprocess.run([SETUP, *arguments], env=variables, cwd="/", capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def apt_calls(self):
        path = os.path.join(self.bin, "apt-get.calls")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()

    def test_nothing_missing_is_quick_and_touches_nothing(self):
        begin = time.monotonic()
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual(self.apt_calls(), [])

    def test_check_names_what_is_missing_and_changes_nothing(self):
        self.installed([name for name in package_names() if name != "mold"])
        done = self.setup("--check")
        self.assertEqual(done.returncode, 9)
        self.assertIn("missing Debian packages: mold", done.stdout)
        self.assertIn("missing LibTorch 2.11.0", done.stdout)
        self.assertIn("544 MB to download", done.stdout)
        self.assertEqual(self.apt_calls(), [])
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "deps")))

    def test_what_benchmarks_compare_with_is_installed_where_it_is_asked_for(self):
        done = self.setup("--check", "--no-torch", "--bench")
        self.assertEqual((done.returncode, done.stdout.strip()), (9, "setup: missing Debian packages: fio"))
        self.installed([*package_names(), "fio"])
        self.assertEqual(self.setup("--check", "--no-torch", "--bench").returncode, 0)

    def test_a_browser_is_installed_where_it_is_asked_for(self):
        self.assertNotIn("chromium", self.setup("--check", "--no-torch").stdout)
        done = self.setup("--check", "--no-torch", "--browser")
        self.assertEqual((done.returncode, done.stdout.strip()), (9, "setup: missing Debian packages: chromium"))
        self.assertEqual(self.setup("--no-torch", "--browser").returncode, 0)
        self.assertRegex(self.apt_calls()[-1], r"install -y --no-install-recommends --no-remove chromium$")

    def test_packages_of_a_gpu_are_looked_for_where_they_are_asked_for(self):
        self.assertNotIn("NVIDIA", self.setup("--check").stdout)
        asked = self.setup("--check", "--gpu")
        self.assertEqual(asked.returncode, 9)
        self.assertIn("missing NVIDIA packages of torch 2.11.0", asked.stdout)
        self.assertNotIn("NVIDIA", self.setup("--check", "--gpu", "--no-torch").stdout)

    def test_schemas_are_looked_for_where_tests_need_them(self):
        self.assertNotIn("kubernetes", self.setup("--check").stdout)
        asked = self.setup("--check", "--tests")
        self.assertEqual(asked.returncode, 9)
        self.assertIn("missing kubernetes-validate==1.37.0", asked.stdout)

    def test_packages_of_the_python_tests_are_looked_for_where_tests_need_them(self):
        self.assertNotIn("pypi-packages", self.setup("--check").stdout)
        asked = self.setup("--check", "--tests")
        self.assertEqual(asked.returncode, 9)
        self.assertRegex(asked.stdout, r"missing packages of scripts/pypi-packages.txt .*81 MB to download.* transformers==\d")
        self.assertNotIn("pypi-packages", self.setup("--check", "--tests", "--no-torch").stdout)

    def test_the_packages_of_the_python_tests_are_pinned_and_bring_nothing_of_a_gpu(self):
        with open(os.path.join(ROOT, "scripts", "pypi-packages.txt"), encoding="utf-8") as file:
            lines = [line for line in file if not line.startswith("#")]
        for line in lines:
            self.assertRegex(line, r"^[\w.-]+==[\w.]+ +# \S")
            self.assertNotRegex(line.lower(), r"^(nvidia|triton|cuda|torch)")

    def as_anybody(self, *arguments):
        """Setup with the tests for root made blind: what a user without rights meets."""
        with open(SETUP, encoding="utf-8") as file:
            text = file.read()
        copy = os.path.join(self.folder.name, "repo", "scripts")
        os.makedirs(copy, exist_ok=True)
        for name in ("lib.sh", "apt-packages.txt", "check_wheels.py"):
            if not os.path.exists(os.path.join(copy, name)):
                os.symlink(os.path.join(ROOT, "scripts", name), os.path.join(copy, name))
        path = os.path.join(copy, "setup")
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r"\(\(EUID == 0\)\)", "false", text))
        os.chmod(path, 0o755)
        variables = {"PATH": self.bin, "HOME": self.folder.name, "TIDEPOOL_DEPS": os.path.join(self.folder.name, "deps")}
        return subprocess.run([path, *arguments], env=variables, cwd="/", capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def test_neither_root_nor_sudo(self):
        self.installed([name for name in package_names() if name not in ("mold", "curl")])
        done = self.as_anybody("--no-torch")
        self.assertEqual(done.returncode, 9)
        self.assertIn("apt-get install --no-install-recommends --no-remove mold curl", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_sudo_is_used_without_asking_where_nobody_can_answer(self):
        self.installed([name for name in package_names() if name != "mold"])
        self.program("sudo", 'echo "sudo $*" >> "$0.calls"; shift; exec "$@"')
        self.program("true", "exit 0")
        self.as_anybody("--no-torch")
        with open(os.path.join(self.bin, "sudo.calls"), encoding="utf-8") as file:
            self.assertTrue(all(line.startswith("sudo -n ") for line in file.read().splitlines()))

    def test_no_network(self):
        if os.geteuid() != 0:
            self.program("sudo", 'shift; exec "$@"')
        self.installed([name for name in package_names() if name != "mold"])
        done = self.setup("--no-torch", APT_CODE="100")
        self.assertEqual(done.returncode, 9)
        self.assertIn("apt-get could not install them", done.stderr)
        self.assertIn("--no-remove mold", done.stderr)
        self.assertTrue(all("--no-remove" in call for call in self.apt_calls() if " install " in call))

    def test_boost_1_74_is_explained_and_never_removed(self):
        self.installed([name for name in package_names() if not name.startswith("libboost")] + ["libboost1.74-dev", "libboost-dev"])
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 9)
        self.assertIn("libboost1.74-dev", done.stderr)
        self.assertIn("nothing was changed", done.stderr)
        self.assertEqual(self.apt_calls(), [])

    def test_another_distribution(self):
        os.unlink(os.path.join(self.bin, "apt-get"))
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 9)
        self.assertIn("this is not Debian", done.stderr)
        self.assertIn("libspdlog-dev", done.stderr)

    def test_an_old_compiler(self):
        self.program("g++", "echo 10")
        done = self.setup("--no-torch")
        self.assertEqual(done.returncode, 9)
        self.assertIn("g++ 12 or newer", done.stderr)


if __name__ == "__main__":
    unittest.main()
