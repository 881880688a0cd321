#!/usr/bin/env -S /usr/bin/python3 -B
"""Every command of README, of "Your first hour" and of "When something goes wrong" is run by a test: here, as it stands but for its size, in a fresh
clone; or where ELSEWHERE says. A command that a page has and no list knows fails, and so does one of a list that no page has.

usage: commands_test.py BIN_FOLDER
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop()).resolve()
LIMIT_S = 400
PROGRAM = re.compile(r"(build/bin/)?(memserver|memctl|trainer) |scripts/\w+( |$)|torchrun |pip |cmake |dmesg$|journalctl ")
DATA = {"scripts/apt-packages.txt"}

TINY = " --preset tiny --steps 2 --eval-every 0"
SHORT = " --steps 1 --eval-every 0"
# README's block of commands, in its order: what is typed here, or what is added; None: as it stands. Models are tiny, and so is the pool.
README = {
    "build/bin/trainer run --standalone --steps 100": "build/bin/trainer run --standalone --steps 1 --eval-every 0",
    "build/bin/memserver run --pool 8GiB &": "build/bin/memserver run --pool 512MiB 2> memserver.log & build/bin/memctl wait-ready",
    "build/bin/trainer launch -n 2 -- run --preset quickstart --save out": SHORT,
    "build/bin/trainer run --job nightly --resume auto": TINY,
    "build/bin/trainer run --job nightly --resume auto --checkpoint-every 100 --checkpoint-dir nightly":
        "build/bin/trainer run --job nightly --resume auto --checkpoint-every 2 --checkpoint-dir nightly" + TINY,
    "build/bin/trainer run --resume latest --checkpoint-every 100 --checkpoint-dir nightly --durable-steps nightly/steps":
        "build/bin/trainer run --resume latest --checkpoint-every 2 --checkpoint-dir nightly --durable-steps nightly/steps" + TINY.replace("2", "4"),
    "build/bin/trainer run --print-config > run.toml": None,
    "build/bin/trainer run --job large --wait 2h": TINY,
    "build/bin/memctl residency --watch": "timeout 1 build/bin/memctl residency --watch || test $? = 124",
    'build/bin/trainer sample out "Permission is hereby granted"': " --tokens 4",
    "build/bin/trainer run --standalone --from out --steps 50": "build/bin/trainer run --standalone --from out --steps 1 --eval-every 0",
    "build/bin/trainer export out hf --dtype bf16": None,
    "build/bin/trainer run --base out --lora-rank 8 --job r8 --save out-r8": SHORT,
    "build/bin/trainer estimate --preset llama-70b --ranks 4": None,
    "build/bin/trainer run --standalone --preset llama-small --moe every=2,experts=8,top-k=2": SHORT,
    "build/bin/trainer estimate --preset gpt2-4b --dtype bf16 --checkpoint-activations --rcache auto --device-memory 12GiB": None,
    "build/bin/trainer run --standalone --plan auto --rcache 64MiB": TINY,
    "build/bin/trainer run --standalone --pipeline auto --accumulate 4": TINY,
    "build/bin/trainer rates": " || test $? = 2",  # before memserver has measured them
    "build/bin/trainer doctor": " || test $? = 9",  # where there is no GPU
    "build/bin/trainer run --standalone --steps 20 --trace step.json": "build/bin/trainer run --standalone --steps 2 --trace step.json --preset tiny --eval-every 0",
}
# Commands inside of sentences: what is typed, while a job named JOB trains.
SAID = {
    "memctl status": None,
    "memctl residency": None,
    "memctl top": "timeout 1 memctl top || test $? = 124",
    "memctl page": "timeout 1 memctl page --listen 127.0.0.1:0 || test $? = 124",
    "memctl explain CODE": "memctl explain TP3001",
    "memctl doctor": None,
    "memctl quotas": None,
    "memctl ps": None,
    "memctl nvme status": None,
    "memctl job quota JOB --weight 2": "memctl job quota JOB --weight 2 --yes",
    "memctl record run.rec --for 1min": "memctl record run.rec --for 1s",
    "memctl report run.html --from run.rec": None,
    "memserver check --pool 8GiB": "memserver check --pool 1GiB || test $? = 1",  # where something is to be said
    "trainer doctor": " || test $? = 9",
    "memserver run": 'memserver run --socket-dir "$PWD/other" --pool 64MiB 2> other.log & memctl -s "$PWD/other" wait-ready && memctl -s "$PWD/other" shutdown --yes',
    "trainer run": TINY,
    "trainer run --standalone": TINY,
    "trainer run --trace step.json": TINY,
    "trainer launch": "trainer launch -n 2 -- run" + TINY,
    "trainer estimate --preset NAME": "trainer estimate --preset tiny",
    "dmesg": "dmesg > /dev/null || test $? = 1",  # where the kernel shows its log to root alone, as in most containers
    # Where systemd is; without it there is no journal to be read, and nothing that would write one.
    "journalctl -u tidepool-memserver": "! command -v journalctl > /dev/null || journalctl -u tidepool-memserver > /dev/null || test $? = 1",
}
# What runs the others, which build, install, measure for minutes, or need a GPU or LibTorch's launcher: a file, and words of it.
ELSEWHERE = {
    "scripts/quickstart": ("tests/scripts/quickstart_process_test.py", '"scripts", "quickstart"'),
    "scripts/test": (".ci/run", "scripts/test"),
    "scripts/chaos": ("tests/scripts/chaos_test.py", '"chaos"'),
    "scripts/setup": ("scripts/test", '"$repo/scripts/setup" --no-torch'),
    "scripts/setup --gpu": ("scripts/nightly", '"$repo/scripts/setup" --gpu'),
    "scripts/pictures": ("scripts/nightly", '"$repo/scripts/pictures"'),
    "scripts/wheel": ("scripts/wheel_check", "scripts/wheel"),
    "pip install out/wheel/*.whl": ("scripts/wheel_check", "install"),
    "cmake --build build --target packages": ("tests/install/check_install.sh", "cpack -G DEB"),
    "torchrun --standalone --nproc-per-node 2 --no-python build/bin/trainer run": ("scripts/torchrun_check", "--standalone"),
    "build/bin/trainer run --standalone --device cuda --dtype bf16 --checkpoint-activations": ("scripts/gpu_check", '"--device", "cuda"'),
    "scripts/bench step": ("tests/bench/programs_test.py", '"step"'),
    "scripts/bench fetch": ("tests/bench/programs_test.py", '"fetch"'),
    "scripts/bench restart": ("tests/bench/programs_test.py", '"restart"'),
    "scripts/bench ring": ("tests/bench/programs_test.py", '"ring"'),
    "scripts/bench update": ("tests/bench/programs_test.py", '"update"'),
    "scripts/bench python": ("scripts/nightly", '"$repo/scripts/bench" all'),
    "memserver run --nvme DIR:SIZE": ("tests/scripts/trace_test.py", '"--nvme"'),
    "trainer tokenize --tokenizer DIR": ("tests/python/test_tokenizer.py", "tokenize"),
}


def typed_for(command, words):
    """What is typed for a command of a list."""
    return command if words is None else command + words if words.startswith(" ") else words


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def typed(name):
    """The lines of a page's shell blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page(name), re.M | re.S)
    return [re.sub(r"\s+#.*", "", line).strip() for line in "".join(blocks).splitlines() if line.strip()]


