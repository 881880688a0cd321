"""A profile of any module: the order of use, activations, the rCache that follows from them, and jobs that go on without it."""

import bisect
import itertools
import json
import random
import subprocess
import sys
import unittest

import torch
from torch import nn
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import common
import tidepool
import tiny_models
from tidepool import _check, _handle, _library, _profile


class RealOrder(TorchDispatchMode):
    """Sets of parameters in the order in which operators with values first read them, by the alias marks of their schemas."""

    def __init__(self, parameters):
        super().__init__()
        self._index = {parameter.untyped_storage()._cdata: index for index, parameter in enumerate(parameters)}
        self.seen, self.order = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        read = set()
        for argument, value in zip(func._schema.arguments, args):
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor) and argument.alias_info is None:
                    read.add(self._index.get(tensor.untyped_storage()._cdata))
        if new := read - self.seen - {None}:
            self.order.append(new)
        self.seen |= read
        return func(*args, **(kwargs or {}))


def profiled(model, example, dtype=torch.float32, **more):
    members = _check.trained_parameters(model)
    return _profile.profile(model, _profile.inputs_of(model, example), members, {id(one.parameter): dtype for one in members}, **more)


def between_operators(events):
    """The bytes given out whenever an operator begins or ends: without what a kernel takes and gives back itself."""
    edges = sorted(edge for event in events if event.name() != "[memory]" for edge in (event.start_ns(), event.start_ns() + event.duration_ns()))
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    at = [start for start, _ in changes]
    live = [0, *itertools.accumulate(count for _, count in changes)]
    return [live[bisect.bisect(at, edge)] for edge in edges]


def measured_activations(model, batch, kernels_own=True):
    """The most that torch's allocator has given out within a step, with gradients that leave as they come."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))

    def step():
        loss = model(**batch).loss
        loss.sum().backward()

    step()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    events = watched.profiler.kineto_results.events()
    if not kernels_own:
        return max(between_operators(events))
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(count for _, count in changes))


class Stateful(nn.Module):
    """Has all that a forward could change."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.dropout, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4)
        self.kept = torch.ones(16)  # no buffer
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.kept = self.kept * 2
        random.random()
        return self.last(self.dropout(self.norm(self.first(x)) * self.kept))


