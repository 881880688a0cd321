"""Models of transformers, trained through memserver, against plain torch: losses, norms and weights."""

import sys
import unittest

import torch

import common
import tidepool
import tiny_models

STEPS = 6
# An eps of 1e-8 would show rounding errors of gradients that are zero but for these (the keys' biases): Adam divides them by their own size.
ADAMW = {"lr": 1e-3, "weight_decay": 0.1, "eps": 1e-6}


class Parity(unittest.TestCase, common.Checks):
    def run_both(self, name, steps=STEPS, accumulate=1, prepare=None, schedule=None):
        plain, ours = common.twins(tiny_models.make(name))
        batches = tiny_models.batches(name, steps * accumulate)
        for model in (plain, ours):
            if prepare:
                prepare(model)
        begun = {key: parameter.detach().clone() for key, parameter in plain.named_parameters()}
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), **ADAMW), batches, common.model_loss,
                                  accumulate=accumulate, schedule=schedule)  # fmt: skip

        common.wrap(ours, gradient_accumulation_steps=accumulate)
        optimizer = tidepool.optim.AdamW(ours.parameters(), max_grad_norm=1.0, **ADAMW)
        got = common.train(ours, optimizer, batches, common.model_loss, accumulate=accumulate, schedule=schedule)
        self.assertGreater(common.farthest(got.weights, begun), 1e-4)
        self.assert_same_run(got, want)

    def test_accumulates_two_backwards(self):
        for name in ("gpt2", "llama"):
            with self.subTest(name):
                self.run_both(name, steps=3, accumulate=2)

    def test_checkpoints_activations(self):
        for name in ("gpt2", "llama"):
            for reentrant in (False, True):
                with self.subTest(name, reentrant=reentrant):
                    self.run_both(name, steps=3, prepare=lambda model: checkpoint(model, reentrant))

    def test_follows_a_schedule(self):
        def warmup(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))

        self.run_both("gpt2", schedule=warmup)


def checkpoint(model, reentrant):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()


def add_model(name):
    setattr(Parity, f"test_{name}", lambda self: self.run_both(name))


for each in tiny_models.MODELS:
    add_model(each)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
