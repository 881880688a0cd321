"""A Llama of transformers in `trainer`: run --from, sample and export, with its weights, losses and logits, and back again."""

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
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 48
VOCAB = 320
STRETCHED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def llama(tied: bool = False, stretched: bool = False, vocab: int = VOCAB) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab,
        max_position_embeddings=CONTEXT,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_size=40,
        intermediate_size=88,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        rope_parameters=STRETCHED if stretched else {"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # so that no norm is one
    return model


class Llama(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="tidepool-llama-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # The same CONTEXT ids again and again, so that each sequence is a turn of the same ring.
        self.ring = numpy.random.default_rng(3).integers(0, 256, CONTEXT).astype(numpy.uint16)
        numpy.tile(self.ring, 64).tofile(self.folder / "train.bin")
        numpy.tile(self.ring, 16).tofile(self.folder / "val.bin")

    def trainer(self, *words: str) -> str:
        program = os.path.join(os.environ["TIDEPOOL_BIN"], "trainer")
        done = subprocess.run([program, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def train(self, name: str, *more: str, steps: int = 1, rate: float = 0, batch: int = 2) -> Dict[str, torch.Tensor]:
        out = self.folder / name
        words = ["run", "--standalone", "--data", str(self.folder), "--steps", str(steps), "--warmup", "0", "--schedule", "constant", "--batch", str(batch)]
        words += ["--lr", str(rate), "--clip", "0", "--weight-decay", "0", "--eval-every", "0", "--rcache", "60%"]
        self.trainer(*words, "--out", str(out), "--save", str(out / "weights"), *more)
        return load_file(out / "weights" / "model.safetensors")

    def losses_of(self, name: str) -> list:
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def all_losses(self, model: LlamaForCausalLM) -> list:
        turns = torch.stack([torch.from_numpy(numpy.roll(self.ring, -turn).astype(numpy.int64)) for turn in range(CONTEXT)])
        with torch.no_grad():
            logits = model(turns).logits
        targets = torch.roll(turns, -1, 1)
        return [torch.nn.functional.cross_entropy(logits[i], targets[i]).item() for i in range(CONTEXT)]

    def test_a_model_of_transformers_is_trained_on(self) -> None:
        for name, model in {"own": llama(), "tied": llama(tied=True), "stretched": llama(stretched=True)}.items():
            with self.subTest(name):
                model.save_pretrained(self.folder / f"hf-{name}", **({"max_shard_size": "30KB"} if name == "own" else {}))
                got = self.train(name, "--from", str(self.folder / f"hf-{name}"))
                want = {key: value.detach() for key, value in model.named_parameters()}
                self.assertEqual(got.keys(), want.keys())
                for key, value in want.items():
                    self.assertTrue(torch.equal(got[key], value), key)

                # A batch is the mean of two turns of the ring.
                losses = self.all_losses(model)
                (loss,) = self.losses_of(name)
                distance = min(abs((a + b) / 2 - loss) for a in losses for b in losses)
                self.assertLess(distance, 2e-6 * loss)

    def test_it_learns_as_transformers_does(self) -> None:
        """Ten steps of AdamW on data that hold one sequence alone."""
        numpy.append(self.ring, self.ring[:1]).tofile(self.folder / "train.bin")
        model = llama()
        model.save_pretrained(self.folder / "hf")
        got = self.train("run", "--from", str(self.folder / "hf"), "--beta1", "0.9", "--beta2", "0.999", "--eps", "1e-8", steps=10, rate=1e-3, batch=1)
        ids = torch.from_numpy(self.ring.astype(numpy.int64)).view(1, -1)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(ids).logits[0], torch.roll(ids[0], -1))
            losses.append(loss.item())
            loss.backward()
            optimizer.step()

        for ours, theirs in zip(self.losses_of("run"), losses):
            self.assertLess(abs(ours - theirs), 2e-5 * max(1.0, theirs))
        for key, value in model.named_parameters():
            self.assertLess((got[key] - value.detach()).abs().max().item(), 2e-4, key)

    def test_what_is_exported_is_a_model_of_transformers(self) -> None:
        for name, model in {"own": llama(), "tied": llama(tied=True), "stretched": llama(stretched=True)}.items():
            model.save_pretrained(self.folder / f"hf-{name}")
            for dtype, short in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
                with self.subTest(name, dtype=short):
                    out = self.folder / f"out-{name}-{short}"
                    self.trainer("export", str(self.folder / f"hf-{name}"), str(out), "--dtype", short)
                    got, info = LlamaForCausalLM.from_pretrained(out, output_loading_info=True, dtype="auto")
                    self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
                    self.assertEqual(got.dtype, dtype)
                    for key, value in model.state_dict().items():
                        self.assertTrue(torch.equal(got.state_dict()[key], value.to(dtype)), key)
                    if dtype == torch.float32:
                        with torch.no_grad():
                            ids = torch.arange(CONTEXT).view(1, -1) % VOCAB
                            self.assertTrue(torch.equal(got(ids).logits, model(ids).logits))

    def test_a_model_made_here_is_one_of_transformers(self) -> None:
        """What --save writes is loaded without an export; both continue a text with the same bytes, so their logits agree."""
        text = "the sea, the sea"
        data = numpy.frombuffer((text + ". ").encode() * 300, dtype=numpy.uint8).astype(numpy.uint16)
        data.tofile(self.folder / "train.bin")
        data[:2000].tofile(self.folder / "val.bin")
        self.train("made", "--preset", "llama-tiny", "--context", "32", steps=60, rate=3e-3)
        model = LlamaForCausalLM.from_pretrained(self.folder / "made" / "weights")
        ids = torch.tensor([list(text.encode())])
        added = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0, eos_token_id=None)[0, ids.shape[1] :]
        words = ["sample", str(self.folder / "made" / "weights"), text, "--tokens", "24", "--temperature", "0"]
        self.assertEqual(self.trainer(*words).split("\n")[0].encode(), bytes(text.encode()) + bytes(added.tolist()))

    def test_adapters_are_trained_over_it_and_merged(self) -> None:
        model = llama()
        model.save_pretrained(self.folder / "hf")
        adapters = ["--base", str(self.folder / "hf"), "--lora-rank", "2", "--lora-targets", "attention"]
        out = self.folder / "lora"
        words = ["run", "--standalone", "--data", str(self.folder), "--batch", "2", "--steps", "20", "--lr", "1e-2", "--eval-every", "0"]
        self.trainer(*words, "--out", str(out), "--save", str(out / "weights"), *adapters)
        losses = self.losses_of("lora")
        self.assertLess(losses[-1], losses[0] - 0.1)
        self.trainer("export", str(out / "weights"), str(self.folder / "merged"))
        merged = LlamaForCausalLM.from_pretrained(self.folder / "merged")
        changed = [key for key, value in model.state_dict().items() if not torch.equal(merged.state_dict()[key], value)]
        self.assertEqual(len(changed), 2 * 4)
        self.assertTrue(all(".self_attn." in key for key in changed), changed)
        with torch.no_grad():
            ids = torch.from_numpy(self.ring.astype(numpy.int64)).view(1, -1)
            before, after = (torch.nn.functional.cross_entropy(m(ids).logits[0], torch.roll(ids[0], -1)) for m in (model, merged))
        self.assertLess(after, before - 0.1)

    def test_what_is_not_computed_is_refused(self) -> None:
        model = llama()
        model.save_pretrained(self.folder / "hf")
        config = json.loads((self.folder / "hf" / "config.json").read_text())
        program = os.path.join(os.environ["TIDEPOOL_BIN"], "trainer")
        for change, text in (
            ({"attention_bias": True}, "attention_bias is true"),
            ({"hidden_act": "gelu"}, "hidden_act is"),
            ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "type yarn"),
            ({"num_key_value_heads": 3}, "3 heads of keys for 4"),
            ({"num_key_value_heads": -1}, "0 heads of keys for 4"),
            ({"intermediate_size": 89}, "does not fit the model"),
        ):
            with self.subTest(text):
                (self.folder / "hf" / "config.json").write_text(json.dumps({**config, **change}))
                words = [program, "export", str(self.folder / "hf"), str(self.folder / "out")]
                done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(text, " ".join(done.stderr.split()))  # long lines are folded


if __name__ == "__main__":
    unittest.main()
