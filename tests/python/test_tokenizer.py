"""`trainer tokenize` gives the ids of transformers' own GPT-2 tokenizer, and a text is trained on and sampled with the tokenizer beside the model."""

import json
import os
import pathlib
import pty
import random
import subprocess
import tempfile
import unittest

import numpy
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_like_llama3(folder: pathlib.Path) -> PreTrainedTokenizerFast:
    """A small one with Llama 3's pattern of pieces, tokens that no merge makes, and a token before each text."""
    begin = "<|begin_of_text|>"
    bare = Tokenizer(models.BPE(ignore_merges=True))
    bare.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[begin, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    bare.train_from_iterator([COUNTING * 20] + [text.replace(END, "") for text in texts(400)], trainer)
    whole = json.loads(bare.to_str())
    whole["model"]["vocab"]["\u0120thousand"] = len(whole["model"]["vocab"])  # as a piece, though no merge makes it
    whole["model"]["ignore_merges"] = True
    bare = Tokenizer.from_str(json.dumps(whole))
    bare.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, bare.token_to_id(begin))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, bos_token=begin, eos_token=END)
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_like_llama2(folder: pathlib.Path, metaspace: bool) -> PreTrainedTokenizerFast:
    """A small one on letters with a token for each byte, in either form that transformers has saved Llama 2's in."""
    low = "\u2581"
    bare = Tokenizer(models.BPE())
    bare.normalizer = normalizers.Sequence([normalizers.Prepend(low), normalizers.Replace(" ", low)])
    bare.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # while it is trained: merges stay within words
    bare.train_from_iterator([COUNTING * 20] + ["".join(letter for letter in text if letter.isalnum() or letter == " ") for text in texts(100)], trainers.BpeTrainer(vocab_size=400, show_progress=False))
    whole = json.loads(bare.to_str())
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: number for number, token in enumerate(special)}
    for token in sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get):
        vocabulary.setdefault(token, len(vocabulary))
    whole["model"].update(vocab=vocabulary, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    whole["pre_tokenizer"] = {"type": "Metaspace", "replacement": low, "prepend_scheme": "first", "split": False} if metaspace else None
    if metaspace:
        whole["normalizer"] = None
    bare = Tokenizer.from_str(json.dumps(whole))
    bare.add_special_tokens(["<unk>", "<s>", "</s>"])
    bare.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
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

    def check_ids(self, tokenizer: PreTrainedTokenizerFast, folder: str, end: str) -> None:
        whole = end.join(text.replace("\0", "") for text in texts(1000)) + " a thousand thousand"
        want = tokenizer(whole, add_special_tokens=False)["input_ids"]
        self.assertEqual(self.ids_of(whole, self.folder / folder), want)
        self.assertGreater(len(set(want)), 150)

    def test_ids_of_llama_3s_kind_are_those_of_transformers(self) -> None:
        tokenizer = make_like_llama3(self.folder / "three")
        self.assertIn(tokenizer.get_vocab()["\u0120thousand"], tokenizer(" thousand")["input_ids"])
        self.check_ids(tokenizer, "three", END)

    def test_ids_of_llama_2s_kind_are_those_of_transformers_in_both_forms(self) -> None:
        for metaspace in (False, True):
            with self.subTest(metaspace=metaspace):
                folder = f"two-{metaspace}"
                tokenizer = make_like_llama2(self.folder / folder, metaspace)
                self.assertEqual(tokenizer("one")["input_ids"][0], 1)
                self.check_ids(tokenizer, folder, "</s>")

    def test_a_model_of_llamas_form_is_trained_and_sampled_with_its_tokenizer(self) -> None:
        for name, make in (("three", make_like_llama3), ("two", lambda folder: make_like_llama2(folder, True))):
            with self.subTest(kind=name):
                tokenizer = make(self.folder / name)
                torch.manual_seed(0)
                config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, hidden_size=32, intermediate_size=64)
                LlamaForCausalLM(config).save_pretrained(self.folder / name)
                (self.folder / "data.txt").write_text(COUNTING * 200)
                out = self.folder / (name + "-out")
                words = ["run", "--standalone", "--from", str(self.folder / name), "--data", str(self.folder / "data.txt"), "--rcache", "60%", "--batch", "4"]
                self.run_trainer(*words, "--steps", "60", "--lr", "0.01", "--eval-every", "0", "--save", str(out))
                self.assertIn("one two three four five", self.run_trainer("sample", str(out), "one two three", "--tokens", "8", "--temperature", "0"))

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
        # On a terminal the speed follows; in a file there is the text alone.
        ours, theirs = pty.openpty()
        subprocess.run(words[:3] + ["one two three", *words[4:]], stderr=theirs, stdout=subprocess.DEVNULL, timeout=60, check=True)
        self.assertRegex(os.read(ours, 1000).decode(), r"^3 tokens in [0-9.]+ s: [0-9]+ a second")
        for end in (ours, theirs):
            os.close(end)

        refused = subprocess.run([TRAINER, "sample", str(out)], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("give a prompt, or -i", refused.stderr)

        self.run_trainer("export", str(out), str(self.folder / "back"))
        back = AutoTokenizer.from_pretrained(self.folder / "back")
        self.assertEqual(back("one two")["input_ids"], tokenizer("one two")["input_ids"])


if __name__ == "__main__":
    unittest.main()
