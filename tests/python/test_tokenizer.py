"""`trainer tokenize` gives the ids of transformers' own GPT-2 tokenizer, and a text is trained on and sampled with the tokenizer beside the model."""

import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
COUNTING = "one two three four five six seven eight nine ten. "
TRAINER = os.path.join(os.environ.get("TIDEPOOL_BIN", ""), "trainer")
# What pieces of text are drawn from: several scripts, digits of several scripts, spaces of several kinds, signs, marks, emoji.
PARTS = ["the", " The", "it's", "we'll", "I'D", "don’t", "123", "٣٤", "Ⅳ", "½", "naïve", "e\u0301", "Ünï", "中文字", "日本 語", "हिन्दी", "עברית", " ", "  ", "   ", "\t", "\n", "\r\n",
         "\u00a0", "\u2003", "\u3000", "\u200b", "...", "!?", "--", "$", "😀", "👩‍🔬", "_", "<|", END, "'", "''s", "\u0000", "a" * 40, "ﬁ", "\u1680x"]  # fmt: skip


def texts(count: int):
    dice = random.Random(1)
    for _ in range(count):
        yield "".join(dice.choice(PARTS) for _ in range(dice.randrange(1, 40)))


def make_tokenizer(folder: pathlib.Path) -> PreTrainedTokenizerFast:
    """A small one of GPT-2's kind, trained on text of the same parts."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    bare.train_from_iterator([COUNTING * 20] + [text.replace(END, "") for text in texts(400)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=END)
    tokenizer.save_pretrained(folder)
    return tokenizer


class Tokenize(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="tidepool-tokens-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_trainer(self, *words: str) -> str:
        done = subprocess.run([TRAINER, *words], capture_output=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return (done.stdout + done.stderr).decode(errors="replace")

    def ids_of(self, text: str, tokenizer: pathlib.Path) -> "list[int]":
        (self.folder / "text").write_bytes(text.encode())
        self.run_trainer("tokenize", "--tokenizer", str(tokenizer), str(self.folder / "text"), str(self.folder / "ids.bin"))
        data = (self.folder / "ids.bin").read_bytes()
        self.assertEqual(numpy.frombuffer(data[:12], numpy.int32).tolist()[:2], [20240520, 1])
        return numpy.frombuffer(data[1024:], numpy.uint16).tolist()

    def test_ids_are_those_of_transformers(self) -> None:
        tokenizer = make_tokenizer(self.folder / "tokenizer")
        # One file for all: a process each would take a minute. Each text ends with the token that nothing is merged across.
        whole = END.join(text.replace("\0", "") for text in texts(2000))
        want = tokenizer(whole)["input_ids"]
        self.assertEqual(self.ids_of(whole, self.folder / "tokenizer"), want)
        self.assertGreater(max(want), 500)
        self.assertLess(len(want), len(whole.encode()) * 0.8)

    def test_the_two_files_of_older_releases_are_the_same_tokenizer(self) -> None:
        tokenizer = make_tokenizer(self.folder / "tokenizer")
        (self.folder / "pair").mkdir()
        tokenizer.backend_tokenizer.model.save(str(self.folder / "pair"))
        vocab = tokenizer.get_vocab()
        self.assertIn(END, vocab)
        text = "".join(texts(200)).replace("\0", "")
        self.assertEqual(self.ids_of(text, self.folder / "pair"), tokenizer(text)["input_ids"])

    def test_text_is_trained_on_with_the_tokenizer_beside_the_model(self) -> None:
        tokenizer = make_tokenizer(self.folder / "hf")
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_layer=2, n_head=2, n_embd=32)).save_pretrained(self.folder / "hf")
        (self.folder / "data.txt").write_text(COUNTING * 200)

        out = self.folder / "out"
        words = ["run", "--standalone", "--from", str(self.folder / "hf"), "--data", str(self.folder / "data.txt"), "--rcache", "60%", "--batch", "4"]
        said = self.run_trainer(*words, "--steps", "60", "--lr", "0.01", "--eval-every", "0", "--save", str(out), "--verbose")
        self.assertIn("tokenized", said)
        sampled = self.run_trainer("sample", str(out), "one two three", "--tokens", "8", "--temperature", "0")
        self.assertIn("one two three four five", sampled)

        # Two prompts, then the last text again.
        words = [TRAINER, "sample", str(out), "-i", "--tokens", "3", "--temperature", "0"]
        done = subprocess.run(words, input="one two three\nthree four five\n\n", capture_output=True, text=True, timeout=120, check=True)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 3, done.stdout)
        self.assertEqual(lines[0].split()[:2], ["four", "five"])
        self.assertEqual((lines[1] + lines[2]).split()[:4], ["six", "seven", "eight", "nine"])
        refused = subprocess.run([TRAINER, "sample", str(out)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("give a prompt, or -i", refused.stderr)

        self.run_trainer("export", str(out), str(self.folder / "back"))
        back = AutoTokenizer.from_pretrained(self.folder / "back")
        self.assertEqual(back("one two")["input_ids"], tokenizer("one two")["input_ids"])


if __name__ == "__main__":
    unittest.main()
