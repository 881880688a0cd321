"""Checkpoints from Python: a job that goes on behind one has the bits of the run that was left alone; states in torch's own format, out and in."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import common
import tidepool
import tiny_models
from tidepool._safetensors import Reader

SAVED_AT, STEPS = 3, 6
RULE = {"lr": 1e-2, "weight_decay": 0.1}


def begin(model, states="fp32", **options):
    common.wrap(model, **options)
    return tidepool.optim.AdamW(model.parameters(), max_grad_norm=1.0, states=states, **RULE)


def steps(model, optimizer, batches):
    losses = []
    for batch in batches:
        inputs = batch["x"].to(next(model.parameters()).dtype)
        loss = common.mlp_loss(lambda x: model(x).float(), {**batch, "x": inputs})
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensors_in(path):
    readers = [Reader(os.path.join(path, f"{name}.safetensors")) for name in ("model", "optimizer")]
    return {name: reader.tensor(name).clone() for reader in readers for name in reader.entries}


def load_here(path, out):
    """On each rank: goes on behind the checkpoint, writes what it has become, and takes the next steps."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = common.wrap(common.mlp(), chunk_size="8KiB")
    tidepool.load(model, path)
    optimizer = tidepool.optim.AdamW(model.parameters(), max_grad_norm=1.0, **RULE)
    again = tidepool.save(model, os.path.join(out, "again"))
    losses = []
    for batch in common.mlp_batches(STEPS)[SAVED_AT:]:
        size = batch["y"].shape[0] // world
        loss = common.mlp_loss(model, {name: value[rank * size : (rank + 1) * size] for name, value in batch.items()})
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(os.path.join(out, f"told-{rank}.json"), "w", encoding="utf-8") as file:
        json.dump({"losses": losses, "again": again}, file)
    tidepool.close(model)


def _llama():
    torch.manual_seed(0)
    return tiny_models.make("llama")


