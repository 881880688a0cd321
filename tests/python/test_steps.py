"""Steps as torch takes them: parameters without a gradient are left alone, and groups have numbers that change. With kills of memserver."""

import json
import os
import sys
import tempfile
import unittest

import torch
from torch import nn

import common
import tidepool

STEPS = 12
rates = torch.optim.lr_scheduler


class Branches(nn.Module):
    """A stem, and one of two branches, or neither, by the batch; at the end a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 24)
        self.left = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24))
        self.right = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24))
        self.head = nn.Linear(24, 4)

    def forward(self, x, way):
        stem = nn.functional.gelu(self.stem(x))
        return self.head({"left": self.left, "right": self.right, "none": nn.Identity()}[way](stem))


WAYS = ("left", "none", "right", "right", "left")


def batches(count=STEPS, shift=0):
    return [dict(batch, way=WAYS[(index + shift) % len(WAYS)]) for index, batch in enumerate(common.mlp_batches(count))]


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch["x"], batch["way"]), batch["y"])


def groups(model, **first):
    """Two groups: vectors, with options of their own, and matrices."""
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    return [{"params": vectors, **first}, {"params": matrices}]


class Change:
    """A schedule of one's own, which sets options of the groups at some steps."""

    def __init__(self, optimizer, changes):
        self.optimizer, self.changes, self.steps = optimizer, changes, 0

    def step(self):
        self.steps += 1
        for group, options in self.changes.get(self.steps, {}).items():
            self.optimizer.param_groups[group].update(options)


class Steps(unittest.TestCase, common.Checks):
    """Each case three times: plain torch, the package, and the package with a memserver that is killed on the way: the same bits then."""

    def run_all(self, rule, schedule=None, batches_of=batches, make=Branches, **options):
        first = options.pop("first", {})
        plain = make()
        want = common.train_plain(plain, getattr(torch.optim, rule)(groups(plain, **first), **options), batches_of(), loss_of, clip=0, schedule=schedule)

        def own(model):
            return getattr(tidepool.optim, rule)(groups(model, **first), **options)

        model = common.wrap(make(), rcache="80%", chunk_size="4KiB")
        alone = common.train(model, own(model), batches_of(), loss_of, schedule=schedule)
        self.assert_same_run(alone, want)
        self.assert_learned(alone)

        killed = []
        with common.Server() as server:
            model = common.wrap(make(), rcache="80%", chunk_size="4KiB", standalone=False, server=server.sockets, job="steps")
            optimizer = own(model)

            def kill_at(model, batch, step=[0]):
                step[0] += 1
                loss = loss_of(model, batch)
                if step[0] % 4 == 0:
                    killed.append(server.kill())
                return loss

            disturbed = common.train(model, optimizer, batches_of(), kill_at, schedule=schedule)
        self.assertEqual(killed, [1] * (STEPS // 4))
        self.assert_equal_bits(disturbed, alone)
        return alone

    def test_branches_with_weight_decay(self):
        alone = self.run_all("AdamW", lr=1e-2, weight_decay=0.3)
        # Decay and momentum would have moved it: the run differs from one in which every gradient is there.
        every = common.wrap(Branches(), rcache="80%", chunk_size="4KiB")
        optimizer = tidepool.optim.AdamW(groups(every), lr=1e-2, weight_decay=0.3)

        def loss_of_all(model, batch):
            return loss_of(model, batch) + 0 * sum(parameter.sum() for parameter in model.parameters())

        reached = common.train(every, optimizer, batches(), loss_of_all)
        self.assertGreater(common.farthest(alone.weights, reached.weights), 1e-3)

    def test_branches_with_momentum(self):
        self.run_all("SGD", lr=0.05, momentum=0.9, weight_decay=0.01)

    def test_branches_with_dampening(self):
        self.run_all("SGD", lr=0.05, momentum=0.9, dampening=0.5)

    def test_branches_with_decay_of_the_rate(self):
        self.run_all("Adagrad", lr=0.02, lr_decay=0.1, weight_decay=0.01)

    def test_a_branch_that_is_never_taken(self):
        def never(count=STEPS):
            return [dict(batch, way="left") for batch in common.mlp_batches(count)]

        alone = self.run_all("AdamW", lr=1e-2, weight_decay=0.3, batches_of=never)
        begun = dict(Branches().named_parameters())
        for name in ("right.0.weight", "right.2.bias"):
            self.assertEqual((alone.weights[name] - begun[name]).abs().max().item(), 0)

    def test_rates_by_a_function_of_each_group(self):
        self.run_all("AdamW", lr=1e-2, schedule=lambda opt: rates.LambdaLR(opt, [lambda step: 1 / (1 + step), lambda step: 0.9**step]))

    def test_a_warm_up_from_zero_of_one_group(self):
        self.run_all("AdamW", lr=1e-2, schedule=lambda opt: rates.LambdaLR(opt, [lambda _: 1.0, lambda step: min(1.0, step / 5)]))

    def test_options_that_change(self):
        changes = {
            2: {0: {"weight_decay": 0.5}},
            4: {1: {"betas": (0.7, 0.9)}},
            6: {0: {"eps": 1e-3}, 1: {"weight_decay": 0.0}},
            9: {0: {"betas": (0.95, 0.99), "lr": 1e-3}},
        }
        self.run_all("AdamW", lr=1e-2, weight_decay=0.1, schedule=lambda opt: Change(opt, changes))

    def test_groups_that_begin_with_other_options(self):
        self.run_all("AdamW", lr=1e-2, first={"betas": (0.8, 0.9), "eps": 1e-4, "lr": 3e-3, "weight_decay": 0.0})

    def test_one_cycle_with_momentum(self):
        self.run_all("SGD", lr=0.01, momentum=0.9, schedule=lambda opt: rates.OneCycleLR(opt, [0.05, 0.02], total_steps=STEPS + 1))

    def test_one_cycle_with_betas(self):
        self.run_all("AdamW", lr=0.01, schedule=lambda opt: rates.OneCycleLR(opt, 1e-2, total_steps=STEPS + 1))

    def test_accumulation_reaches_a_branch_in_one_of_two(self):
        plain = Branches()
        want = common.train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.3), batches(), loss_of, clip=0, accumulate=2)
        model = common.wrap(Branches(), rcache="80%", chunk_size="4KiB", gradient_accumulation_steps=2)
        got = common.train(model, tidepool.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.3), batches(), loss_of, accumulate=2)
        self.assert_same_run(got, want)


