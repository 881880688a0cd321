"""A Mixtral of transformers in `trainer`: its weights, losses with the router's, steps, and back again."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from typing import Dict, List

import numpy
import torch
from safetensors.torch import load_file
from transformers import MixtralConfig, MixtralForCausalLM

CONTEXT = 48
EXPERTS = 4


def mixtral(layers: int = 2, aux: float = 0.0) -> MixtralForCausalLM:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=320,
        max_position_embeddings=CONTEXT,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_size=40,
        intermediate_size=56,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        router_aux_loss_coef=aux,
        output_router_logits=aux > 0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def as_files(model: MixtralForCausalLM) -> Dict[str, torch.Tensor]:
    """The fused experts of transformers by the names that its files have."""
    named = {}
    for name, value in model.state_dict().items():
        before, found, part = name.partition(".mlp.")
        path = f"{before}.block_sparse_moe."
        for expert in range(EXPERTS):
            if part == "experts.gate_up_proj":
                named[f"{path}experts.{expert}.w1.weight"], named[f"{path}experts.{expert}.w3.weight"] = value[expert].chunk(2)
            elif part == "experts.down_proj":
                named[f"{path}experts.{expert}.w2.weight"] = value[expert]
        if not found:
            named[name] = value
        elif part == "gate.weight":
            named[f"{path}gate.weight"] = value
    return named


class Moe(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="tidepool-moe-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ids = numpy.random.default_rng(3).integers(0, 256, CONTEXT + 1).astype(numpy.uint16)
        self.ids.tofile(self.folder / "train.bin")  # one sequence alone
        self.ids.tofile(self.folder / "val.bin")

    def trainer(self, *words: str, code: int = 0) -> str:
        program = os.path.join(os.environ["TIDEPOOL_BIN"], "trainer")
        done = subprocess.run([program, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return (done.stdout + done.stderr).replace("\n          ", " ")  # long lines of errors are folded

    def train(self, name: str, *more: str, steps: int = 10, rate: float = 1e-3) -> Dict[str, torch.Tensor]:
        out = self.folder / name
        words = ["run", "--standalone", "--data", str(self.folder), "--batch", "1", "--steps", str(steps), "--warmup", "0", "--lr", str(rate)]
        words += ["--schedule", "constant", "--clip", "0", "--weight-decay", "0", "--beta2", "0.999", "--eval-every", "0", "--rcache", "40%"]
        self.trainer(*words, "--out", str(out), "--save", str(out / "weights"), *more)
        return load_file(out / "weights" / "model.safetensors")

    def losses_of(self, name: str) -> List[float]:
        lines = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def reference(self, model: MixtralForCausalLM) -> List[float]:
        """Losses of ten steps; the model is trained."""
        inputs, targets = (torch.from_numpy(part.astype(numpy.int64)) for part in (self.ids[:-1], self.ids[1:]))
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            out = model(inputs.view(1, -1))
            loss = torch.nn.functional.cross_entropy(out.logits[0], targets)
            if model.config.output_router_logits:
                weights = [torch.softmax(logits.float(), -1) for logits in out.router_logits]
                for probabilities in weights:  # the auxiliary loss, of the one block
                    hits = torch.nn.functional.one_hot(probabilities.topk(2, -1).indices, EXPERTS).float().sum(1).mean(0)
                    loss = loss + model.config.router_aux_loss_coef * EXPERTS * (hits * probabilities.mean(0)).sum()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        return losses

    def test_it_learns_as_transformers_does(self) -> None:
        for name, model in {"two": mixtral(), "aux": mixtral(layers=1, aux=0.5)}.items():
            with self.subTest(name):
                model.save_pretrained(self.folder / f"hf-{name}")
                start = self.train(f"{name}-start", "--from", str(self.folder / f"hf-{name}"), steps=1, rate=0)
                want = as_files(model)
                self.assertEqual(start.keys(), want.keys())
                for key, value in want.items():
                    self.assertTrue(torch.equal(start[key], value), key)

                got = self.train(name, "--from", str(self.folder / f"hf-{name}"))
                for ours, theirs in zip(self.losses_of(name), self.reference(model)):
                    self.assertLess(abs(ours - theirs), 2e-5 * max(1.0, theirs))
                for key, value in as_files(model).items():
                    self.assertLess((got[key] - value).abs().max().item(), 3e-4, key)

    def test_what_is_made_here_is_a_model_of_transformers(self) -> None:
        self.train("made", "--preset", "moe-tiny", "--context", "32", steps=3)
        self.trainer("export", str(self.folder / "made" / "weights"), str(self.folder / "hf"))
        got, info = MixtralForCausalLM.from_pretrained(self.folder / "hf", output_loading_info=True, dtype="auto")
        self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
        ours = load_file(self.folder / "made" / "weights" / "model.safetensors")
        for key, value in as_files(got).items():
            self.assertTrue(torch.equal(ours[key], value), key)
        words = ["sample", str(self.folder / "made" / "weights"), "Once", "--tokens", "12", "--temperature", "0"]
        text = subprocess.run([os.path.join(os.environ["TIDEPOOL_BIN"], "trainer"), *words], capture_output=True, timeout=60, check=True).stdout
        ids = torch.tensor([list(b"Once")])
        added = got.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)[0, 4:]
        self.assertEqual(text, b"Once" + bytes(added.tolist()) + b"\n")

    def test_experts_in_some_blocks_go_on_and_are_not_exported(self) -> None:
        moe = ("--moe", "every=2,experts=8,top-k=2,width=32,capacity=1.5,z=0.001")
        self.train("some", "--preset", "llama-tiny", "--context", "32", *moe, steps=3)
        self.train("on", "--from", str(self.folder / "some" / "weights"), "--context", "32", "--moe", "capacity=1", steps=3)
        told = self.trainer("export", str(self.folder / "some" / "weights"), str(self.folder / "hf"), code=2)
        self.assertIn("transformers has no model with 8 experts in one of 2 blocks", told)

    def test_blocks_with_other_experts_each_go_on_and_are_not_exported(self) -> None:
        file = self.folder / "layers.txt"
        file.write_text("layers=0, experts=4, width=24, residual=yes\nlayers=1, experts=6, top-k=1, width=16\n")
        save = str(self.folder / "layers" / "weights")
        start = self.train("layers", "--preset", "llama-tiny", "--context", "32", "--moe", str(file), steps=1, rate=0)
        self.assertIn("model.layers.0.mlp.up_proj.weight", start)
        self.assertEqual(start["model.layers.1.block_sparse_moe.gate.weight"].shape[0], 6)
        on = self.train("layers-on", "--from", save, "--context", "32", "--moe", "capacity=1.5", steps=1, rate=0)
        for key, value in start.items():
            self.assertTrue(torch.equal(on[key], value), key)
        self.assertIn("transformers has no model with block 0: 4 experts", self.trainer("export", save, str(self.folder / "hf"), code=2))
        file.write_text("layers=0-1, experts=4, width=24, residual=yes\n")
        told = self.trainer("run", "--dry-run", "--from", save, "--moe", str(file), code=2)
        self.assertIn("have block 0: 4 experts, 2 a token, beside the MLP, dropless; block 1: 6 experts", told)

    def test_router_logits_that_are_not_numbers_end_the_run(self) -> None:
        model = mixtral()
        with torch.no_grad():
            model.model.layers[1].mlp.gate.weight[2, 3] = float("nan")
        model.save_pretrained(self.folder / "hf")
        words = ["run", "--standalone", "--data", str(self.folder), "--batch", "1", "--steps", "3", "--eval-every", "0", "--from", str(self.folder / "hf")]
        told = self.trainer(*words, code=22)
        self.assertIn("48 router logits of model.layers.1.block_sparse_moe are not numbers, in step 1", told)
        self.assertNotIn("frame #", told)

    def test_experts_that_ranks_share_learn_as_those_of_one_process(self) -> None:
        """Four ranks that have all experts, share them by two, and by four: data groups of four, two and one."""
        ids = numpy.tile(self.ids[:CONTEXT], 80)
        ids.tofile(self.folder / "train.bin")
        ids[:400].tofile(self.folder / "val.bin")
        moe = "every=2,experts=8,top-k=2,width=32,aux=0"
        words = ["run", "--standalone", "--data", str(self.folder), "--preset", "llama-tiny", "--context", "16", "--batch", "8", "--steps", "12", "--warmup", "0"]
        words += ["--lr", "3e-3", "--eval-every", "6", "--eval-batches", "1", "--rcache", "40%", "--chunk-size", "64KiB"]

        results = {}
        for name, ranks, ep, more in (("one", 1, 1, ()), ("4", 4, 4, ()), ("2", 4, 2, ("--checkpoint-activations",)), ("1", 4, 1, ()), ("again", 4, 4, ())):
            out = self.folder / f"ep-{name}"
            launch = ["launch", "-n", str(ranks), "--"] if ranks > 1 else []
            self.trainer(*launch, *words, "--moe", f"{moe},ep={ep}", "--out", str(out), "--save", str(out / "weights"), *more)
            results[name] = (self.losses_of(f"ep-{name}"), load_file(out / "weights" / "model.safetensors"))

        losses, weights = results["one"]
        self.assertLess(losses[-1], losses[0])
        for name in ("4", "2", "1"):
            with self.subTest(ep=name):
                for ours, theirs in zip(results[name][0], losses):
                    self.assertLess(abs(ours - theirs), 2e-6 * theirs)
                for key, value in weights.items():
                    self.assertLess((results[name][1][key] - value).abs().max().item(), 1e-4, key)
        self.assertEqual(results["4"][0], results["again"][0])
        for key, value in results["4"][1].items():
            self.assertTrue(torch.equal(results["again"][1][key], value), key)

    def test_bad_words_are_refused_before_anything_starts(self) -> None:
        self.train("some", "--preset", "moe-tiny", "--context", "32", steps=1)
        weights = str(self.folder / "some" / "weights")
        for words, text in (
            (("--preset", "small", "--moe", "experts=4"), "blocks of GPT-2's form"),
            (("--preset", "llama-tiny", "--moe", "experts=2,top-k=4"), "4 of 2 experts"),
            (("--preset", "llama-tiny", "--moe", "capacity=0,experts=4"), "capacity=0: a number above 0"),
            (("--preset", "llama-tiny", "--moe", "experts=4,every=3"), "has 2 blocks, and experts in each 3th"),
            (("--preset", "moe-tiny", "--moe", "ep=3"), "4 experts in a block, which 3 ranks cannot share"),
            (("--preset", "moe-tiny", "--moe", "ep=2"), "ep=2 ranks are to share experts, and there are 1"),
            (("--from", weights, "--moe", "experts=8"), "have 4 experts in each block"),
            (("--preset", "moe-tiny", "--pipeline", "2", "--accumulate", "2"), "--pipeline has no meaning for a model with experts"),
        ):
            with self.subTest(words):
                self.assertIn(text, self.trainer("run", "--dry-run", *words, code=2))


if __name__ == "__main__":
    unittest.main()