class Checkpoints(unittest.TestCase, common.Checks):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.batches = common.mlp_batches(STEPS)

    def saved(self, states="fp32", **options):
        """A run that saves on its way: the checkpoint, and the losses and weights of the steps behind it."""
        model = common.mlp()
        optimizer = begin(model, states, **options)
        steps(model, optimizer, self.batches[:SAVED_AT])
        path = tidepool.save(model, os.path.join(self.folder, states), extra={"next": SAVED_AT}, wait=False)
        losses = steps(model, optimizer, self.batches[SAVED_AT:])
        tidepool.saved(model)
        with tidepool.gathered(model) as values:
            weights = dict(values)
        tidepool.close(model)
        return path, losses, weights

    def test_a_job_goes_on_with_the_bits_of_the_run_that_was_left_alone(self):
        for states in ("fp32", "split", "split-bf16", "split-8bit"):
            with self.subTest(states):
                options = {} if states == "fp32" else {"dtype": "bf16"}
                path, losses, weights = self.saved(states, **options)
                model = common.mlp()
                with torch.no_grad():
                    model[0].weight.zero_()  # nothing of it counts
                common.wrap(model, **options)
                loaded = tidepool.load(model, os.path.dirname(path))
                self.assertEqual((loaded.path, loaded.step, loaded.extra), (path, SAVED_AT, {"next": SAVED_AT}))
                optimizer = tidepool.optim.AdamW(model.parameters(), max_grad_norm=1.0, states=states, **RULE)
                self.assertEqual(optimizer.sealed_steps, SAVED_AT)
                self.assertEqual(steps(model, optimizer, self.batches[SAVED_AT:]), losses)
                with tidepool.gathered(model) as values:
                    self.assertEqual(common.farthest(dict(values), weights), 0)
                tidepool.close(model)

    def test_saved_on_one_rank_it_goes_on_on_two(self):
        path, losses, _ = self.saved()
        words = [sys.executable, "-m", "tidepool.launch", "-n", "2", __file__, "--load", path, self.folder]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        told = []
        for rank in range(2):
            with open(os.path.join(self.folder, f"told-{rank}.json"), encoding="utf-8") as file:
                told.append(json.load(file))
        before, again = tensors_in(path), tensors_in(told[0]["again"])
        self.assertEqual(before.keys(), again.keys())
        for name, values in before.items():
            self.assertTrue(torch.equal(values, again[name]), name)
        for both, alone in zip(zip(told[0]["losses"], told[1]["losses"]), losses):
            self.assertAlmostEqual(sum(both) / 2, alone, delta=1e-5)

    def test_plain_torch_loads_what_was_exported_and_goes_on(self):
        path, losses, _ = self.saved()
        to = os.path.join(self.folder, "dcp")
        self.assertEqual(tidepool.export_dcp(os.path.dirname(path), to), path)
        model = common.mlp()
        optimizer = torch.optim.AdamW(model.parameters(), **RULE)
        weights, states = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optim": {"state": states["state"]}}, checkpoint_id=to, no_dist=True)
        for name, values in tensors_in(path).items():
            parameter, _, moment = name.partition(".exp_avg")
            found = weights[name] if not moment and ".exp_avg" not in name else states["state"][parameter]["exp_avg" + moment]
            self.assertTrue(torch.equal(found, values), name)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
        run = common.train_plain(model, optimizer, self.batches[SAVED_AT:], common.mlp_loss)
        for got, want in zip(run.losses, losses):
            self.assertAlmostEqual(got, want, delta=2e-6)
        with self.assertRaises(tidepool.UsageError):
            tidepool.export_dcp(path, to)

    def test_what_plain_torch_has_saved_is_gone_on_with(self):
        model = common.mlp()
        optimizer = torch.optim.AdamW(model.parameters(), **RULE)
        common.train_plain(model, optimizer, self.batches[:SAVED_AT], common.mlp_loss)
        weights, states = get_state_dict(model, optimizer)
        at = os.path.join(self.folder, "torch")
        dcp.save({"model": weights, "optim": states}, checkpoint_id=at, no_dist=True)
        want = common.train_plain(model, optimizer, self.batches[SAVED_AT:], common.mlp_loss)

        model = common.wrap(common.mlp())
        self.assertEqual(tidepool.load(model, at).step, SAVED_AT)
        mine = tidepool.optim.AdamW(model.parameters(), max_grad_norm=1.0, **RULE)
        self.assertEqual(mine.sealed_steps, SAVED_AT)
        self.assert_same_run(common.train(model, mine, self.batches[SAVED_AT:], common.mlp_loss), want)

    def trained_by_trainer(self, model, at, named=False):
        """Trains as transformers' Trainer does, saves in its layout, and trains on: the losses of the further steps."""
        decays = set(transformers.Trainer.get_decay_parameter_names(None, model))
        groups = [
            {"params": [(name, p) if named else p for name, p in model.named_parameters() if (name in decays) == decay], "weight_decay": 0.1 if decay else 0.0}
            for decay in (True, False)
        ]
        optimizer = torch.optim.AdamW(groups, lr=RULE["lr"])
        losses = []
        for step, batch in enumerate(tiny_models.batches("llama", STEPS)):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if step + 1 == SAVED_AT:
                model.save_pretrained(at)
                torch.save(optimizer.state_dict(), os.path.join(at, "optimizer.pt"))
                with open(os.path.join(at, "trainer_state.json"), "w", encoding="utf-8") as file:
                    json.dump({"global_step": SAVED_AT + 1}, file)  # one was skipped
        return losses[SAVED_AT:]

    def test_what_trainer_has_saved_is_gone_on_with(self):
        for named in (False, True):
            with self.subTest(named):
                at = os.path.join(self.folder, f"out-{named}", "checkpoint-4")
                want = self.trained_by_trainer(_llama(), at, named)
                os.makedirs(os.path.join(os.path.dirname(at), "checkpoint-9"))  # was being written
                model = common.wrap(_llama())
                loaded = tidepool.load(model, os.path.dirname(at))
                self.assertEqual((loaded.path, loaded.step), (at, SAVED_AT + 1))
                decays = set(transformers.Trainer.get_decay_parameter_names(None, model))
                groups = [
                    {"params": [p for name, p in model.named_parameters() if (name in decays) == decay], "weight_decay": 0.1 if decay else 0.0}
                    for decay in (True, False)
                ]
                optimizer = tidepool.optim.AdamW(groups, lr=RULE["lr"], max_grad_norm=1.0)
                got = []
                for batch in tiny_models.batches("llama", STEPS)[SAVED_AT:]:
                    loss = model(**batch).loss
                    loss.backward()
                    optimizer.step()
                    got.append(loss.item())
                for mine, theirs in zip(got, want):
                    self.assertAlmostEqual(mine, theirs, delta=1e-5)
                tidepool.close(model)

    def test_a_checkpoint_of_trainers_that_does_not_fit_is_named(self):
        at = os.path.join(self.folder, "checkpoint-4")
        self.trained_by_trainer(_llama(), at)
        file = os.path.join(at, "optimizer.pt")
        with self.assertRaises(tidepool.UsageError) as caught:
            tidepool.load(common.wrap(common.mlp()), at)
        self.assertEqual(caught.exception.where, file)
        self.assertIn("no order of Trainer's parameters", caught.exception.why)

        saved = torch.load(file, weights_only=True)
        saved["state"][0]["step"] += 1
        torch.save(saved, file)
        with self.assertRaises(tidepool.UsageError) as caught:
            tidepool.load(common.wrap(_llama()), at)
        self.assertIn("from 3 to 4 steps", caught.exception.what)
        torch.save({"state": {0: {"momentum_buffer": torch.zeros(2)}}, "param_groups": [{"params": [0]}]}, file)
        with self.assertRaises(tidepool.UsageError) as caught:
            tidepool.load(common.wrap(_llama()), at)
        self.assertIn("no AdamW", caught.exception.what)

        with open(file, "r+b") as opened:
            opened.truncate(os.path.getsize(file) // 2)
        with self.assertRaises(tidepool.FileError) as caught:
            tidepool.load(common.wrap(_llama()), at)
        self.assertEqual(caught.exception.where, file)

    def test_buffers_come_too(self):
        def made():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.BatchNorm1d(24), torch.nn.Linear(24, 4))

        model = made()
        steps(model, begin(model, rcache="100%"), self.batches[:2])
        path = tidepool.save(model, self.folder)
        mean = model[1].running_mean.clone()
        tidepool.close(model)
        other = common.wrap(made())
        tidepool.load(other, path)
        self.assertTrue(torch.equal(other[1].running_mean, mean))
        self.assertEqual(other[1].num_batches_tracked.item(), 2)

    def test_what_does_not_fit_is_named(self):
        path, _, _ = self.saved()
        model = common.mlp()
        begin(model)
        with self.assertRaises(tidepool.UsageError):
            tidepool.load(model, path)  # its job has begun
        tidepool.close(model)

        other = common.wrap(common.mlp(width=32))
        tidepool.load(other, path)
        with self.assertRaises(tidepool.UsageError) as caught:
            tidepool.optim.AdamW(other.parameters())
        self.assertIn("0.weight.exp_avg", caught.exception.where)

        narrow = common.wrap(common.mlp(), dtype="bf16")
        tidepool.load(narrow, path)
        with self.assertRaises(tidepool.UsageError) as caught:
            tidepool.optim.AdamW(narrow.parameters(), states="split-bf16")
        self.assertIn("would round", caught.exception.what)

        file = os.path.join(path, "optimizer.safetensors")
        with open(file, "r+b") as opened:
            opened.seek(-2, os.SEEK_END)
            opened.write(b"xx")
        with self.assertRaises(tidepool.FileError) as caught:
            tidepool.load(common.wrap(common.mlp()), path)
        self.assertIn("optimizer.safetensors", caught.exception.where)
        with self.assertRaises(tidepool.FileError):
            tidepool.load(common.wrap(common.mlp()), os.path.join(self.folder, "nowhere"))

    def test_a_folder_that_cannot_be_written_is_an_error_and_training_goes_on(self):
        model = common.mlp()
        optimizer = begin(model)
        steps(model, optimizer, self.batches[:1])
        blocked = os.path.join(self.folder, "file")
        with open(blocked, "w", encoding="utf-8"):
            pass
        with self.assertRaises(tidepool.FileError):
            tidepool.save(model, os.path.join(blocked, "below"))
        steps(model, optimizer, self.batches[1:2])
        self.assertTrue(os.path.isdir(tidepool.save(model, self.folder)))
        tidepool.close(model)


if __name__ == "__main__":
    if "--load" in sys.argv:
        load_here(sys.argv[-2], sys.argv[-1])
    else:
        unittest.main()