class Asks(nn.Module):
    """Its forward depends on values."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.one(x)
        return self.two(x if x.sum().item() > 0 else -x)


class Used(nn.Module):
    """One layer at two places, each within a checkpoint that runs it anew in backward."""

    def __init__(self):
        super().__init__()
        self.into, self.shared, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x):
        x = self.into(x)
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=True).tanh()
        return self.last(x)


class Profiles(unittest.TestCase):
    def check_model(self, name):
        """The real order; in fp32 within 1 % of what a real step takes, and in bf16 within 5 % of that without what kernels keep for themselves."""
        (batch,) = tiny_models.batches(name, 1, size=6, length=24)
        model = tiny_models.make(name)
        found = profiled(model, batch)
        self.assertIsNotNone(found)
        self.assertEqual(found.again, ())

        with RealOrder([one.parameter for one in _check.trained_parameters(model)]) as real:
            model(**batch)
        self.assertGreater(len(real.order), 10)
        rest = iter(found.order)
        self.assertEqual([{next(rest) for _ in together} for together in real.order], real.order)
        self.assertEqual(sorted(found.order), list(range(len(found.order))))
        self.assertNotEqual(list(found.order), sorted(found.order))  # or packing by it would show nothing

        measured = measured_activations(model, batch)
        self.assertGreater(measured, 1e5)
        self.assertAlmostEqual(found.activation_bytes / measured, 1, delta=0.01)

        half = tiny_models.make(name).to(torch.bfloat16)
        batch = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in batch.items()}
        found = profiled(half, batch, dtype=torch.bfloat16)
        self.assertLess(found.activation_bytes, 0.95 * measured)  # what stays in fp32 is most of a Mamba
        self.assertAlmostEqual(found.activation_bytes / measured_activations(half, batch, kernels_own=False), 1, delta=0.05)

    def test_nothing_of_the_module_or_of_chance_changes(self):
        model = Stateful().eval()
        with torch.no_grad():
            model(torch.ones(3, 8))
        before = {name: tensor.clone() for name, tensor in [*model.state_dict().items(), ("kept", model.kept)]}
        states = torch.get_rng_state(), random.getstate()
        objects = [id(parameter) for parameter in model.parameters()]
        self.assertIsNotNone(profiled(model, torch.ones(5, 8)))
        self.assertTrue(all(torch.equal(tensor, before[name]) for name, tensor in [*model.state_dict().items(), ("kept", model.kept)]))
        self.assertTrue(torch.equal(torch.get_rng_state(), states[0]))
        self.assertEqual(random.getstate(), states[1])
        self.assertEqual((model.calls, model.training, objects), (1, False, [id(parameter) for parameter in model.parameters()]))
        self.assertTrue(all(parameter.grad is None and not parameter._post_accumulate_grad_hooks for parameter in model.parameters()))

    def test_what_needs_values_is_named_and_is_packed_by_registration(self):
        with self.assertLogs("tidepool", "WARNING") as told:
            self.assertIsNone(profiled(Asks(), torch.ones(5, 8)))
        self.assertRegex(told.output[0], "Asks cannot be profiled, and is packed in the order of registration: at the operator aten._local_scalar_dense")
        with self.assertLogs("tidepool", "WARNING") as told:
            self.assertIsNone(profiled(common.mlp(), {"no_such_argument": torch.ones(5, 8)}))
        self.assertIn("its code, on tensors without values: TypeError", told.output[0])
        model = common.wrap(Asks(), example=torch.ones(5, 8), rcache="100%")
        with self.assertLogs("tidepool", "WARNING"):
            optimizer = tidepool.optim.SGD(model.parameters())
        model(torch.ones(5, 8)).sum().backward()
        optimizer.step()
        tidepool.close(model)

    def test_a_model_that_could_not_be_profiled_leaves_nothing_behind(self):
        with self.assertLogs("tidepool", "WARNING"):
            profiled(Asks(), torch.ones(5, 8))
        self.assertIsNotNone(profiled(common.mlp(), torch.ones(5, 8)))
        with torch.device("meta"):
            self.assertEqual(torch.empty(4).resize_(9).numel(), 9)

    def test_nothing_is_compiled_for_a_profile(self):
        compiled = []

        def backend(graph, _):
            compiled.append(graph)
            return graph.forward

        model = nn.Sequential(nn.Linear(8, 8), torch.compile(nn.Linear(8, 8), backend=backend), nn.Linear(8, 4))
        found = profiled(model, torch.ones(5, 8))
        self.assertEqual((found.order, compiled), ((0, 1, 2, 3, 4, 5), []))
        model(torch.ones(5, 8))
        self.assertEqual(len(compiled), 1)

    def test_kinds_of_examples(self):
        model, x = common.mlp(), torch.ones(5, 8)
        sizes = {profiled(model, example).activation_bytes for example in (x, (x,), [x], {"input": x}, x.to("meta"))}
        self.assertEqual(len(sizes), 1)
        with self.assertRaisesRegex(tidepool.UsageError, "example is a int"):
            tidepool.wrap(model, example=3)
        self.assertIsNone(_profile.inputs_of(model, None))

    def test_models_of_transformers_have_inputs_of_their_own(self):
        with self.assertLogs("tidepool", "INFO") as told:
            found = profiled(tiny_models.make("llama"), None)
        self.assertIn("LlamaForCausalLM is packed in the order of use that its dummy_inputs show", told.output[0])
        self.assertEqual(found.order, profiled(tiny_models.make("llama"), tiny_models.batches("llama", 1)[0]).order)
        self.assertFalse(found.own_inputs)
        self.assertIsNone(_profile.inputs_of(tiny_models.make("vit"), None))  # its dummy_inputs are no pictures

    def test_a_step_is_one_of_training(self):
        model = tiny_models.make("gpt2")
        (batch,) = tiny_models.batches("gpt2", 1)
        self.assertEqual(profiled(model, batch).activation_bytes, profiled(model.eval(), batch).activation_bytes)
        self.assertLess(profiled(model, batch, checkpointing=True).activation_bytes, 0.6 * profiled(model, batch).activation_bytes)
        self.assertFalse(model.is_gradient_checkpointing)

    def test_seven_billion_parameters_take_no_memory(self):
        script = """
