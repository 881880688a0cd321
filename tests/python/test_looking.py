"""What a program sees of a job while it runs: gradients, hooks of its own, errors of backward, and what goes on without it."""

import io
import json
import os
import signal
import sys
import tempfile
import unittest
from unittest import mock

import safetensors.torch
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import common
import tidepool
from tidepool import _progress


class Gradients(unittest.TestCase):
    def setUp(self):
        self.plain, self.model = common.twins(common.mlp())
        common.wrap(self.model, gradient_accumulation_steps=2)
        self.optimizer = tidepool.optim.SGD(self.model.parameters(), lr=0.1)
        self.addCleanup(lambda: tidepool.close(self.model))
        self.batches = common.mlp_batches(4)

    def backward_both(self, batch):
        common.mlp_loss(self.plain, batch).backward()
        common.mlp_loss(self.model, batch).backward()

    def test_a_kept_gradient_is_the_sum_over_the_steps_micro_batches(self):
        ours, plain = self.model[2].weight, self.plain[2].weight
        with tidepool.keep_gradients(self.model[2], self.model[0].bias):
            self.assertIsNone(tidepool.gradient(ours))
            for begin in (0, 2):
                self.plain.zero_grad()
                for batch in self.batches[begin : begin + 2]:
                    self.backward_both(batch)
                    self.assertIsNone(ours.grad)
                    torch.testing.assert_close(tidepool.gradient(ours), plain.grad, rtol=0, atol=1e-6)
                    torch.testing.assert_close(tidepool.gradient(self.model[0].bias), self.plain[0].bias.grad, rtol=0, atol=1e-6)
                with torch.no_grad():
                    for parameter in self.plain.parameters():
                        parameter -= 0.1 * parameter.grad
                before = tidepool.gradient(ours)
                self.optimizer.step()
                self.assertIs(tidepool.gradient(ours), before)
        with self.assertRaisesRegex(tidepool.UsageError, "was not kept"):
            tidepool.gradient(ours)

    def test_what_is_not_asked_for_is_not_kept(self):
        with tidepool.keep_gradients(self.model[0]), self.assertRaisesRegex(tidepool.UsageError, "keep_gradients"):
            tidepool.gradient(self.model[2].weight)
        with self.assertRaisesRegex(tidepool.UsageError, "no wrapped model"), tidepool.keep_gradients(nn.Linear(2, 2)):
            pass


