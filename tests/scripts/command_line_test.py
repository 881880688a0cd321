"""Every script explains itself and refuses what it does not know, before it does anything."""

import os
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = ("setup", "test", "quickstart", "bench", "convergence", "nightly", "tidy", "chaos", "fuzz", "planted", "repro", "torchrun_check", "wheel_check")


def run(name, *arguments):
    # From another folder: no script may depend on where it is called.
    return subprocess.run([os.path.join(ROOT, "scripts", name), *arguments], cwd="/", capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


class CommandLine(unittest.TestCase):
    def test_help_starts_with_the_usage(self):
        for name in SCRIPTS:
            done = run(name, "--help")
            self.assertEqual(done.returncode, 0, name)
            self.assertTrue(done.stdout.startswith("usage: scripts/" + name), done.stdout[:80])

    def test_an_unknown_flag_is_a_usage_error(self):
        for name in SCRIPTS:
            done = run(name, "--no-such-flag")
            self.assertEqual(done.returncode, 2, name)
            self.assertIn("--no-such-flag", done.stderr, name)
            self.assertRegex(done.stderr, rf"usage: scripts/{name}|{name} --help", "where to read on")
            self.assertEqual(done.stdout, "", name)

    def test_bad_values_are_refused(self):
        for arguments in [("quickstart", "--steps", "many"), ("quickstart", "--ranks", "0"), ("quickstart", "--data", "/no/such/file"), ("quickstart", "--json"),
                          ("test", "--jobs", "x"), ("test", "--filter"), ("chaos", "--steps", "many"), ("chaos", "--kills"), ("fuzz", "--seconds", "x"),
                          ("fuzz", "--target", "fz_none"), ("planted",), ("planted", "--sample", "0"), ("planted", "--bug", "no.such.bug"),
                          ("planted", "--all", "--jobs", "0"), ("planted", "--all", "--built", "no/such/folder"), ("torchrun_check", "--steps", "0"), ("torchrun_check", "--out"), ("wheel_check", "--wheel")]:
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("error: ", done.stderr, arguments)
            self.assertNotIn("Traceback", done.stderr, arguments)


if __name__ == "__main__":
    unittest.main()