def said(name):
    """The commands inside of a page's sentences."""
    sentences = re.sub(r"^```.*?^```$", "", page(name), flags=re.M | re.S)
    quoted = (" ".join(words.split()) for words in re.findall(r"`([^`]+)`", sentences))
    return [words for words in quoted if PROGRAM.match(words) and words not in DATA]


def flags_of(command):
    return re.findall(r"(?<!\S)--[a-z-]+", command)


class Lists(unittest.TestCase):
    def test_each_command_of_the_pages_is_in_one_list(self):
        # Blocks of the first hour are typed by first_hour_test, whatever they hold.
        found = set(typed("README.md")) | {words for name in ("README.md", "docs/first_hour.md", "docs/symptoms.md") for words in said(name)}
        listed = [*README, *SAID, *ELSEWHERE]
        self.assertEqual(found - set(listed), set(), "no test runs these")
        self.assertEqual(set(listed) - found, set(), "no page has these")
        self.assertEqual(len(listed), len(set(listed)))

    def test_a_command_that_nobody_knows_is_found(self):
        for words in ("memctl kill JOB", "trainer run --no-such", "scripts/nothing", "build/bin/memserver fly"):
            self.assertTrue(PROGRAM.match(words), words)
            self.assertNotIn(words, {*README, *SAID, *ELSEWHERE})

    def test_what_is_typed_is_the_command_of_the_page(self):
        for command, words in {**README, **SAID}.items():
            self.assertEqual(set(flags_of(command)) - set(flags_of(typed_for(command, words))), set(), command)

    def test_others_are_run_where_the_list_says(self):
        for command, (file, words) in ELSEWHERE.items():
            self.assertFalse(file.endswith(".md"), command + ": a page runs nothing")
            self.assertIn(words, page(file), command)


