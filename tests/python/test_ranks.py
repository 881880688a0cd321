"""Two ranks, started by the package's launcher: the gradients are those of one rank with the batch of both."""

import json
import os
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


def train_here(out):
    """On each rank: trains on its share of each batch, and writes down what it saw and where the weights came to."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model = common.wrap(common.mlp(), rcache="50%", chunk_size="8KiB")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5)
    losses, norms = [], []
    for batch in common.mlp_batches(STEPS):
        loss = common.mlp_loss(model, own_share(batch, rank, world))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        norms.append(optimizer.last_grad_norm)
    tidepool.save_pretrained(model, os.path.join(out, "model"))
    with tidepool.gathered(model) as values:
        torch.save(dict(values), os.path.join(out, f"weights-{rank}.pt"))
    with open(os.path.join(out, f"told-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump({"losses": losses, "norms": norms, "sealed": optimizer.sealed_steps}, file)
    tidepool.close(model)


class Ranks(unittest.TestCase, common.Checks):
    def told(self, rank):
        with open(os.path.join(self.folder, f"told-{rank}.json"), encoding="utf-8") as file:
            return json.load(file)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_two_ranks_train_as_one_with_both_batches(self):
        common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--train", self.folder)

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
    if sys.argv[1:2] == ["--train"]:
        train_here(sys.argv[2])
    else:
        sys.exit(unittest.main(verbosity=2))
