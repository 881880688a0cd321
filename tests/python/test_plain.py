"""Plain torch modules: every update rule against torch's, parameter groups, schedules, looking at weights, evaluation in between."""

import ctypes
import gc
import json
import math
import pickle
import subprocess
import sys
import unittest

import torch
from torch import nn

import common
import tidepool
from tidepool import _library

STEPS = 6


class PlainLion(torch.optim.Optimizer):
    """Lion of Chen et al. 2023, algorithm 2, in a few lines."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.sub_(rate * (beta1 * momentum + (1 - beta1) * parameter.grad).sign())
                momentum.mul_(beta2).add_(parameter.grad, alpha=1 - beta2)


class Rules(unittest.TestCase, common.Checks):
    def run_both(self, make_plain, make_ours, clip=0.5, **more):
        plain, ours = common.twins(common.mlp())
        batches = common.mlp_batches(STEPS)
        want = common.train_plain(plain, make_plain(plain), batches, common.mlp_loss, clip=clip, **more)
        common.wrap(ours)
        got = common.train(ours, make_ours(ours), batches, common.mlp_loss, **more)
        self.assertGreater(common.farthest(got.weights, dict(common.mlp().named_parameters())), 1e-4)
        self.assert_same_run(got, want)

    def run_rule(self, name, plain=None, **numbers):
        plain = plain or getattr(torch.optim, name)
        self.run_both(
            lambda model: plain(model.parameters(), **numbers),
            lambda model: getattr(tidepool.optim, name)(model.parameters(), max_grad_norm=0.5, **numbers),
        )

    def test_adamw(self):
        self.run_rule("AdamW", lr=1e-2, weight_decay=0.1)

    def test_adam(self):
        self.run_rule("Adam", lr=1e-2, betas=(0.8, 0.95), weight_decay=0.01)

    def test_sgd(self):
        self.run_rule("SGD", lr=0.1, weight_decay=0.01)

    def test_sgd_with_nesterov_momentum(self):
        self.run_rule("SGD", lr=0.05, momentum=0.9, nesterov=True)

    def test_sgd_with_dampened_momentum(self):
        self.run_rule("SGD", lr=0.05, momentum=0.9, dampening=0.5)

    def test_adagrad(self):
        self.run_rule("Adagrad", lr=0.02, lr_decay=0.1, weight_decay=0.01)

    def test_lion(self):
        self.run_rule("Lion", plain=PlainLion, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)

    def test_defaults_are_torchs(self):
        for name in ("AdamW", "Adam", "SGD", "Adagrad"):
            with self.subTest(name):
                model = common.wrap(common.mlp())
                got = getattr(tidepool.optim, name)(model.parameters()).defaults
                want = getattr(torch.optim, name)([nn.Parameter(torch.zeros(1))]).defaults
                self.assertEqual(got, {key: want[key] for key in got})
                tidepool.close(model)

    def test_without_clipping(self):
        self.run_both(
            lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2), lambda model: tidepool.optim.AdamW(model.parameters(), lr=1e-2), clip=0
        )

    def test_groups_have_their_rates_and_decays(self):
        def groups(model):
            matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
            vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
            return [{"params": vectors, "weight_decay": 0.0, "lr": 2e-3}, {"params": matrices}]

        def schedule(optimizer):
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 3)  # the first step has a rate of zero

        self.run_both(
            lambda model: torch.optim.AdamW(groups(model), lr=1e-2, weight_decay=0.1),
            lambda model: tidepool.optim.AdamW(groups(model), lr=1e-2, weight_decay=0.1, max_grad_norm=0.5),
            schedule=schedule,
        )

    def test_schedules_of_torch(self):
        rates = torch.optim.lr_scheduler
        schedules = {
            "cosine": lambda optimizer: rates.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-4),
            "one cycle": lambda optimizer: rates.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1, cycle_momentum=False),
            "two after another": lambda optimizer: rates.SequentialLR(
                optimizer, [rates.LinearLR(optimizer, 0.1, total_iters=2), rates.ExponentialLR(optimizer, 0.9)], [2]
            ),
        }
        for name, schedule in schedules.items():
            with self.subTest(name):
                self.run_both(
                    lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
                    lambda model: tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5),
                    schedule=schedule,
                )


class Optimizer(unittest.TestCase):
    def setUp(self):
        self.model = common.wrap(common.mlp())
        self.optimizer = tidepool.optim.AdamW(self.model.parameters(), lr=1e-2, max_grad_norm=1.0)
        self.addCleanup(lambda: tidepool.close(self.model))

    def step(self, seed=1):
        (batch,) = common.mlp_batches(1, seed=seed)
        loss = common.mlp_loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def test_is_one_of_torch(self):
        self.assertIsInstance(self.optimizer, torch.optim.Optimizer)
        seen = []
        self.optimizer.register_step_post_hook(lambda *_: seen.append(self.optimizer.sealed_steps))
        self.step()
        self.assertEqual(seen, [1])
        self.assertEqual(self.optimizer.sealed_steps, tidepool.sealed_steps(self.model))

    def test_says_norm_and_whether_it_skipped(self):
        self.assertTrue(math.isnan(self.optimizer.last_grad_norm))
        self.step()
        self.assertGreater(self.optimizer.last_grad_norm, 0)
        self.assertFalse(self.optimizer.skipped)

    def test_gradients_are_given_up(self):
        self.step()
        self.assertTrue(all(parameter.grad is None for parameter in self.model.parameters()))

    def test_state_is_small_and_comes_back(self):
        self.step()
        self.optimizer.param_groups[0]["lr"] = 5e-3
        state = pickle.loads(pickle.dumps(self.optimizer.state_dict()))
        self.assertEqual(state["state"], {})
        self.assertEqual(state["tidepool"], {"rule": "adamw", "sealed_steps": 1})
        self.optimizer.param_groups[0]["lr"] = 1e-2
        self.optimizer.load_state_dict(state)
        self.assertEqual(self.optimizer.param_groups[0]["lr"], 5e-3)
        self.step()
        with self.assertRaisesRegex(tidepool.UsageError, "of step 1, and the job is at step 2"):
            self.optimizer.load_state_dict(state)

    def test_evaluation_between_steps_changes_nothing(self):
        other = common.wrap(common.mlp())
        undisturbed = tidepool.optim.AdamW(other.parameters(), lr=1e-2, max_grad_norm=1.0)
        for seed in range(4):
            (batch,) = common.mlp_batches(1, seed=seed)
            common.mlp_loss(other, batch).backward()
            undisturbed.step()
            with torch.no_grad():
                before = common.mlp_loss(self.model, batch).item()
            self.assertEqual(self.step(seed), before)
        with tidepool.gathered(self.model) as ours, tidepool.gathered(other) as theirs:
            self.assertEqual(common.farthest(dict(ours), dict(theirs)), 0)
        tidepool.close(other)

    def test_an_exception_in_forward_drops_nothing_but_itself(self):
        losses = [self.step(0), self.step(1)]

        def fail(*_):
            raise ZeroDivisionError("in forward")

        hook = self.model[4].register_forward_hook(fail)
        with self.assertRaises(ZeroDivisionError):
            self.model(torch.zeros(1, 8))
        hook.remove()
        losses.append(self.step(2))
        self.assert_undisturbed(losses)

    def test_an_exception_in_backward_drops_the_step(self):
        losses = [self.step(0), self.step(1)]

        def fail(_):
            raise ZeroDivisionError("in backward")

        # The gradients of the layers behind have come already.
        hook = self.model[2].register_forward_hook(lambda module, inputs, output: output.register_hook(fail) and None)
        with self.assertRaises(ZeroDivisionError):
            self.step(7)
        hook.remove()
        losses.append(self.step(2))
        self.assertEqual(self.optimizer.sealed_steps, 3)
        self.assert_undisturbed(losses)

    def assert_undisturbed(self, losses):
        """These are the losses of a run in which nothing happened."""
        other = common.wrap(common.mlp())
        self.model, former = other, self.model
        tidepool.close(former)
        self.optimizer = tidepool.optim.AdamW(other.parameters(), lr=1e-2, max_grad_norm=1.0)
        self.assertEqual(losses, [self.step(0), self.step(1), self.step(2)])


class Product(torch.autograd.Function):
    """Multiplies by a weight, and reads it in backward by its address, as a compiled kernel would."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        words = (ctypes.c_float * weight.numel()).from_address(weight.data_ptr())
        copy = torch.frombuffer(bytearray(words), dtype=torch.float32).view(weight.shape)
        return gradient @ copy, gradient.t() @ x


class OwnLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) * 0.2)

    def forward(self, x):
        return Product.apply(x, self.weight).tanh()


class Watching(unittest.TestCase, common.Checks):
    def test_a_function_of_the_users_own_has_its_parameters_in_backward(self):
        torch.manual_seed(1)
        plain, ours = common.twins(nn.Sequential(*(OwnLayer() for _ in range(8))))
        inputs = [torch.randn(4, 32) for _ in range(4)]
        loss = lambda model, x: model(x).square().mean()  # noqa: E731
        want = common.train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), inputs, loss)
        common.wrap(ours, rcache="30%", chunk_size="4KiB")
        got = common.train(ours, tidepool.optim.SGD(ours.parameters(), lr=0.1, max_grad_norm=1.0), inputs, loss)
        self.assert_same_run(got, want)

    def test_autocast_keeps_no_copies_of_weights(self):
        model = common.wrap(common.mlp())
        optimizer = tidepool.optim.SGD(model.parameters())
        with self.assertLogs("tidepool", "WARNING") as logged, torch.autocast("cpu", torch.bfloat16):
            self.assertTrue(torch.is_autocast_cache_enabled())
            for _ in range(2):
                loss = common.mlp_loss(model, common.mlp_batches(1)[0])
                self.assertFalse(torch.is_autocast_cache_enabled())
        loss.backward()
        optimizer.step()
        self.assertEqual(len(logged.output), 1)
        self.assertIn('dtype="bf16"', logged.output[0])
        tidepool.close(model)


