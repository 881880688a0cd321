"""Fused experts of transformers, cut into single ones: the same losses and weights, only those with tokens are fetched, and files as before."""

import copy
import json
import os
import pathlib
import pickle
import sys
import tempfile
import unittest

import torch
import transformers
from torch import nn

import common
import tidepool
import tiny_models
from tidepool.experts import Experts

EXPERTS, STEPS = 16, 6
ADAMW = {"lr": 1e-3}  # without clipping: a norm of other tensors is rounded otherwise


def model_of(kind: str) -> nn.Module:
    """Two layers of 16 experts; transformers' own loop over those that were hit."""
    torch.manual_seed(0)
    if kind == "mixtral":
        config = transformers.MixtralConfig(**tiny_models.DECODER, num_local_experts=EXPERTS, num_experts_per_tok=1)
        model = transformers.MixtralForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(**tiny_models.DECODER, head_dim=16, num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=24)
        model = transformers.Qwen3MoeForCausalLM(config)
    model.set_experts_implementation("eager")
    return model.train()


def batches_of(size: int):
    """A few tokens, so that most experts have none."""
    return tiny_models.batches("mixtral", STEPS, size=size, length=4)


def own_share(batch, rank, world):
    size = batch["input_ids"].shape[0] // world
    return {name: tensor[rank * size : (rank + 1) * size] for name, tensor in batch.items()}


def fused(weights):
    """The weights of cut experts by the names that transformers has."""
    out, parts = {}, {}
    for name, value in weights.items():
        before, found, behind = name.partition(".experts.")
        if found and behind[0].isdigit():
            number, part = behind.split(".")
            parts.setdefault(f"{before}.experts.{part}", {})[int(number)] = value
        else:
            out[name] = value
    return {**out, **{name: torch.stack([of[number] for number in range(EXPERTS)]) for name, of in parts.items()}}


def train(model, batches, cut=True, routed=True, **options):
    """The run, and the bytes that came to the rCache."""
    common.wrap(tidepool.cut_experts(model) if cut else model, **options)
    optimizer = tidepool.optim.AdamW(model.parameters(), **ADAMW)
    for layer in model.modules() if not routed else ():
        if isinstance(layer, Experts):
            layer.routing = None
    run = common.Run([], [], {})
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(loss.item())
        run.norms.append(optimizer.last_grad_norm)
    bytes_moved = tidepool.memory(model).bytes_to_device
    with tidepool.gathered(model) as values:
        run.weights = fused(dict(values))
    tidepool.close(model)
    return run, bytes_moved


def train_here(out: str) -> None:
    """On each of two ranks: half of each batch."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run, _ = train(model_of("mixtral"), [own_share(batch, rank, world) for batch in batches_of(2)], chunk_size="32KiB")
    torch.save(run.weights, os.path.join(out, f"weights-{rank}.pt"))
    with open(os.path.join(out, f"told-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump({"losses": run.losses, "norms": run.norms}, file)


class CutExperts(unittest.TestCase, common.Checks):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_they_train_as_fused_ones_and_only_those_with_tokens_travel(self):
        for kind in ("mixtral", "qwen3_moe"):
            for example in (None, batches_of(1)[0]):
                with self.subTest(kind, example=example is not None):
                    model = model_of(kind)
                    options = {"chunk_size": "32KiB", "example": example}
                    got, moved = train(copy.deepcopy(model), batches_of(1), **options)
                    all_of_them, most = train(copy.deepcopy(model), batches_of(1), routed=False, **options)
                    whole, _ = train(model, batches_of(1), cut=False, rcache="100%")
                    self.assert_equal_bits(got, all_of_them)
                    self.assertEqual(got.losses, whole.losses)
                    self.assertEqual(common.farthest(got.weights, whole.weights), 0)
                    self.assert_learned(got)
                    self.assertLess(moved, 0.85 * most)

    def test_ranks_leave_out_what_none_of_them_has_tokens_for(self):
        common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--train", self.folder)
        told = [json.loads(pathlib.Path(self.folder, f"told-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
        want, _ = train(model_of("mixtral"), batches_of(2), cut=False, rcache="100%")
        weights = [torch.load(os.path.join(self.folder, f"weights-{rank}.pt")) for rank in range(2)]
        self.assertEqual(common.farthest(*weights), 0)
        losses = [(a + b) / 2 for a, b in zip(told[0]["losses"], told[1]["losses"])]
        # Sums over ranks are formed in another order, and Adam divides by roots of small gradients.
        for got, loss in zip(losses, want.losses):
            self.assertAlmostEqual(got, loss, places=4)
        self.assertLess(common.farthest(weights[0], want.weights), 2e-4)

    def test_they_are_evaluated_accumulated_and_recomputed(self):
        model = model_of("mixtral")
        model.gradient_checkpointing_enable()
        tidepool.cut_experts(model)
        common.wrap(model, chunk_size="32KiB", gradient_accumulation_steps=2)
        optimizer = tidepool.optim.AdamW(model.parameters(), **ADAMW)
        plain = common.wrap(model_of("mixtral"), rcache="100%", gradient_accumulation_steps=2)
        other = tidepool.optim.AdamW(plain.parameters(), **ADAMW)
        for number, batch in enumerate(batches_of(1)):
            with torch.no_grad():
                self.assertEqual(model(**batch).loss.item(), plain(**batch).loss.item())
            for trained in (model, plain):
                (trained(**batch).loss / 2).backward()
            if number % 2 == 1:
                optimizer.step()
                other.step()
        with tidepool.gathered(model) as values, tidepool.gathered(plain) as others:
            self.assertEqual(common.farthest(fused(dict(values)), dict(others)), 0)
        tidepool.close(model)
        tidepool.close(plain)

    def test_what_is_saved_is_a_model_of_transformers(self):
        model = model_of("qwen3_moe")
        common.wrap(tidepool.cut_experts(model))
        tidepool.optim.AdamW(model.parameters(), **ADAMW)
        tidepool.save_pretrained(model, self.folder)
        again, told = type(model).from_pretrained(self.folder, output_loading_info=True)
        self.assertFalse(any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told)
        self.assertEqual(common.farthest(dict(again.named_parameters()), dict(model_of("qwen3_moe").named_parameters())), 0)
        routing = model.model.layers[0].mlp.experts.routing
        self.assertIsNotNone(routing)
        self.assertIsNone(pickle.loads(pickle.dumps(routing)), "a copy of the model has no part in the job")
        tidepool.close(model)

    def test_a_plain_model_with_cut_experts_computes_the_same(self):
        model = model_of("mixtral").eval()
        (batch, *_) = batches_of(2)
        with torch.no_grad():
            want = model(**batch).logits
            self.assertTrue(torch.equal(tidepool.cut_experts(model)(**batch).logits, want))

    def test_what_cannot_be_cut_is_refused(self):
        with self.assertRaisesRegex(tidepool.UsageError, "Sequential has no fused experts"):
            tidepool.cut_experts(common.mlp())
        with torch.device("meta"):
            empty = model_of("mixtral")
        with self.assertRaisesRegex(tidepool.UsageError, "have no values yet"):
            tidepool.cut_experts(empty)
        wrapped = common.wrap(model_of("mixtral"))
        with self.assertRaisesRegex(tidepool.UsageError, "wrapped already"):
            tidepool.cut_experts(wrapped)
        again = tidepool.cut_experts(model_of("mixtral"))
        with self.assertRaisesRegex(tidepool.UsageError, "no fused experts"):
            tidepool.cut_experts(again)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_here(sys.argv[2])
    else:
        sys.exit(unittest.main(verbosity=2))