class Pictures(unittest.TestCase):
    def test_those_of_readme_have_the_colours_of_the_palette(self):
        inks = set(re.findall(r'"(#[0-9a-f]{6})"', page("base/picture/palette.cpp")))
        self.assertGreater(len(inks), 20)
        pictures = re.findall(r"!\[[^]]+\]\((\S+)\)", page("README.md"))
        self.assertEqual(pictures, ["docs/data_flow.svg", "docs/pictures/residency.svg"])
        for name in pictures:
            self.assertEqual(set(re.findall(r"#[0-9a-f]{6}", page(name))) - inks, set(), name)


class InAClone(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tidepool-commands-")
        self.addCleanup(self.folder.cleanup)
        self.clone = os.path.join(self.folder.name, "clone")
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), self.clone], check=True, timeout=60)
        os.mkdir(os.path.join(self.clone, "build"))
        os.symlink(BIN, os.path.join(self.clone, "build", "bin"))
        os.mkdir(os.path.join(self.folder.name, "tmp"))

    def shell(self, lines):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("TIDEPOOL_")}
        variables.update(TIDEPOOL_SOCKET_DIR=os.path.join(self.folder.name, "run"), TMPDIR=os.path.join(self.folder.name, "tmp"), PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
        # Whatever a failed command leaves running ends with the folder that it serves.
        script = "trap 'memctl shutdown --yes --end-jobs > /dev/null 2>&1 || true; kill $(jobs -p) 2> /dev/null || true' EXIT\n"
        script += "".join(f"echo {'--- ' + line!r}\n{line}\n" for line in lines)
        process = subprocess.Popen(["bash", "-eu", "-c", script], cwd=self.clone, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        try:
            told = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            told = process.communicate()[0]
        self.assertEqual(process.returncode, 0, told)
        return told

    def test_readme_and_the_commands_in_sentences(self):
        job = ["trainer run --job JOB --preset tiny --steps 1000000 > job.log 2>&1 &", "timeout 120 bash -c 'until memctl ps --job JOB 2> /dev/null | grep -q training; do sleep 0.1; done'"]
        lines = [typed_for(*each) for each in README.items()] + job + [typed_for(*each) for each in SAID.items()]
        told = self.shell(lines)
        for path in ("run.toml", "hf/config.json", "step.json", "run.html"):
            self.assertTrue(os.path.exists(os.path.join(self.clone, path)), path + "\n" + told)


if __name__ == "__main__":
    unittest.main()