class Plans(unittest.TestCase):
    def test_every_plan_trains_the_same_bits(self):
        found = {}
        for plan in ("", "ddp", "zero2", "zero3", "auto"):
            torch.manual_seed(2)
            model = common.wrap(common.mlp(layers=8), plan=plan, rcache="auto", chunk_size="4KiB", example=torch.zeros(4, 8))
            optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2)
            for batch in common.mlp_batches(3):
                common.mlp_loss(model, batch).backward()
                optimizer.step()
            with tidepool.gathered(model) as values:
                found[plan] = {name: value.clone() for name, value in values.items()}
            if plan == "zero3":
                self.assertLess(tidepool.memory(model).rcache_bytes, tidepool.memory(model).parameter_bytes)
            tidepool.close(model)
        for plan, values in found.items():
            self.assertEqual(common.farthest(values, found[""]), 0, plan)

    def test_a_plan_that_does_not_exist_or_fit_says_what_would(self):
        for options, wanted in (({"plan": "zero4"}, "ddp, zero2, zero3 or auto"), ({"plan": "zero2", "rcache": "30%"}, "give rcache=")):
            model = common.wrap(common.mlp(layers=8), chunk_size="4KiB", **options)
            with self.assertRaises(tidepool.TidepoolError) as caught:
                tidepool.optim.AdamW(model.parameters())
            self.assertIn(wanted, str(caught.exception))
            tidepool.close(model)


class Looking(unittest.TestCase):
    def test_gathers_what_is_asked_for(self):
        model = common.wrap(common.mlp())
        want = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        with tidepool.gathered(model) as before:
            self.assertEqual(common.farthest(dict(before), want), 0)  # also before the job begins
        tidepool.optim.SGD(model.parameters())
        with tidepool.gathered(model) as values:
            self.assertEqual(common.farthest(dict(values), want), 0)
            with self.assertRaises(TypeError):
                values["0.weight"] = torch.zeros(1)
            values["0.weight"].zero_()  # a copy
        with tidepool.gathered(model[2]) as values:
            self.assertEqual(common.farthest(dict(values), {"weight": want["2.weight"], "bias": want["2.bias"]}), 0)
        with tidepool.gathered([model[0].bias, model[0].weight]) as values:
            self.assertEqual(list(values), ["0.bias", "0.weight"])
            self.assertTrue(torch.equal(values["0.weight"], want["0.weight"]))
        tidepool.close(model)

    def test_tells_memory(self):
        model = common.wrap(common.mlp(layers=8), rcache="30%")
        guess = tidepool.estimate(model)
        count = sum(parameter.numel() for parameter in model.parameters())
        self.assertEqual((guess.parameters, guess.parameter_bytes), (count, 4 * count))
        self.assertGreater(guess.host_bytes, 4 * 4 * count)  # master, two moments, gradient
        self.assertGreater(guess.chunks, 1)

        optimizer = tidepool.optim.AdamW(model.parameters())
        common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        optimizer.step()
        memory = tidepool.memory(model)
        self.assertEqual((memory.parameters, memory.chunks, memory.host_bytes), (guess.parameters, guess.chunks, guess.host_bytes))
        self.assertGreaterEqual(memory.pool_bytes, memory.host_bytes)
        self.assertLess(memory.rcache_bytes, memory.parameter_bytes)
        self.assertGreater(memory.misses + memory.prefetches, 0)
        self.assertIn("reserved for the job", str(memory))
        tidepool.close(model)

    def test_estimates_without_weights(self):
        with tidepool.init():
            model = common.mlp(width=512)
        real = sum(parameter.numel() for parameter in common.mlp(width=512).parameters())
        full, small = tidepool.estimate(model), tidepool.estimate(model, dtype="bf16", states="split-8bit")
        self.assertEqual(full.parameters, real)
        self.assertLess(small.host_bytes, 0.6 * full.host_bytes)
        self.assertTrue(all(parameter.is_meta for parameter in model.parameters()))


