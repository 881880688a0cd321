"""`trainer run --from` and `trainer export`: a model that transformers saved is trained on with its weights and losses, and comes back to transformers."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from typing import Dict

import numpy
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

CONTEXT = 16
TOKEN = 7
LAYERS = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # Conv1D there, linear here


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=320, n_positions=CONTEXT, n_layer=2, n_head=2, n_embd=32)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # so that no bias is zero
    return model


def as_ours(model: GPT2LMHeadModel) -> Dict[str, torch.Tensor]:
    weights = {name.removeprefix("transformer."): value.detach() for name, value in model.named_parameters()}
    return {name: value.T if name.endswith(LAYERS) else value for name, value in weights.items()}


class From(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="tidepool-from-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # One id alone, so that each sequence is the same, whichever is drawn.
        numpy.full(64 * CONTEXT, TOKEN, dtype=numpy.uint16).tofile(self.folder / "train.bin")
        numpy.full(16 * CONTEXT, TOKEN, dtype=numpy.uint16).tofile(self.folder / "val.bin")

    def train(self, source: pathlib.Path, name: str, *more: str) -> Dict[str, torch.Tensor]:
        """Weights after one step at a rate of 0."""
        out = self.folder / name
        words = [os.path.join(os.environ["TIDEPOOL_BIN"], "trainer"), "run", "--standalone", "--from", str(source)]
        words += ["--data", str(self.folder), "--batch", "2", "--steps", "1", "--lr", "0", "--min-lr", "0", "--warmup", "0"]
        words += ["--eval-every", "0", "--rcache", "60%", "--out", str(out), "--save", str(out / "weights"), *more]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"from      {source}", done.stdout + done.stderr)
        return load_file(out / "weights" / "model.safetensors")

    def loss_of(self, name: str) -> float:
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return next(line["loss"] for line in lines if "loss" in line)

    def test_a_model_of_transformers_is_trained_on(self) -> None:
        model = gpt2()
        want = as_ours(model)
        ids = torch.full((1, CONTEXT), TOKEN)
        with torch.no_grad():
            logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits[0], ids[0]).item()

        for name, options in {"whole": {}, "shards": {"max_shard_size": "30KB"}}.items():
            with self.subTest(name):
                model.save_pretrained(self.folder / f"hf-{name}", **options)
                self.assertEqual((self.folder / f"hf-{name}" / "model.safetensors.index.json").exists(), name == "shards")
                got = self.train(self.folder / f"hf-{name}", name)
                self.assertEqual(got.keys(), want.keys())
                for key, value in want.items():
                    self.assertTrue(torch.equal(got[key], value), key)
                self.assertLess(abs(self.loss_of(name) - loss), 2e-6 * max(1.0, loss))

    def test_bf16_files_and_our_own_are_trained_on(self) -> None:
        model = gpt2().to(torch.bfloat16)
        want = {name: value.float() for name, value in as_ours(model).items()}
        model.save_pretrained(self.folder / "hf")
        first = self.train(self.folder / "hf", "first", "--dtype", "bf16")
        again = self.train(self.folder / "first" / "weights", "again")
        for key, value in want.items():
            self.assertTrue(torch.equal(first[key], value), key)
            self.assertTrue(torch.equal(again[key], value), key)

    def test_what_is_exported_is_a_model_of_transformers(self) -> None:
        model = gpt2()
        model.save_pretrained(self.folder / "hf")
        self.train(self.folder / "hf", "run")
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype):
                out = self.folder / f"out-{dtype}"
                words = [str(self.folder / "run" / "weights"), str(out), "--dtype", "fp32" if dtype == torch.float32 else "bf16"]
                subprocess.run([os.path.join(os.environ["TIDEPOOL_BIN"], "trainer"), "export", *words], check=True, timeout=60)
                got, info = GPT2LMHeadModel.from_pretrained(out, output_loading_info=True, dtype="auto")
                self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
                self.assertEqual(got.dtype, dtype)
                for name, value in model.state_dict().items():
                    self.assertTrue(torch.equal(got.state_dict()[name], value.to(dtype)), name)


if __name__ == "__main__":
    unittest.main()