class Hooks(unittest.TestCase):
    """Of the user's own, behind those of a job."""

    def test_post_accumulate_hooks_of_both_run(self):
        model = common.wrap(common.mlp())
        weight, seen = model[2].weight, []
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.abs().sum().item()))
        optimizer = tidepool.optim.SGD(model.parameters(), lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
        (batch,) = common.mlp_batches(1)
        common.mlp_loss(model, batch).backward()
        self.assertEqual(len(seen), 2)
        self.assertGreater(seen[0], 0)
        self.assertIsNone(seen[1])  # the server has it
        optimizer.step()
        self.assertGreater(optimizer.last_grad_norm, 0)
        tidepool.close(model)

    def test_a_hook_that_is_taken_away_is_an_error_that_names_the_parameter(self):
        model = common.wrap(common.mlp())
        tidepool.optim.SGD(model.parameters())
        model[2].weight._post_accumulate_grad_hooks.clear()
        with self.assertRaises(tidepool.UsageError) as caught:
            common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        self.assertIn("2.weight was not handed in", caught.exception.what)
        self.assertIn("register_post_accumulate_grad_hook", caught.exception.fix)
        tidepool.leave(model)


class Twice(nn.Module):
    """One layer at two places, each in a checkpoint whose backward runs within the backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.shared, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(lambda value: self.shared(value).tanh(), x, use_reentrant=True)
        return self.last(x)


class Backward(unittest.TestCase, common.Checks):
    def test_a_layer_used_again_behind_its_gradient_names_the_fix(self):
        x = torch.randn(4, 8, requires_grad=True)
        plain, ours = common.twins(Twice())
        common.wrap(ours, rcache="100%")
        tidepool.optim.SGD(ours.parameters())
        with self.assertRaises(tidepool.UsageError) as caught:
            ours(x).sum().backward()
        self.assertEqual(caught.exception.id, "TensorStateIllegal")
        self.assertIn('multi_use=["shared.', caught.exception.fix)
        tidepool.leave(ours)

        _, again = common.twins(Twice())
        common.wrap(again, rcache="100%", multi_use=["shared.weight", "shared.bias"])
        loss = lambda model, value: model(value).square().mean()  # noqa: E731
        batches = [torch.randn(4, 8, requires_grad=True) for _ in range(3)]
        want = common.train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batches, loss)
        got = common.train(again, tidepool.optim.SGD(again.parameters(), lr=0.1, max_grad_norm=1.0), batches, loss)
        self.assert_same_run(got, want)

    def test_errors_at_its_end_are_the_packages_own(self):
        model = common.wrap(nn.ParameterList(torch.randn(32, 32) for _ in range(4)), rcache="50%", chunk_size="4KiB")
        tidepool.optim.SGD(model.parameters())
        with self.assertRaises(tidepool.MemoryTooSmall) as caught:
            torch.stack(list(model)).square().mean().backward()  # one operator that reads four chunks
        self.assertEqual(caught.exception.id, "RcacheTooSmall")
        self.assertIn("give rcache at least", caught.exception.fix)
        tidepool.leave(model)

    def test_other_errors_stay_what_they_are(self):
        model = common.wrap(common.mlp())
        tidepool.optim.SGD(model.parameters())
        x = torch.ones(2, requires_grad=True)
        loss = x.sum()
        loss.backward()
        with self.assertRaisesRegex(RuntimeError, "a leaf|does not require grad|second time|element 0") as caught:
            torch.ones(2).sum().backward()
        self.assertIs(type(caught.exception), RuntimeError)
        tidepool.close(model)


FORKING = """
import os, signal, sys, time
sys.path.insert(0, os.path.dirname({here!r}))
import common, tidepool
model = common.wrap(common.mlp())
optimizer = tidepool.optim.SGD(model.parameters())
common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
child = os.fork()
if child == 0:
    os.close(1), os.close(2)
    time.sleep(120)
    os._exit(0)
optimizer.step()
print(child, tidepool.memory(model).socket_dir, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Others(unittest.TestCase):
    def test_a_forked_worker_does_not_keep_the_private_server(self):
        done = common.run_script("-c", FORKING.format(here=common.__file__), check=False)
        self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
        child, directory = done.stdout.split()
        try:
            self.assertTrue(common.wait_until(lambda: not common.pids_of("memserver", directory)))
            os.kill(int(child), 0)  # it lives
        finally:
            os.kill(int(child), signal.SIGKILL)

    def test_a_line_says_that_no_later_start_can_go_on(self):
        with common.Server() as server:
            model = common.wrap(common.mlp(), standalone=False, server=server.sockets)
            with self.assertLogs("tidepool", "WARNING") as logged:
                tidepool.optim.SGD(model.parameters())
            self.assertEqual(len(logged.output), 1)
            self.assertIn("give job=", logged.output[0])
            tidepool.close(model)
            for options in ({"job": "named"}, {"resume": "never"}):
                model = common.wrap(common.mlp(), standalone=False, server=server.sockets, **options)
                with self.assertNoLogs("tidepool", "WARNING"):
                    tidepool.optim.SGD(model.parameters())
                tidepool.close(model)

    def test_a_named_job_without_a_server_says_that_it_ends_with_the_process(self):
        former = os.environ.get("TIDEPOOL_SOCKET_DIR")
        os.environ["TIDEPOOL_SOCKET_DIR"] = "/nonexistent"
        try:
            model = common.wrap(common.mlp(), standalone=None, job="named")
            with self.assertLogs("tidepool", "WARNING") as logged:
                tidepool.optim.SGD(model.parameters())
        finally:
            os.environ.pop("TIDEPOOL_SOCKET_DIR")
            os.environ.update({"TIDEPOOL_SOCKET_DIR": former} if former else {})
        self.assertIn("private memserver", logged.output[0])
        tidepool.close(model)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Starting(unittest.TestCase):
    """What a start shows of what it waits for."""

    def start(self, **options):
        values = {name: parameter.detach() for name, parameter in common.mlp().named_parameters()}
        with tempfile.TemporaryDirectory() as folder:
            files = {name: f"model-0000{1 + (2 * index >= len(values))}-of-00002.safetensors" for index, name in enumerate(values)}
            for file in set(files.values()):
                safetensors.torch.save_file({name: value for name, value in values.items() if files[name] == file}, os.path.join(folder, file))
            with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as index:
                json.dump({"weight_map": files}, index)
            with tidepool.init():
                model = common.mlp()
            common.wrap(model, weights=folder, **options)
            tidepool.optim.SGD(model.parameters())
        tidepool.close(model)

    def test_a_terminal_shows_shards_and_rates(self):
        with mock.patch.object(_progress, "_EVERY_SECONDS", 0), mock.patch("sys.stderr", Terminal()) as terminal, self.assertNoLogs("tidepool", "INFO"):
            self.start()
        said = terminal.getvalue()
        self.assertIn("tidepool: starting a private memserver\n", said)
        self.assertRegex(said, r"weights to the server: .* of .*, shard 1 of 2, .*/s")
        self.assertIn("shard 2 of 2", said)
        self.assertTrue(said.endswith("\r\033[K"))  # nothing stays

    def test_elsewhere_it_is_the_log(self):
        with mock.patch("sys.stderr", io.StringIO()) as other, self.assertLogs("tidepool", "INFO") as logged:
            self.start()
        self.assertEqual(other.getvalue(), "")
        self.assertEqual([record.levelname for record in logged.records], ["INFO", "INFO"])
        self.assertRegex(logged.output[1], r"weights to the server: .*, .*/s")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
