"""scripts/nightly, with small stand-ins for everything that it starts: its parts, their counts at each scale, what it says when one fails. And
every program that it names is one that the build knows."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STARTED = ("scripts/test", "scripts/fuzz", "scripts/planted", "scripts/repro", "scripts/bench", "scripts/chaos", "tests/models/check_models.sh", "build/bin/sim_main",
           "build/bin/bench_restart", "build/tests/optim_test", "build/tests/kill_campaign", "build/tests/nvme_test", "build/tests/kernel_faults_test",
           "build/tests/process_nvme_kill_test", "build/tests/process_early_kill_test", "build/tests/process_gpu_test", "build/tests/process_stall_test", "build/tests/process_upgrade_test", "build/tests/trainer_campaign", "build/tests/trainer_staged_run_test", "build/tests/failure_sweep", "build/tests/adoption_sweep",
           "scripts/setup", "scripts/tidy", "scripts/quickstart", "scripts/torchrun_check", "scripts/wheel_check", "tests/scripts/page_browser_test.py",
           "scripts/pictures", "tests/scripts/first_hour_test.py", "tests/scripts/commands_test.py")
TOOLS = ("path/cmake", "path/ctest")
# Notes how it was called; fails where it is told to.
STAND_IN = """#!/bin/bash
printf '%s %s\\n' "{name}" "$*" >> "$CALLS"
[[ " ${{FAIL:-}} " != *" {name} "* ]] || exit "${{FAIL_WITH:-1}}"
"""


class Nightly(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.repo = pathlib.Path(self.folder.name) / "repo"
        self.calls = pathlib.Path(self.folder.name) / "calls"
        for name in (*STARTED, *TOOLS):
            self.program(name)
        for name in ("nightly", "lib.sh"):
            shutil.copy(ROOT / "scripts" / name, self.repo / "scripts")
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=test", "-c", "user.email=test", "commit", "-qm", "all"]):  # it is cloned
            subprocess.run(["git", "-C", self.repo, *words], check=True)

    def tearDown(self):
        self.folder.cleanup()

    def program(self, name):
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(name=name))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def nightly(self, *arguments, **environment):
        self.calls.write_text("")
        inherited = {name: value for name, value in os.environ.items() if name != "TIDEPOOL_DEPS"}
        variables = {**inherited, "PATH": f"{self.repo / 'path'}:{os.environ['PATH']}", "CALLS": str(self.calls), **environment}
        return subprocess.run([self.repo / "scripts/nightly", *arguments], env=variables, cwd="/", capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False, timeout=100)

    def listed(self, *arguments):
        """Name and command of each part."""
        done = self.nightly("--list", *arguments)
        self.assertEqual((done.returncode, done.stderr, self.calls.read_text()), (0, "", ""))
        self.assertFalse((self.repo / "out").exists(), "a list makes nothing")
        return dict(re.split(r" {2,}|(?<=.{40}) ", line, maxsplit=1) for line in done.stdout.splitlines())

    def test_the_list_names_every_part_with_its_counts(self):
        parts = self.listed("--scale", "1")
        self.assertEqual(list(parts), ["scripts/test", "long tests", "build without precompiled headers", "each header compiles alone", "all tests under the address sanitizer", "all tests under the thread sanitizer",
                                       "the page of memctl in a browser", "split masters of all 2^32 floats",
                                       "50000 kills at random times", "kills at each named point", "kills of large chunks",
                                       "kills inside recovery", "drive faults, 1000 times 50,000",
                                       "kills with transfers in flight, 50 a time", "kills before the first step, 78 a time", "kills among copies of GPUs, 100 a time",
                                       "rolling restarts, 30 a time", "a flood of descriptors, 100000 messages",
                                       "the LibTorch trainer, 1000 kills", "a trainer with experts, 200 kills", "a pipelined trainer, 200 kills", "a pipeline of two ranks, 200 kills", "a pipeline of two columns, 200 kills", "all combinations of stages", "the Python package, 60 kills a time", "the wheel alone, from PyPI", "the wheel beside the newest torch", "trainer run under torchrun", "5000 restarts of memserver, 4 GiB", "simulation, 5000000 seeds", "fuzzers, 2000000000 executions",
                                       "planted bugs, all", "models, large", "failure sweep, every k", "failure sweep of adoptions, every k", "reproductions", "the quickstart", "a stranger with a fresh clone", "benchmarks"])
        self.assertEqual(parts["50000 kills at random times"], "campaign --kills 50000 --losses 2000")
        self.assertEqual(parts["rolling restarts, 30 a time"], "rolling 67")
        self.assertEqual(parts["models, large"], "tests/models/check_models.sh out/nightly/models --large")
        self.assertEqual(self.listed(), parts)

    def test_a_scale_is_of_every_count_down_to_a_least_one(self):
        parts = self.listed("--scale", "0.05")
        self.assertEqual(parts["2500 kills at random times"], "campaign --kills 2500 --losses 100")
        self.assertEqual(parts["simulation, 250000 seeds"], "simulate 250000")
        parts = self.listed("--scale", "0")
        self.assertEqual(len(parts), 39)
        self.assertEqual(parts["10 kills at random times"], "campaign --kills 10 --losses 4")
        self.assertEqual(parts["kills at each named point"], "campaign --each 1")
        self.assertEqual(parts["3 restarts of memserver, 4 GiB"], "restart_4gib 3")

    def test_every_part_starts_its_program_with_its_counts(self):
        done = self.nightly("--scale", "0", "--seed", "7")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r" \d+   ok$", done.stdout, re.MULTILINE)), 39, done.stdout)
        calls = self.calls.read_text()
        for call in ("scripts/test ", "build/tests/optim_test --gtest_filter=SplitFloat.*", "build/tests/kill_campaign --seed 7 --kills 10 --losses 4",
                     "build/tests/kill_campaign --seed 7 --each 1", "build/tests/trainer_campaign --seed 7 --kills 12", "build/tests/trainer_campaign --seed 7 --kills 12 --stages 2",
                     "build/tests/trainer_staged_run_test --gtest_brief=1",
                     f"build/bin/bench_restart --kills 3 --json {self.repo}/out/nightly/restarts.json", "scripts/fuzz --runs 100000",
                     f"scripts/wheel_check --out {self.repo}/out/nightly/wheel",
                     f"scripts/wheel_check --newest-torch --out {self.repo}/out/nightly/wheel_newest", "scripts/planted --all", f"tests/models/check_models.sh {self.repo}/out/nightly/models --large", "build/tests/failure_sweep --all",
                     "build/tests/adoption_sweep --all", "scripts/repro ",
                     f"scripts/chaos --python --steps 400 --kills 60 --seed 1 --out {self.repo}/out/nightly/python_kills",
                     f"scripts/bench all --json {self.repo}/out/nightly/bench.json", "scripts/setup --browser --tests", "scripts/setup --gpu",
                     f"scripts/torchrun_check --torchrun {self.repo}/.deps/venv/bin/torchrun --out {self.repo}/out/nightly/torchrun",
                     f"tests/scripts/page_browser_test.py {self.repo}/build {self.repo}/out/nightly/page",
                     "build/tests/nvme_test --gtest_brief=1 --gtest_filter=DiskFaults.Many*:Piece.OneFlippedBit*:PowerLoss.*",
                     "build/tests/kernel_faults_test --gtest_brief=1", "scripts/tidy --only headers", f"scripts/quickstart --out {self.repo}/out/nightly/quickstart",
                     f"scripts/quickstart --out {self.repo}/out/nightly/clone_quickstart", f"scripts/pictures {self.repo}/build {self.repo}/out/nightly/pictures",
                     f"tests/scripts/first_hour_test.py {self.repo}/out/nightly/clone/build/bin", f"tests/scripts/commands_test.py {self.repo}/out/nightly/clone/build/bin",
                     "build/tests/process_nvme_kill_test --gtest_brief=1 --gtest_filter=*KilledWithTransfersInFlight*",
                     "build/tests/process_early_kill_test --gtest_brief=1",
                     "build/tests/process_gpu_test --gtest_brief=1 --gtest_filter=*Killed*",
                     "build/tests/process_stall_test --gtest_brief=1 --gtest_filter=*AFloodOfDescriptors*",
                     "build/tests/process_upgrade_test --gtest_filter=*RollingRestarts* --gtest_repeat=1 --gtest_brief=1"):
            self.assertIn(call + "\n", calls)
        ranges = [tuple(map(int, pair)) for pair in re.findall(r"sim_main --seeds (\d+)\.\.(\d+)", calls)]
        seeds = sorted(seed for first, last in ranges for seed in range(first, last + 1))
        self.assertEqual(seeds, list(range(7, 7 + len(seeds))), "each seed once")
        self.assertGreaterEqual(len(seeds), 100)
        self.assertEqual({line.split()[0] for line in calls.splitlines()}, {*STARTED, *TOOLS})

    def test_a_part_that_fails_fails_the_night_and_the_others_still_run(self):
        done = self.nightly("--scale", "0", FAIL="build/tests/kill_campaign build/bin/sim_main")
        self.assertEqual(done.returncode, 1)
        failed = re.findall(r"^(.*?) +\d+   failed \(1\)$", done.stdout, re.MULTILINE)
        self.assertEqual(failed, ["10 kills at random times", "kills at each named point", "kills of large chunks", "kills inside recovery", "simulation, 100 seeds"])
        self.assertIn("scripts/bench all", self.calls.read_text())
        missed = self.nightly("--only", "^benchmarks$", FAIL="scripts/bench", FAIL_WITH="3")
        self.assertEqual(missed.returncode, 0, "a target that does not hold is told, and is no failure")
        self.assertEqual(self.nightly("--only", "^benchmarks$", FAIL="scripts/bench").returncode, 1)

    def test_only_runs_what_is_named(self):
        self.assertEqual(list(self.listed("--only", "^simulation|^models")), ["simulation, 5000000 seeds", "models, large"])
        done = self.nightly("--scale", "0", "--only", "^models")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls.read_text(), f"tests/models/check_models.sh {self.repo}/out/nightly/models --large\n")

    def test_what_makes_no_sense_is_a_usage_error(self):
        for arguments in (("--scale",), ("--scale", "all"), ("--scale", "-1"), ("--seed", "x"), ("--seed",), ("--only",), ("--only", "no such part"),
                          ("tonight",)):
            done = self.nightly(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertTrue(done.stderr.startswith("error: "), done.stderr)
            self.assertEqual(self.calls.read_text(), "", arguments)

    def test_every_program_that_is_started_is_there_or_built(self):
        made = set()
        for path in (ROOT / "tests").rglob("CMakeLists.txt"):
            made.update(re.findall(r"tidepool_(?:test|program)\((\w+)", path.read_text()))
        made.update("bench_" + name for name in re.findall(r"bench_(\w+)\.cpp", " ".join(path.name for path in (ROOT / "bench").rglob("bench_*.cpp"))))
        for name in STARTED:
            self.assertTrue(os.access(ROOT / name, os.X_OK) or (name.startswith("build/") and pathlib.Path(name).name in made), name)


if __name__ == "__main__":
    unittest.main()
