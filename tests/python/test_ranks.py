"""Two ranks, started by the package's launcher: the gradients are those of one rank with the batch of both."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

import torch

import common
import tidepool

STEPS = 6


def own_share(batch, rank, world):
    size = batch["y"].shape[0] // world
    return {name: tensor[rank * size : (rank + 1) * size] for name, tensor in batch.items()}


def place():
    """Rank and number of ranks, as torchrun, accelerate and srun tell them."""
    name = ("RANK", "WORLD_SIZE") if "RANK" in os.environ else ("SLURM_PROCID", "SLURM_NTASKS")
    return tuple(int(os.environ[each]) for each in name)


def train_here(out, with_group=False, with_example=False, plan=""):
    """On each rank: trains on its share of each batch, and writes down what it saw and where the weights came to.

    `with_group`: the program has a process group of its own, and sums in it wherever the engine may have something in flight.
    """
    rank, world = place()
    sums = []

    def sum_up(value):
        if with_group:
            tensor = torch.full((64,), float(value))
            torch.distributed.all_reduce(tensor)
            sums.append(tensor[0].item())

    if with_group:
        torch.distributed.init_process_group("gloo")
    example = torch.zeros(4 + 30 * rank, 8) if with_example else None
    rcache = "auto" if plan else "50%"
    model = common.wrap(common.mlp(), rcache=rcache, plan=plan, chunk_size="8KiB", gradient_accumulation_steps=2, example=example)
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    sum_up(1)
    losses, norms = [], []
    for batch in common.mlp_batches(STEPS):
        loss = common.mlp_loss(model, own_share(batch, rank, world))
        sum_up(2)
        (loss / 2).backward()
        sum_up(3)
        with torch.no_grad():
            model[0](batch["x"])  # a short look, behind which the engine fetches ahead
        sum_up(4)
        (common.mlp_loss(model, own_share(batch, rank, world)) / 2).backward()
        sum_up(5)
        optimizer.step()
        sum_up(6)
        losses.append(loss.item())
        norms.append(optimizer.last_grad_norm)
    tidepool.save_pretrained(model, os.path.join(out, "model"))
    with tidepool.gathered(model) as values:
        torch.save(dict(values), os.path.join(out, f"weights-{rank}.pt"))
    with open(os.path.join(out, f"told-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump({"losses": losses, "norms": norms, "sealed": optimizer.sealed_steps}, file)
    tidepool.close(model)
    if with_group:
        torch.distributed.destroy_process_group()
        assert sums == [2.0] + [2.0 * value for _ in range(STEPS) for value in (2, 3, 4, 5, 6)], sums


def begin_with_other_weights():
    """On each rank: one parameter of the model depends on the rank."""
    model = common.mlp()
    with torch.no_grad():
        model[4].weight[0, 0] += int(os.environ["RANK"])
    common.wrap(model)
    try:
        tidepool.optim.SGD(model.parameters())
    except tidepool.UsageError as error:
        print(f"rank {os.environ['RANK']}: {error.where}: {error.what}: {error.fix}", flush=True)


class Ranks(unittest.TestCase, common.Checks):
    def told(self, rank):
        with open(os.path.join(self.folder, f"told-{rank}.json"), encoding="utf-8") as file:
            return json.load(file)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_two_ranks_train_as_one_with_both_batches(self):
        self.two_ranks_train_as_one("--train")

    def test_ranks_may_have_examples_of_other_sizes(self):
        self.two_ranks_train_as_one("--train-with-example")

    def two_ranks_train_as_one(self, how):
        common.run_script("-m", "tidepool.launch", "-n", "2", __file__, how, self.folder)
        self.assert_as_one()

    def test_a_process_group_of_the_programs_own_meets_nothing_of_the_engine(self):
        common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--train-with-group", self.folder)
        self.assert_as_one()

    def test_accelerate_and_srun_start_ranks_by_their_variables(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        # What `accelerate launch --cpu --num_processes 2` sets; and srun -n 2.
        accelerate = lambda rank: {  # noqa: E731
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO",
        }  # fmt: skip
        srun = lambda rank: {  # noqa: E731
            "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": "2", "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_NODELIST": "localhost",
        }  # fmt: skip
        for launcher, how in ((accelerate, "--train"), (srun, "--train-by-ddp")):
            with self.subTest(launcher=launcher("0")):
                self.run_two(launcher, how)
                self.assert_as_one()

    def run_two(self, variables_of, how):
        words = [sys.executable, __file__, how, self.folder]
        ranks = [
            subprocess.Popen(words, env={**os.environ, **variables_of(str(rank))}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=120)[0].decode() for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], "\n".join(said))

    def test_ranks_with_other_initial_weights_are_told_of_the_first_one(self):
        said = common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--other-weights").stdout
        for rank in range(2):
            self.assertIn(f"rank {rank}: 4.weight: the ranks begin with different weights: 1 of 12 parameters differ, the first is 4.weight", said)
        self.assertIn("same seed", said)

    def assert_as_one(self):
        plain = common.mlp()
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), common.mlp_batches(STEPS), common.mlp_loss, clip=0.5)
        first, second = self.told(0), self.told(1)
        for step in range(STEPS):
            mean = (first["losses"][step] + second["losses"][step]) / 2
            self.assertLessEqual(abs(mean - want.losses[step]), 1e-6)
            self.assertLessEqual(abs(first["norms"][step] - want.norms[step]), 1e-6)
        self.assertEqual(first["norms"], second["norms"])
        self.assertNotEqual(first["losses"], second["losses"])
        self.assertEqual((first["sealed"], second["sealed"]), (STEPS, STEPS))

        weights = torch.load(os.path.join(self.folder, "weights-0.pt"))
        self.assertLessEqual(common.farthest(weights, want.weights), 1e-6)
        self.assertEqual(common.farthest(weights, torch.load(os.path.join(self.folder, "weights-1.pt"))), 0)

        from safetensors.torch import load_file

        self.assertEqual(common.farthest(load_file(os.path.join(self.folder, "model", "model.safetensors")), weights), 0)

    def test_the_launcher_says_how_it_is_used(self):
        said = common.run_script("-m", "tidepool.launch", "--help").stdout
        for word in ("--ranks", "SCRIPT", "--max-restarts", "torchrun"):
            self.assertIn(word, said)
        self.assertEqual(common.run_script("-m", "tidepool.launch", "-n", "0", "x.py", check=False).returncode, 2)
        self.assertEqual(common.run_script("-m", "tidepool.launch", check=False).returncode, 2)

    def test_the_launcher_hands_on_what_the_script_says(self):
        script = os.path.join(self.folder, "script.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import os, sys\nprint(sys.argv[1:], os.environ['RANK'], os.environ['WORLD_SIZE'])\nsys.exit(int(sys.argv[-1]))\n")
        done = common.run_script("-m", "tidepool.launch", script, "--lr", "-n", "0")
        self.assertIn("['--lr', '-n', '0'] 0 1", done.stdout)
        self.assertNotEqual(common.run_script("-m", "tidepool.launch", script, "3", check=False).returncode, 0)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--train"], ["--train-with-group"], ["--train-with-example"], ["--train-by-ddp"]):
        plan = "ddp" if sys.argv[1].endswith("ddp") else ""
        train_here(sys.argv[2], with_group=sys.argv[1].endswith("group"), with_example=sys.argv[1].endswith("example"), plan=plan)
    elif sys.argv[1:2] == ["--other-weights"]:
        begin_with_other_weights()
    else:
        sys.exit(unittest.main(verbosity=2))
