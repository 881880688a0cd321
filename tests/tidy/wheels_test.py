import os
import subprocess
import sys
import tempfile
import unittest

from small_tree import ROOT

SCRIPT = os.path.join(ROOT, "scripts", "check_wheels.py")


class CheckWheels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.site = self.folder.name
        os.makedirs(os.path.join(self.site, "torch-2.11.0+cu130.dist-info"))
        os.makedirs(os.path.join(self.site, "torch"))
        self.write("torch/a.so", "12345")
        self.write("torch-2.11.0+cu130.dist-info/RECORD", "torch/a.so,sha256=x,5\ntorch-2.11.0+cu130.dist-info/RECORD,,\n")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, path, text):
        with open(os.path.join(self.site, path), "w", encoding="utf-8") as file:
            file.write(text)

    def incomplete(self, *requirements):
        done = subprocess.run([sys.executable, "-B", SCRIPT, self.site, *requirements], capture_output=True, text=True, check=True)
        return done.stdout.split()

    def test_a_complete_installation(self):
        self.assertEqual(self.incomplete("torch==2.11.0"), [])
        self.assertEqual(self.incomplete("torch==2.11.*"), [])

    def test_another_version_or_none(self):
        self.assertEqual(self.incomplete("torch==2.12.0", "nvidia-cuda-runtime==13.0.*"), ["torch==2.12.0", "nvidia-cuda-runtime==13.0.*"])

    def test_a_file_cut_short_or_missing(self):
        self.write("torch/a.so", "123")
        self.assertEqual(self.incomplete("torch==2.11.0"), ["torch==2.11.0"])
        os.unlink(os.path.join(self.site, "torch/a.so"))
        self.assertEqual(self.incomplete("torch==2.11.0"), ["torch==2.11.0"])


if __name__ == "__main__":
    unittest.main()