def train_rank(out):
    """On each rank: its own ways through the model, on its own data."""
    rank = int(os.environ.get("RANK", 0))
    model = common.wrap(Branches(), rcache="100%", chunk_size="64KiB")  # one chunk: ranks meet in the same collectives
    run = common.train(model, tidepool.optim.AdamW(groups(model), lr=1e-2, weight_decay=0.3), batches(shift=rank), loss_of)
    torch.save(run.weights, os.path.join(out, f"weights-{rank}.pt"))
    with open(os.path.join(out, f"losses-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(run.losses, file)


class TwoRanks(unittest.TestCase, common.Checks):
    def test_a_branch_counts_where_any_rank_took_it(self):
        with tempfile.TemporaryDirectory() as folder:
            common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--train", folder)
            got = [torch.load(os.path.join(folder, f"weights-{rank}.pt")) for rank in range(2)]

        # The mean over both, where any of them has a gradient; alone where none has.
        plain = Branches()
        optimizer = torch.optim.AdamW(groups(plain), lr=1e-2, weight_decay=0.3)
        alone = 0
        for first, second in zip(batches(), batches(shift=1)):
            ((loss_of(plain, first) + loss_of(plain, second)) / 2).backward()
            alone += sum(parameter.grad is None for parameter in plain.parameters())
            optimizer.step()
            optimizer.zero_grad()
        self.assertGreater(alone, 0)
        want = {name: parameter.detach() for name, parameter in plain.named_parameters()}
        self.assertLessEqual(common.farthest(got[0], want), 2e-6)
        self.assertEqual(common.farthest(got[0], got[1]), 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_rank(sys.argv[2])
    else:
        sys.exit(unittest.main(verbosity=2))
