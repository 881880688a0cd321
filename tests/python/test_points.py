"""kill -9 at every named point that a Python step passes, of memserver, of the process that trains, and of one of two ranks: the same bits.

No job runs in this process: each is in a fork, which needs no second start of torch.
"""

import json
import os
import signal
import sys
import tempfile
import unittest

import torch
import torch._dynamo  # which the first optimizer would load, in each fork

import common
import tidepool
from tidepool import _library

STEPS = 6
_library.load()

# Passed while a job begins, in a step, or while it is saved and ends, with the passing that is taken.
SERVER_POINTS = {
    "control.connection_closed": 1, "link.hold_sent": 1, "optim.first_plane_stored": 2, "optim.last_plane_stored": 2, "optim.piece_finished": 3,
    "optim.tile_saved": 5, "optim.tile_written": 5, "server.chunk_published": 6, "server.fetch_copied": 8, "server.fetch_started": 8,
    "server.gradient_copied": 5, "server.gradient_started": 5, "server.gradient_stored": 5, "server.job_laid_out": 1, "server.job_opened": 1,
    "server.job_reserved": 1, "server.noted": 1, "server.part_held": 1, "server.put_copied": 2, "server.put_kept": 1, "server.put_started": 2,
    "server.records_begun": 1, "server.records_written": 1, "server.request_taken": 20, "server.session_attached": 1, "server.step_answered": 2,
    "server.step_ended_by_rank": 3, "server.step_numbers_taken": 2, "server.step_recorded": 2, "server.step_sealed": 2, "server.step_sealing": 2,
    "server.step_slotted": 2, "server.update_started": 3,
}  # fmt: skip
RANK_POINTS = {
    "client.attached": 1, "client.connected": 1, "client.end_step_sent": 3, "client.fetch_sent": 9, "client.gradient_sent": 7, "client.hello_sent": 1,
    "client.numbers_sent": 2, "client.outcome_taken": 3, "client.put_sent": 2, "client.schedule_sent": 1, "client.spec_sent": 1, "trainer.backward_done": 3,
    "trainer.forward_done": 3, "trainer.step_sealed": 3,
}  # fmt: skip


def train(server, rank=0, world=1):
    """Trains job "points" from where it is. Returns losses by step, and the weights."""
    model = common.wrap(common.mlp(layers=3), standalone=False, server=server, job="points", rcache="40%", chunk_size="8KiB", rejoin_timeout="20s")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    losses = {}
    for step, batch in enumerate(common.mlp_batches(STEPS)):
        if step < optimizer.sealed_steps:
            continue
        share = {name: tensor[rank::world] for name, tensor in batch.items()}
        loss = common.mlp_loss(model, share)
        loss.backward()
        optimizer.param_groups[0]["weight_decay"] = 0.01 * (1 + step % 3)  # so that most steps have numbers of their own
        optimizer.step()
        losses[step] = [loss.item(), optimizer.last_grad_norm]
    with tidepool.gathered(model) as values:
        weights = {name: value.tolist() for name, value in values.items()}
    tidepool.leave(model)
    return losses, weights


def fork(out, server, rank=0, world=1, port=0, point=""):
    """A process that trains, and writes down what it saw; killed at `point`."""
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        os.environ.update({"TIDEPOOL_KILL_AT": point} if point else {})
        if world > 1:
            places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in places.items()})
        losses, weights = train(server, rank, world)
        with open(f"{out}-{rank}.json", "w", encoding="utf-8") as file:
            json.dump([losses, weights], file)
        code = 0
    except tidepool.TidepoolError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def ended(*pids):
    """Exit codes, negative for signals."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


class Points(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "seen")

    def seen(self, rank=0):
        with open(f"{self.out}-{rank}.json", encoding="utf-8") as file:
            return json.load(file)

    def alone(self, world=1):
        """What a run without a kill sees; the same each time."""
        with common.Server("16MiB") as server:
            ranks = [fork(self.out, server.sockets, rank, world, 29512) for rank in range(world)]
            self.assertEqual(ended(*ranks), [0] * world)
        return [self.seen(rank) for rank in range(world)]

    def test_of_the_server(self):
        (want,) = self.alone()
        for point, passing in SERVER_POINTS.items():
            with self.subTest(point), common.Server("16MiB", f"{point}:{passing}") as server:
                self.assertEqual(ended(fork(self.out, server.sockets)), [0])
                self.assertEqual(self.seen(), want)
                self.assertIsNotNone(server.process.poll(), "the point was not passed")

    def test_of_the_process_that_trains(self):
        (want,) = self.alone()
        for point, passing in RANK_POINTS.items():
            with self.subTest(point), common.Server("16MiB") as server:
                self.assertEqual(ended(fork(self.out, server.sockets, point=f"{point}:{passing}")), [-signal.SIGKILL])
                self.assertEqual(ended(fork(self.out, server.sockets)), [0])
                losses, weights = self.seen()
                self.assertEqual(weights, want[1])
                self.assertEqual(losses, {step: want[0][step] for step in losses})
                self.assertIn(str(STEPS - 1), losses)

    def test_of_one_of_two_ranks(self):
        port = 29500 + os.getpid() % 1000
        want = self.alone(world=2)
        for point in ("client.gradient_sent", "client.end_step_sent", "trainer.forward_done", "trainer.backward_done", "trainer.step_sealed"):
            with self.subTest(point), common.Server("16MiB") as server:
                ranks = [fork(self.out, server.sockets, rank, 2, port, f"{point}:3" * rank) for rank in range(2)]
                first, second = ended(*ranks)
                self.assertEqual(second, -signal.SIGKILL)
                self.assertNotEqual(first, 0)  # it says which rank was lost
                ranks = [fork(self.out, server.sockets, rank, 2, port + 1) for rank in range(2)]
                self.assertEqual(ended(*ranks), [0, 0])
                for rank in range(2):
                    losses, weights = self.seen(rank)
                    self.assertEqual(weights, want[rank][1])
                    self.assertEqual(losses, {step: want[rank][0][step] for step in losses})
                    self.assertIn(str(STEPS - 1), losses)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