import resource, torch, transformers, tidepool
with tidepool.init():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = torch.zeros(2, 2048, dtype=torch.long)
found = tidepool.estimate(model, example={"input_ids": ids, "labels": ids}, dtype="bf16")
assert found.parameters > 6.7e9, found
assert found.activation_bytes > 2e10 > 5 * found.checkpointed_activation_bytes > 5e9, found
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
assert grown < 100 << 20, grown
"""
        common.run_script("-c", script)


def add_model(name):
    setattr(Profiles, f"test_{name}", lambda self: self.check_model(name))


for each in tiny_models.MODELS:
    add_model(each)


def counters(model):
    return json.loads(_handle.of_model(model).call("counters"))


class Jobs(unittest.TestCase, common.Checks):
    def first_step(self, name, **options):
        """Counters of the first step of a tiny model, and the order of its parameters at the server, as residency has it."""
        model = common.wrap(tiny_models.make(name), **options)
        optimizer = tidepool.optim.AdamW(model.parameters())
        model(**tiny_models.batches(name, 1)[0]).loss.backward()
        optimizer.step()
        found = counters(model)
        tidepool.close(model)
        return found

    def test_the_first_step_fetches_ahead(self):
        for name in ("gpt2", "t5", "mixtral"):
            with self.subTest(name):
                known = self.first_step(name, example=tiny_models.batches(name, 1)[0])
                self.assertEqual((known["misses"], known["deviations"]), (0, 0))
                self.assertGreater(known["prefetches"], 5)
        known = self.first_step("vit", example=tiny_models.batches("vit", 1)[0])
        unknown = self.first_step("vit")
        self.assertGreater(unknown["misses"], 10)
        self.assertEqual(unknown["prefetches"], 0)
        self.assertEqual(known["misses"], 0)
        self.assertLess(known["evictions"], unknown["evictions"])

    def test_batches_of_other_sizes_keep_to_the_order_and_its_plan(self):
        plain, ours = tiny_models.make("gpt2"), tiny_models.make("gpt2")
        batches = [tiny_models.batches("gpt2", 1, size=size, length=length)[0] for size, length in ((3, 10), (5, 24), (1, 4), (2, 32))]
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3), batches, common.model_loss)
        common.wrap(ours, example=batches[0])
        optimizer = tidepool.optim.AdamW(ours.parameters(), lr=1e-3, max_grad_norm=1.0)
        losses, prefetches = [], []
        for batch in batches:
            loss = common.model_loss(ours, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            found = counters(ours)
            prefetches.append(found["prefetches"])
            self.assertEqual((found["misses"], found["deviations"]), (0, 0))
        tidepool.close(ours)
        self.assertEqual(len({after - before for before, after in zip(prefetches, prefetches[1:])}), 1)
        for got, expected in zip(losses, want.losses):
            self.assertAlmostEqual(got, expected, delta=1e-5 * expected)

    def test_steps_that_leave_the_foreseen_order_go_on(self):
        class Turns(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

            def forward(self, x, turned=False):
                for layer in reversed(self.layers) if turned else self.layers:
                    x = layer(x).tanh()
                return x.sum(1)

        def loss(model, batch):
            return model(batch["x"], turned=True).sum()

        torch.manual_seed(0)
        plain, ours = common.twins(Turns())
        batches = common.mlp_batches(3)
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), batches, loss)
        common.wrap(ours, example=torch.ones(8, 8))
        optimizer = tidepool.optim.AdamW(ours.parameters(), lr=1e-2, max_grad_norm=1.0)
        loss(ours, batches[0]).backward()
        self.assertGreater(counters(ours)["deviations"], 0)
        optimizer.step()
        tidepool.close(ours)

        torch.manual_seed(0)
        ours = common.wrap(Turns(), example=torch.ones(8, 8))
        got = common.train(ours, tidepool.optim.AdamW(ours.parameters(), lr=1e-2, max_grad_norm=1.0), batches, loss)
        self.assert_learned(got)
        self.assert_same_run(got, want)

    def test_what_is_used_behind_its_gradient_is_found(self):
        torch.manual_seed(0)
        plain, ours = common.twins(Used())
        batches = [{**batch, "x": batch["x"].requires_grad_()} for batch in common.mlp_batches(3)]
        want = common.train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batches, common.mlp_loss)
        self.assertEqual(profiled(ours, batches[0]["x"]).again, (2, 3))

        unknown = common.wrap(common.twins(ours)[1], rcache="100%")
        tidepool.optim.SGD(unknown.parameters())
        with self.assertRaisesRegex(RuntimeError, "shared"):
            common.mlp_loss(unknown, batches[0]).backward()
        tidepool.leave(unknown)

        torch.manual_seed(0)
        ours = common.wrap(Used(), example=batches[0]["x"], rcache="100%")
        got = common.train(ours, tidepool.optim.SGD(ours.parameters(), lr=0.1, max_grad_norm=1.0), batches, common.mlp_loss)
        self.assert_learned(got)
        self.assert_same_run(got, want)

    def test_a_job_goes_on_in_its_own_layout_whatever_is_known_now(self):
        batches = tiny_models.batches("vit", 4)
        large = tiny_models.batches("vit", 1, size=64)[0]

        def start(server, job, example):
            model = common.wrap(tiny_models.make("vit"), standalone=False, server=server.sockets, job=job, example=example, rcache="auto")
            return model, tidepool.optim.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)

        def steps(model, optimizer, some):
            for batch in some:
                model(**batch).loss.backward()
                optimizer.step()

        with common.Server() as server:
            whole, optimizer = start(server, "whole", None)
            steps(whole, optimizer, batches)
            with tidepool.gathered(whole) as values:
                want = dict(values)
            tidepool.close(whole)

            for job, before, now in (("with-without", batches[0], None), ("without-with", None, batches[0]), ("other-size", batches[0], large)):
                with self.subTest(job):
                    model, optimizer = start(server, job, before)
                    steps(model, optimizer, batches[:2])
                    chunks = tidepool.memory(model).chunks
                    tidepool.leave(model)

                    model, optimizer = start(server, job, now)
                    self.assertEqual((optimizer.sealed_steps, tidepool.memory(model).chunks), (2, chunks))
                    steps(model, optimizer, batches[2:])
                    with tidepool.gathered(model) as values:
                        self.assertEqual(common.farthest(dict(values), want), 0)
                    tidepool.close(model)

    def test_what_a_job_cannot_know_of_the_one_before_is_told(self):
        x = torch.ones(8, 8)
        with common.Server() as server:
            shared = {"standalone": False, "server": server.sockets, "job": "shared", "rcache": "64MiB"}
            model = common.wrap(Used(), example=x, **shared)
            tidepool.optim.SGD(model.parameters())
            tidepool.leave(model)
            again = common.wrap(Used(), **shared)
            with self.assertRaisesRegex(tidepool.JobExists, "parameter") as caught:
                tidepool.optim.SGD(again.parameters())
            self.assertIn("same example", caught.exception.fix)
            model = common.wrap(Used(), example=x, **shared)
            tidepool.optim.SGD(model.parameters())
            tidepool.close(model)

    def test_memctl_shows_the_modules_names_in_their_order_of_use(self):
        model = tiny_models.make("vit")
        (batch,) = tiny_models.batches("vit", 1)
        names = [one.name for one in _check.trained_parameters(model)]
        order = [names[index] for index in profiled(model, batch).order]
        with common.Server() as server:
            common.wrap(model, standalone=False, server=server.sockets, job="seen", example=batch)
            tidepool.optim.AdamW(model.parameters())
            memctl = [_library.program_path("memctl") or "memctl", "--socket-dir", server.sockets]
            shown = subprocess.run([*memctl, "residency", "--by", "tensor"], capture_output=True, text=True, check=True).stdout
            told = json.loads(subprocess.run([*memctl, "api", "GET", "/v1/tensors"], capture_output=True, text=True, check=True).stdout)
            tidepool.close(model)
        self.assertEqual([tensor["name"] for tensor in told["tensors"]], order)
        for name in (order[0], order[-1]):
            self.assertIn(name, shown)


class Estimates(unittest.TestCase):
    def made_empty(self, layers):
        import transformers

        with tidepool.init():
            return transformers.LlamaForCausalLM(
                transformers.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=16, vocab_size=2000)
            )

    @staticmethod
    def tokens(count):
        ids = torch.zeros(1, count, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}

    def test_the_rcache_follows_the_work_of_a_step(self):
        model = self.made_empty(layers=10)
        unknown = tidepool.estimate(model, chunk_size="12MiB")
        few, some, many = (tidepool.estimate(model, chunk_size="12MiB", example=self.tokens(count)) for count in (8, 600, 8192))
        self.assertEqual(unknown.rcache_bytes // unknown.chunk_bytes, unknown.chunks // 4)
        self.assertGreaterEqual(few.rcache_bytes // few.chunk_bytes, few.chunks - 2)
        self.assertLess(some.rcache_bytes, few.rcache_bytes)
        self.assertLess(many.rcache_bytes, unknown.rcache_bytes)
        self.assertLess(many.rcache_bytes, some.rcache_bytes)
        half = tidepool.estimate(model, chunk_size="12MiB", example=self.tokens(8), rcache="50%")
        self.assertAlmostEqual(half.rcache_bytes // half.chunk_bytes, half.chunks / 2, delta=1)

    def test_what_is_known_is_said(self):
        model = tiny_models.make("gpt2")
        (batch,) = tiny_models.batches("gpt2", 1)
        known, unknown = tidepool.estimate(model, example=batch), tidepool.estimate(model)
        self.assertEqual((unknown.activation_bytes, unknown.fits), (None, None))
        self.assertIn("not known: ", str(unknown))
        self.assertIn("give example=", str(unknown))
        self.assertNotIn("activations of a rank", str(unknown))
        self.assertLess(known.checkpointed_activation_bytes, known.activation_bytes)
        self.assertTrue(known.fits)
        for part in ("activations of a rank", "with gradient checkpointing", "fits this machine", "yes: "):
            self.assertIn(part, str(known))

    def test_what_does_not_fit_is_told_what_would(self):
        from tidepool import _machine

        model, example = self.made_empty(layers=2), self.tokens(2048)
        whole = tidepool.estimate(model, example=example, dtype="bf16", rcache="10%")
        free = _machine.free_host_bytes
        self.addCleanup(setattr, _machine, "free_host_bytes", free)
        self.assertGreater(free(), 1 << 28)

        def with_free(count):
            _machine.free_host_bytes = lambda: int(count)
            return tidepool.estimate(model, example=example, dtype="bf16", rcache="10%")

        saved = 1.25 * (whole.activation_bytes - whole.checkpointed_activation_bytes)
        need = whole.host_bytes + whole.rcache_bytes + 1.25 * (whole.activation_bytes + whole.input_bytes)
        self.assertTrue(with_free(need + 1e6).fits)
        self.assertEqual((with_free(need - 1e6).fits, with_free(need - 1e6).remedy), (False, "gradient checkpointing"))
        self.assertEqual(with_free(need - saved - 1e6).remedy, 'states="split"' if saved < whole.host_bytes / 8 else 'gradient checkpointing and states="split"')
        self.assertIn("nvme", with_free(1e6).remedy)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
