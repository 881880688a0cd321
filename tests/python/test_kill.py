"""kill -9: of memserver in mid-forward, mid-backward and mid-step, and of the process that trains. The weights are those of a run left alone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import torch

import common
import tidepool

STEPS = 12


def train(model, kill=None):
    """Trains a wrapped model. `kill`: what to call in mid-forward of step 2, in mid-backward of step 5 and between backward and step of 8."""
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    losses, norms = [], []
    for step, batch in enumerate(common.mlp_batches(STEPS)):
        forward = model[4].register_forward_hook(lambda *_: kill() and None) if kill and step == 2 else None
        backward = model[4].register_full_backward_hook(lambda *_: kill() and None) if kill and step == 5 else None
        loss = common.mlp_loss(model, batch)
        loss.backward()
        if kill and step == 8:
            kill()
        for hook in filter(None, (forward, backward)):
            hook.remove()
        optimizer.step()
        losses.append(loss.item())
        norms.append(optimizer.last_grad_norm)
    with tidepool.gathered(model) as values:
        weights = dict(values)
    tidepool.close(model)
    return common.Run(losses, norms, weights)


class KilledServer(unittest.TestCase, common.Checks):
    def test_a_run_goes_on_with_the_same_bits(self):
        alone = train(common.wrap(common.mlp(), rcache="40%", chunk_size="8KiB"))
        killed = []
        with common.Server() as server:
            model = common.wrap(common.mlp(), rcache="40%", chunk_size="8KiB", standalone=False, server=server.sockets, job="killed")
            disturbed = train(model, kill=lambda: killed.append(server.kill()))
        self.assertEqual(killed, [1, 1, 1])
        self.assert_equal_bits(disturbed, alone)
        self.assertGreater(common.farthest(alone.weights, dict(common.mlp().named_parameters())), 1e-3)

    def test_a_private_server_that_is_killed_is_an_error(self):
        model = common.wrap(common.mlp(), rcache="40%", chunk_size="8KiB", server_timeout="2s")
        optimizer = tidepool.optim.SGD(model.parameters())
        self.addCleanup(lambda: tidepool.leave(model))
        directory = tidepool.memory(model).socket_dir
        for name in ("memserver", "tp-keeper"):
            for pid in common.pids_of(name, directory):
                os.kill(pid, signal.SIGKILL)
        with self.assertRaises(RuntimeError) as caught:
            for batch in common.mlp_batches(3):
                common.mlp_loss(model, batch).backward()
                optimizer.step()
        self.assertIn("server", str(caught.exception))


class KilledProcess(unittest.TestCase, common.Checks):
    """The process that trains is another one, which the test kills and starts again."""

    def start(self, server, out, *words):
        return subprocess.Popen(
            [sys.executable, __file__, "--train", server, out, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self, process):
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out + err)
        return out

    def test_the_next_start_goes_on_behind_the_last_sealed_step(self):
        with common.Server() as server, tempfile.TemporaryDirectory() as folder:
            alone, killed = os.path.join(folder, "alone"), os.path.join(folder, "killed")
            self.finish(self.start(server.sockets, alone, "alone"))

            process = self.start(server.sockets, killed, "killed", "--die-at", "5")
            process.communicate(timeout=120)
            self.assertEqual(process.returncode, -signal.SIGKILL)
            said = self.finish(self.start(server.sockets, killed, "killed"))
            self.assertIn("begins at step 5", said)

            with open(alone + ".json", encoding="utf-8") as a, open(killed + ".json", encoding="utf-8") as b:
                want, got = json.load(a), json.load(b)
            self.assertEqual(got, want[5:])
            self.assertEqual(common.farthest(torch.load(killed + ".pt"), torch.load(alone + ".pt")), 0)

    def test_resume_never_refuses_what_is_held(self):
        with common.Server() as server:
            former = common.wrap(common.mlp(), standalone=False, server=server.sockets, job="held")
            optimizer = tidepool.optim.SGD(former.parameters(), lr=0.1)
            common.mlp_loss(former, common.mlp_batches(1)[0]).backward()
            optimizer.step()

            again = common.wrap(common.mlp(), standalone=False, server=server.sockets, job="held")
            with self.assertRaisesRegex(tidepool.UsageError, "runs already, in this process"):
                tidepool.optim.SGD(again.parameters(), lr=0.1)
            with tidepool.gathered(former) as values:
                want = dict(values)
            tidepool.leave(former)

            refused = common.wrap(common.mlp(), standalone=False, server=server.sockets, job="held", resume="never")
            with self.assertRaisesRegex(tidepool.JobExists, "still holds job"):
                tidepool.optim.SGD(refused.parameters(), lr=0.1)

            self.assertEqual(tidepool.optim.SGD(again.parameters(), lr=0.1).sealed_steps, 1)
            with tidepool.gathered(again) as values:
                self.assertEqual(common.farthest(dict(values), want), 0)
            tidepool.close(again)

    def test_ctrl_c_ends_a_wait(self):
        with common.Server() as server, tempfile.TemporaryDirectory() as folder:
            process = self.start(server.sockets, os.path.join(folder, "out"), "waits", "--stop-server-at", "3")
            self.assertIn("stopped", process.stdout.readline())
            try:
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
            finally:
                for pid in server.pids("memserver"):
                    os.kill(pid, signal.SIGCONT)
            self.assertIn("KeyboardInterrupt", err)
            self.assertNotEqual(process.returncode, 0)


def train_here(server, out, job, die_at=None, stop_server_at=None):
    """In a process of its own: trains a named job, and writes down what it saw and where the weights came to."""
    model = common.wrap(common.mlp(), standalone=False, server=server, job=job, rcache="40%", chunk_size="8KiB")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    begun = optimizer.sealed_steps
    print(f"begins at step {begun}", flush=True) if stop_server_at is None else None
    seen = []
    for step, batch in enumerate(common.mlp_batches(STEPS)):
        if step < begun:
            continue
        loss = common.mlp_loss(model, batch)
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == stop_server_at:
            for pid in common.pids_of("memserver", server):
                os.kill(pid, signal.SIGSTOP)
            print("stopped", flush=True)
        loss.backward()
        optimizer.step()
        seen.append([loss.item(), optimizer.last_grad_norm])
    with tidepool.gathered(model) as values:
        torch.save(dict(values), out + ".pt")
    with open(out + ".json", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    tidepool.close(model)


def main():
    if sys.argv[1:2] != ["--train"]:
        unittest.main(verbosity=2)
    server, out, job, *flags = sys.argv[2:]
    numbers = dict(zip(flags[::2], map(int, flags[1::2])))
    train_here(server, out, job, numbers.get("--die-at"), numbers.get("--stop-server-at"))


if __name__ == "__main__":
    main()
