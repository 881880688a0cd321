"""Models of transformers, trained through memserver, against plain torch with an optimizer whose arithmetic is that of the server's scalar reference: equal bits."""

import math
import sys
import unittest

import numpy
import torch

import common
import tidepool
import tiny_models

STEPS = 5
NUMBERS = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def f32(number: float) -> float:
    """Rounded once to fp32: a factor of the update, computed in double."""
    return float(numpy.float32(number))


class ReferenceAdamW(torch.optim.Optimizer):
    """AdamW, one rounding to fp32 for each operation (optim/rules/adam.h), behind clipping by a global norm of sums in double."""

    def __init__(self, params, lr, betas, eps, weight_decay, max_grad_norm):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.max_grad_norm, self.steps, self.last_grad_norm = max_grad_norm, 0, 0.0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        self.last_grad_norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients))
        scale = f32(min(1.0, self.max_grad_norm / (self.last_grad_norm + 1e-6))) if self.max_grad_norm > 0 else 1.0
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], f32(group["lr"])
            step_size = f32(lr / (1 - beta1**self.steps))
            inverse_root = f32(1 / math.sqrt(1 - beta2**self.steps))
            decay = f32(1 - lr * f32(group["weight_decay"]))
            for parameter in group["params"]:
                state = self.state[parameter]
                m, v = (state.setdefault(name, torch.zeros_like(parameter)) for name in ("m", "v"))
                gradient = parameter.grad * scale
                parameter.mul_(decay)
                m.mul_(f32(beta1)).add_(gradient * f32(1 - beta1))
                v.mul_(f32(beta2)).add_(gradient * gradient * f32(1 - beta2))
                root = torch.from_numpy(numpy.sqrt(v.numpy()))  # rounded once, as IEEE 754 has it; torch's is MKL's, which may be an ulp off
                parameter.sub_((m * step_size) / (root * inverse_root + f32(group["eps"])))


def train_reference(model, batches, accumulate, max_grad_norm):
    optimizer = ReferenceAdamW(model.parameters(), max_grad_norm=max_grad_norm, **NUMBERS)
    run = common.Run([], [], {})
    for index, batch in enumerate(batches, 1):
        loss = common.model_loss(model, batch) / accumulate
        loss.backward()
        run.losses.append(loss.item())
        if index % accumulate == 0:
            optimizer.step()
            run.norms.append(optimizer.last_grad_norm)
            optimizer.zero_grad()
    run.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return run


class Bits(unittest.TestCase, common.Checks):
    def run_both(self, name, accumulate=1, max_grad_norm=1.0):
        plain, ours = common.twins(tiny_models.make(name))
        batches = tiny_models.batches(name, STEPS * accumulate)
        want = train_reference(plain, batches, accumulate, max_grad_norm)
        common.wrap(ours, gradient_accumulation_steps=accumulate)
        optimizer = tidepool.optim.AdamW(ours.parameters(), max_grad_norm=max_grad_norm, **NUMBERS)
        got = common.train(ours, optimizer, batches, common.model_loss, accumulate=accumulate)
        self.assert_learned(got)
        self.assertEqual(got.losses, want.losses)
        self.assertEqual(common.farthest(got.weights, want.weights), 0)
        for ours_norm, norm in zip(got.norms, want.norms):  # sums in double, in another order
            self.assertLess(abs(ours_norm - norm), 1e-12 * norm)

    def test_accumulates_two_backwards(self):
        self.run_both("gpt2", accumulate=2)

    def test_does_not_clip(self):
        self.run_both("llama", max_grad_norm=0.0)


def add_model(name):
    setattr(Bits, f"test_{name}", lambda self: self.run_both(name))


for each in tiny_models.MODELS:
    add_model(each)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