class Weights(unittest.TestCase, common.Checks):
    def test_frozen_parameters_stay_as_they_are(self):
        plain, ours = common.twins(common.mlp())
        for model in (plain, ours):
            model[0].requires_grad_(False)
            model[4].weight.requires_grad_(False)
        frozen = plain[4].weight.clone()
        batches = common.mlp_batches(STEPS)
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), batches, common.mlp_loss)
        common.wrap(ours)
        optimizer = tidepool.optim.AdamW(ours.parameters(), lr=1e-2, max_grad_norm=1.0)
        got = common.train(ours, optimizer, batches, common.mlp_loss)
        self.assert_same_run(got, want)
        self.assertTrue(torch.equal(got.weights["4.weight"], frozen))

    def test_adapters_over_a_frozen_base(self):
        class Adapted(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base.requires_grad_(False)
                torch.manual_seed(5)
                self.down, self.up = nn.Linear(24, 4, bias=False), nn.Linear(4, 24, bias=False)

            def forward(self, x):
                for index, layer in enumerate(self.base):
                    x = layer(x) + (self.up(self.down(x)) if index == 4 else 0)
                return x

        plain, ours = common.twins(Adapted(common.mlp()))
        batches = common.mlp_batches(STEPS)
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), batches, common.mlp_loss)
        common.wrap(ours, rcache="100%")
        got = common.train(ours, tidepool.optim.AdamW(ours.parameters(), lr=1e-2, max_grad_norm=1.0), batches, common.mlp_loss)
        self.assert_same_run(got, want)

    def test_tied_parameters_are_one(self):
        def tied():
            model = common.mlp()
            model[4].weight = model[2].weight
            return model

        plain, ours, batches = tied(), tied(), common.mlp_batches(STEPS)
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), batches, common.mlp_loss)
        common.wrap(ours)
        got = common.train(ours, tidepool.optim.AdamW(ours.parameters(), lr=1e-2, max_grad_norm=1.0), batches, common.mlp_loss)
        self.assertNotIn("4.weight", got.weights)
        self.assert_same_run(got, want)

    def test_a_model_made_without_memory_begins_with_the_given_weights(self):
        values = {name: parameter.detach() for name, parameter in common.mlp().named_parameters()}
        with tidepool.init():
            model = common.mlp()
        self.assertTrue(all(parameter.is_meta for parameter in model.parameters()))
        former = model[2].weight
        common.wrap(model, weights=values.__getitem__)
        with self.assertRaisesRegex(tidepool.UsageError, "no weights yet"):
            model(torch.zeros(1, 8))
        optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=1.0)
        self.assertIs(model[2].weight, former)

        batches = common.mlp_batches(STEPS)
        plain = common.mlp()
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), batches, common.mlp_loss)
        self.assert_same_run(common.train(model, optimizer, batches, common.mlp_loss), want)

    def test_frozen_weights_are_loaded_whether_the_job_holds_them_or_not(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.dense = nn.Parameter(torch.randn(8, 8), requires_grad=False)
                self.turned = nn.Parameter(torch.randn(8, 8).t(), requires_grad=False)  # not contiguous: it stays in this process
                self.trained = nn.Linear(8, 1)

            def forward(self, x):
                return self.trained(torch.tanh(x @ self.dense) @ self.turned)

        plain = Mixed()
        values = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
        with tidepool.init():
            model = Mixed()
        common.wrap(model, weights=values.__getitem__)
        tidepool.optim.SGD(model.parameters())
        x = torch.randn(4, 8)
        self.assertEqual(model(x).tolist(), plain(x).tolist())
        self.assertEqual(tidepool.memory(model).parameters, 8 * 8 + 9)
        tidepool.close(model)

    def test_init_keeps_ties_attributes_and_buffers(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                weight = nn.Parameter(torch.zeros(3))
                weight.note = "kept"
                self.a = self.b = weight
                self.register_buffer("count", torch.ones(2))

        with tidepool.init():
            model = Tied()
        self.assertIs(model.a, model.b)
        self.assertTrue(model.a.is_meta)
        self.assertEqual(model.a.note, "kept")
        self.assertTrue(torch.equal(model.count, torch.ones(2)))
        self.assertFalse(nn.Linear(2, 2).weight.is_meta)  # only within

    def test_bf16_job_of_an_fp32_model_keeps_fp32_masters(self):
        plain, ours = common.twins(common.mlp())
        batches = common.mlp_batches(20)
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4), batches, common.mlp_loss)
        halves = [{"x": batch["x"].bfloat16(), "y": batch["y"]} for batch in batches]
        common.wrap(ours, dtype="bf16")
        optimizer = tidepool.optim.AdamW(ours.parameters(), lr=1e-4, max_grad_norm=1.0)
        self.assertEqual(ours[0].weight.dtype, torch.bfloat16)
        got = common.train(ours, optimizer, halves, common.mlp_loss)
        self.assertEqual(got.weights["0.weight"].dtype, torch.bfloat16)
        # Without fp32 masters steps this small would be lost to rounding.
        moved = (want.weights["2.weight"] - common.mlp()[2].weight).detach()
        ours_moved = got.weights["2.weight"].float() - common.mlp()[2].weight.detach()
        self.assertLess((ours_moved - moved).abs().mean().item(), 0.6 * moved.abs().mean().item())


