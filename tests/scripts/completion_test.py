"""What bash offers behind a command line, by the completions that the programs print. usage: completion_test.py BIN_FOLDER"""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

BIN = os.path.abspath(sys.argv.pop())
NAMES = "1 gpt\n2 $(touch${IFS}broken)\n3 good`touch${IFS}broken`\n"


def output_of(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout


class Bash(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.programs = [program for program in ("memctl", "memserver", "trainer") if os.path.exists(os.path.join(BIN, program))]
        cls.scripts = {program: output_of(os.path.join(BIN, program), "completion", "bash") for program in cls.programs}

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        os.mkdir(os.path.join(self.folder.name, "data"))
        stub = os.path.join(self.folder.name, "memctl")  # whose jobs have the names of an attacker
        with open(stub, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\ncat << 'END'\n" + NAMES + "END\n")
        os.chmod(stub, stat.S_IRWXU)

    def tearDown(self):
        self.folder.cleanup()

    def offered(self, line):
        """The words behind `line`, whose last word is the one that is being written."""
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
        program = words[0]
        script = self.scripts[program] + '\nCOMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n_' + program + '\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=False, timeout=60, cwd=self.folder.name,
                              env=dict(os.environ, PATH=self.folder.name + os.pathsep + os.environ["PATH"]))
        self.assertEqual(done.stderr, "", line)
        return set(done.stdout.split("\n")) - {""}

    def test_commands_come_first(self):
        self.assertEqual(self.offered("memctl resi"), {"residency"})
        self.assertLess({"status", "job", "page", "completion"}, self.offered("memctl "))
        self.assertEqual(self.offered("memctl job "), {"quota", "suspend", "resume", "evict", "release"})
        self.assertEqual(self.offered("memserver be"), {"bench"})

    def test_every_flag_of_help_is_offered(self):
        for words in (("memctl",), ("memctl", "chunks"), ("memctl", "job", "quota"), ("memctl", "page"), ("memserver",)):
            told = set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", output_of(os.path.join(BIN, words[0]), *words[1:], "--help")))
            told -= {"--no-respawn", "--discard-kept", "--parent-pid", "--end-with-fd", "--defaults", "--bytes", "--output"} if words == ("memserver",) else set()
            self.assertGreater(len(told), 1, words)
            self.assertEqual(told - self.offered(" ".join(words) + " --"), set(), words)
        self.assertLess({"--discard-kept", "--pool"}, self.offered("memserver run --"))

    def test_values_are_offered_behind_their_flag(self):
        self.assertEqual(self.offered("memctl -o "), {"table", "wide", "json", "jsonl", "yaml", "svg", "html"})
        self.assertEqual(self.offered("memctl status --output=j"), {"json", "jsonl"})
        self.assertEqual(self.offered("memctl job quota gpt --priority "), {"low", "normal", "high"})
        self.assertEqual(self.offered("memctl chunks --state up"), {"update-due", "updating"})
        self.assertEqual(self.offered("memctl -s "), {"data"})
        self.assertEqual(self.offered("memctl report "), {"data", "memctl"})
        self.assertEqual(self.offered("memctl --timeout "), set(), "any time")
        self.assertEqual(self.offered("memserver bench "), {"copy", "nvme"})
        self.assertEqual(self.offered("memserver run --mode s"), {"service"})

    def test_the_trainer_has_its_own(self):
        if "trainer" not in self.programs:
            return  # it is built where LibTorch is
        self.assertEqual(self.offered("trainer "), {"run", "estimate", "doctor", "sample", "export", "tokenize", "launch", "rates", "version", "completion"})
        self.assertEqual(self.offered("trainer run --dtype "), {"fp32", "bf16", "fp16"})
        self.assertEqual(self.offered("trainer run --plan "), {"ddp", "zero2", "zero3", "auto"})
        self.assertEqual(self.offered("trainer run --save "), {"data"})
        self.assertLess({"--standalone", "--wait", "--resume"}, self.offered("trainer run --"))
        self.assertNotIn("--standalone", self.offered("trainer estimate --"))

    def test_names_of_jobs_are_asked_for_and_never_run(self):
        self.assertEqual(self.offered("memctl ps --job g"), {"gpt", "good\\`touch\\$\\{IFS\\}broken\\`"})
        self.assertIn("\\$\\(touch\\$\\{IFS\\}broken\\)", self.offered("memctl job release "))
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "broken")))

    def test_other_shells_are_refused(self):
        for program in self.programs:
            done = subprocess.run([os.path.join(BIN, program), "completion", "csh"], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 2, program)
            self.assertIn("csh", done.stderr)

    def offered_by_fish(self, line):
        script = output_of(os.path.join(BIN, line.split()[0]), "completion", "fish") + "\ncomplete -C " + "'" + line + "'\n"
        done = subprocess.run(["fish", "--no-config"], input=script, capture_output=True, text=True, check=False, timeout=60, cwd=self.folder.name,
                              env=dict(os.environ, HOME=self.folder.name, PATH=self.folder.name + os.pathsep + os.environ["PATH"]))
        self.assertEqual(done.stderr, "", line)
        return {offer.split("\t")[0] for offer in done.stdout.split("\n")} - {""}

    def test_fish_offers_the_same(self):
        self.assertLess({"status", "job", "page", "completion"}, self.offered_by_fish("memctl "))
        for line in ("memctl resi", "memctl job ", "memctl job quota gpt --priority ", "memctl chunks --state up", "memserver bench ", "memserver run --mode s"):
            self.assertEqual(self.offered_by_fish(line), self.offered(line), line)
        self.assertEqual(self.offered_by_fish("memctl ps --job g"), {"gpt", "good`touch${IFS}broken`"})
        self.assertLess({"--discard-kept", "--pool"}, self.offered_by_fish("memserver run --"))
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "broken")))

    def test_zsh_can_read_its_own(self):
        for program in self.programs:
            text = output_of(os.path.join(BIN, program), "completion", "zsh")
            self.assertTrue(text.startswith("#compdef " + program))
            if shutil.which("zsh"):
                done = subprocess.run(["zsh", "-n"], input=text, capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