class Ends(unittest.TestCase):
    def test_a_model_that_nobody_has_any_more_lets_go_of_its_job(self):
        model = common.wrap(common.mlp())
        optimizer = tidepool.optim.SGD(model.parameters())
        common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        optimizer.step()
        directory = tidepool.memory(model).socket_dir
        self.assertTrue(common.pids_of("memserver", directory))
        del model, optimizer
        gc.collect()
        self.assertTrue(common.wait_until(lambda: not common.pids_of("memserver", directory)))

    def test_a_program_that_forgets_to_close_ends_in_order(self):
        done = common.run_script("-c", SCRIPT.format(here=common.__file__, options="standalone=True"))
        self.assertEqual(done.stderr, "")
        self.assertTrue(common.wait_until(lambda: not common.pids_of("memserver", done.stdout.strip())))

    def test_memctl_shows_what_a_loop_reports_of_a_step(self):
        model = common.wrap(common.mlp(), standalone=True)
        optimizer = tidepool.optim.SGD(model.parameters())
        memctl = [_library.program_path("memctl") or "memctl", "--socket-dir", tidepool.memory(model).socket_dir, "api", "GET", "/v1/jobs"]

        def job_after_a_step(**reported):
            loss = common.mlp_loss(model, common.mlp_batches(1)[0])
            loss.backward()
            if reported:
                tidepool.report_step(model, **{"loss": loss, **reported})
            optimizer.step()
            # What is shown may be some milliseconds old.
            self.assertTrue(common.wait_until(lambda: shown()["version"] == optimizer.sealed_steps))
            return shown(), loss.item()

        def shown():
            return json.loads(subprocess.run(memctl, check=True, capture_output=True, text=True).stdout)["jobs"][0]

        job, loss = job_after_a_step(tokens=24)
        self.assertAlmostEqual(job["loss"], loss, places=5)
        job, _ = job_after_a_step(tokens=24, loss=2.5)
        self.assertEqual(job["loss"], 2.5)
        self.assertGreater(job["tokens_per_second"], 0)
        job, _ = job_after_a_step()
        self.assertIsNone(job["loss"], "nothing was reported of this step")

        with self.assertRaisesRegex(tidepool.UsageError, r"(?s)shape \(3,\).*loss.mean"):
            tidepool.report_step(model, torch.zeros(3), 24)
        with self.assertRaisesRegex(tidepool.UsageError, "tokens"):
            tidepool.report_step(model, 1.0, -1)
        tidepool.close(model)

    def test_a_named_job_stays_with_a_shared_server_and_a_nameless_one_goes(self):
        with common.Server() as server:
            for job in ("kept", ""):
                options = f"standalone=False, server={server.sockets!r}, job={job!r}"
                common.run_script("-c", SCRIPT.format(here=common.__file__, options=options))
            listed = subprocess.run([_library.program_path("memctl"), "ps", "--socket-dir", server.sockets], check=True, capture_output=True, text=True)
            self.assertIn("kept", listed.stdout)
            self.assertNotIn("module-", listed.stdout)

            model = common.wrap(common.mlp(), standalone=False, server=server.sockets, job="kept")
            self.assertEqual(tidepool.optim.SGD(model.parameters()).sealed_steps, 1)
            tidepool.close(model)


SCRIPT = """
import os, sys
sys.path.insert(0, os.path.dirname({here!r}))
import common, tidepool
model = common.wrap(common.mlp(), {options})
optimizer = tidepool.optim.SGD(model.parameters())
common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
optimizer.step()
print(tidepool.memory(model).socket_dir)
"""


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
