"""Parameters of several dtypes in one job: norms and routers in fp32 beside bf16 weights, and frozen weights of any type."""

import json
import os
import socket
import sys
import tempfile
import unittest

import torch
import transformers
from torch import nn

import common
import tidepool
import tiny_models
from tidepool._safetensors import Directory

STEPS = 8
CLIP = 0.5


class Normed(nn.Module):
    """Matrices, and norms that compute in their own type."""

    def __init__(self, width=32, layers=4):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)])
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype))
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x.to(norm.weight.dtype)).to(layer.weight.dtype))
        return self.last(x.to(self.last.weight.dtype)).float()


def normed():
    torch.manual_seed(0)
    return Normed()


def mixed(model):
    """The same weights, rounded: matrices in bf16, norms in fp32."""
    model.bfloat16()
    model.norms.float()
    return model


def train_with_masters(model, values, batches, losses_of=common.mlp_loss):
    """Plain torch doing what a job does: fp32 masters of `values`, AdamW on them, and forward with weights of the model's dtypes."""
    masters = {name: nn.Parameter(values[name].detach().float().clone()) for name, _ in model.named_parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-2)
    run = common.Run([], [], {})
    for batch in batches:
        loss = losses_of(model, batch)
        loss.backward()
        for name, parameter in model.named_parameters():
            masters[name].grad = parameter.grad.float()
            parameter.grad = None
        run.losses.append(loss.item())
        run.norms.append(nn.utils.clip_grad_norm_(masters.values(), CLIP).item())
        optimizer.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(masters[name])
    run.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return run


def train(model, at=None, act=None, steps=STEPS, share=lambda batch: batch):
    """Trains a wrapped model and closes its job. `act` is called between forward and backward of step `at`."""
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=CLIP)
    run = common.Run([], [], {})
    for step, batch in enumerate(common.mlp_batches(steps)):
        loss = common.mlp_loss(model, share(batch))
        if step == at:
            act()
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())
        run.norms.append(optimizer.last_grad_norm)
    with tidepool.gathered(model) as values:
        run.weights = dict(values)
    tidepool.close(model)
    return run


def ask(sockets, path):
    """A look at the server's admin socket."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.path.join(sockets, "admin.sock"))
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
    return json.loads(answer.partition(b"\r\n\r\n")[2])


class Trained(unittest.TestCase, common.Checks):
    options = {"rcache": "50%", "chunk_size": "4KiB"}

    def assert_near(self, got, want):
        """Losses and norms of bf16 arithmetic; fp32 weights, and bf16 ones within a rounding or two."""
        for a, b in zip(got.losses + got.norms, want.losses + want.norms):
            self.assertLessEqual(abs(a - b), 0.02 * max(1.0, abs(b)))
        for name, value in want.weights.items():
            self.assertEqual(got.weights[name].dtype, value.dtype, name)
            self.assertLess((got.weights[name].float() - value.float()).abs().mean().item(), 2e-3, name)

    def test_fp32_norms_of_a_bf16_model_train_as_with_plain_torch(self):
        batches = common.mlp_batches(STEPS)
        want = train_with_masters(mixed(normed()), dict(mixed(normed()).named_parameters()), batches)
        model = common.wrap(mixed(normed()), **self.options)
        self.assertEqual(tidepool.estimate(model).parameter_bytes, sum(p.numel() * p.element_size() for p in model.parameters()))
        got = train(model)
        self.assert_near(got, want)
        self.assertEqual(got.weights["norms.0.weight"].dtype, torch.float32)
        self.assertEqual(got.weights["layers.0.weight"].dtype, torch.bfloat16)
        moved = (got.weights["norms.0.weight"] - 1).abs().max().item()
        self.assertGreater(moved, 1e-2)

    def test_masters_begin_with_the_precision_of_what_is_handed_over(self):
        batches = common.mlp_batches(STEPS)
        want = train_with_masters(mixed(normed()), dict(normed().named_parameters()), batches)
        self.assert_near(train(common.wrap(normed(), dtype="bf16", keep_fp32=["norms"], **self.options)), want)

    def test_all_forms_of_states(self):
        want = train_with_masters(mixed(normed()), dict(mixed(normed()).named_parameters()), common.mlp_batches(STEPS))
        for states in ("split", "split-bf16", "split-8bit"):
            model = common.wrap(mixed(normed()), **self.options)
            optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=CLIP, states=states)
            losses = []
            for batch in common.mlp_batches(STEPS):
                losses.append(common.mlp_loss(model, batch))
                losses[-1].backward()
                optimizer.step()
            for a, b in zip(losses, want.losses):
                self.assertLessEqual(abs(a.item() - b), 0.05 * max(1.0, abs(b)), states)
            tidepool.close(model)

    def test_a_killed_server_leaves_no_trace(self):
        alone = train(common.wrap(mixed(normed()), **self.options))
        killed = []
        with common.Server() as server:
            model = common.wrap(mixed(normed()), standalone=False, server=server.sockets, job="mixed", **self.options)
            disturbed = train(model, at=3, act=lambda: killed.append(server.kill()))
        self.assertEqual(killed, [1])
        self.assert_equal_bits(disturbed, alone)
        self.assert_learned(alone)

    def test_two_ranks_and_a_killed_server(self):
        with tempfile.TemporaryDirectory() as folder, common.Server() as server:
            for job in ("alone", "killed"):
                common.run_script("-m", "tidepool.launch", "-n", "2", __file__, "--train", folder, server.sockets, job)
            alone, killed = (torch.load(os.path.join(folder, f"{job}-{rank}.pt")) for job, rank in (("alone", 0), ("killed", 1)))
        self.assertEqual(common.farthest(alone, killed), 0)
        want = train_with_masters(mixed(normed()), dict(mixed(normed()).named_parameters()), common.mlp_batches(STEPS))
        for name, value in want.weights.items():
            self.assertEqual(alone[name].dtype, value.dtype)
            self.assertLess((alone[name].float() - value.float()).abs().mean().item(), 4e-3, name)

    def test_keep_fp32_without_a_dtype_and_with_all_of_them(self):
        model = common.wrap(normed().bfloat16(), keep_fp32=["norms.0", "last.*"], **self.options)
        tidepool.optim.AdamW(model.parameters(), states="split")
        kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
        kept = {name for name, kind in kinds.items() if kind is torch.float32}
        self.assertEqual(kept, {"norms.0.weight", "norms.0.bias", "last.weight", "last.bias"})
        tidepool.close(model)

        model = common.wrap(normed(), dtype="bf16", keep_fp32=["."], **self.options)
        with self.assertRaisesRegex(tidepool.UsageError, "bf16"):
            tidepool.optim.AdamW(model.parameters(), states="split")
        optimizer = tidepool.optim.AdamW(model.parameters())
        common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        optimizer.step()
        tidepool.close(model)

    def test_what_cannot_be_is_refused(self):
        with self.assertRaisesRegex(tidepool.UsageError, "a list of names"):
            common.wrap(normed(), dtype="bf16", keep_fp32="norms")
        with self.assertRaisesRegex(tidepool.UsageError, "no parameter of the model has a name with nrms"):
            common.wrap(normed(), dtype="bf16", keep_fp32=["nrms"])
        model = normed()
        model.norms.half()
        with self.assertRaisesRegex(tidepool.UsageError, "norms.0.weight is torch.float16, which cannot be trained"):
            common.wrap(model)


class Pretrained(unittest.TestCase, common.Checks):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def goes_and_comes(self, kind, directory, batch, **options):
        """Begins as transformers begins, trains a step, and writes what transformers writes. Returns the names that are fp32."""
        plain = kind.from_pretrained(directory, dtype=torch.bfloat16)
        model = tidepool.from_pretrained(kind, directory, dtype="bf16", standalone=True, rcache="100%", **options)
        self.was_empty = all(parameter.is_meta for parameter in model.parameters())
        optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-3, states="split")
        if not options:
            self.assertEqual({n: p.dtype for n, p in model.named_parameters()}, {n: p.dtype for n, p in plain.named_parameters()})
            with torch.no_grad():
                self.assertEqual(model(**batch).loss.item(), plain(**batch).loss.item())
        model(**batch).loss.backward()
        optimizer.step()
        kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
        tidepool.save_pretrained(model, self.path("out"))
        tidepool.close(model)

        files = Directory(self.path("out"))
        self.assertEqual({name: files.entry(name).dtype for name in kinds}, kinds)
        again = kind.from_pretrained(self.path("out"))
        self.assertEqual(again.config.dtype, torch.bfloat16)
        if not options:
            self.assertEqual({n: p.dtype for n, p in again.named_parameters()}, kinds)
        return {name for name, dtype in kinds.items() if dtype is torch.float32}

    def test_what_a_model_keeps_in_fp32_strictly(self):
        torch.manual_seed(0)
        config = transformers.Dots1Config(**tiny_models.DECODER, moe_intermediate_size=24, n_shared_experts=1, n_routed_experts=4,
                                          num_experts_per_tok=2, first_k_dense_replace=1)  # fmt: skip
        model = transformers.Dots1ForCausalLM(config)
        model.save_pretrained(self.path("in"))
        kept = self.goes_and_comes(transformers.Dots1ForCausalLM, self.path("in"), tiny_models.batches("llama", 1)[0])
        self.assertEqual(kept, {"model.layers.1.mlp.gate.weight"})
        self.assertFalse(self.was_empty, "experts are fused")

        os.rename(self.path("out"), self.path("fused"))
        again = self.goes_and_comes(transformers.Dots1ForCausalLM, self.path("fused"), tiny_models.batches("llama", 1)[0])
        self.assertEqual(again, kept)
        self.assertTrue(self.was_empty)

    def test_t5_as_transformers_and_as_the_caller_says(self):
        torch.manual_seed(0)
        tiny_models.make("t5").save_pretrained(self.path("in"))
        (batch,) = tiny_models.batches("t5", 1)
        self.assertEqual(self.goes_and_comes(transformers.T5ForConditionalGeneration, self.path("in"), batch), set())
        kept = self.goes_and_comes(transformers.T5ForConditionalGeneration, self.path("in"), batch, keep_fp32=["wo"])
        self.assertEqual(len(kept), 4)
        self.assertTrue(all(name.endswith(".wo.weight") for name in kept))


class Quantised(nn.Module):
    """A base of bytes with a scale a row, as quantisers make them, and an adapter over it."""

    def __init__(self, seed=0, width=64):
        super().__init__()
        dice = torch.Generator().manual_seed(seed)
        self.base = nn.Parameter(torch.randint(0, 256, (width, width), generator=dice, dtype=torch.uint8), requires_grad=False)
        self.signs = nn.Parameter(torch.randint(-1, 2, (width,), generator=dice, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.rand(width, 1, generator=dice) / 128, requires_grad=False)
        self.order = nn.Parameter(torch.randperm(width, generator=dice), requires_grad=False)
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, x):
        weight = (self.base.float() - 128) * self.scale
        hidden = nn.functional.linear(self.first(x), weight)[:, self.order] * self.signs
        return self.last(hidden)


class Frozen(unittest.TestCase, common.Checks):
    def test_bytes_train_as_with_plain_torch(self):
        plain, ours = common.twins(Quantised())
        trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
        want = common.train_plain(plain, torch.optim.AdamW(trained, lr=1e-2), common.mlp_batches(STEPS), common.mlp_loss, clip=CLIP)
        base = ours.base.detach().clone()
        got = train(common.wrap(ours, rcache="100%"))
        self.assertEqual(got.losses[0], want.losses[0])
        self.assert_same_run(got, want, limit=1e-5)
        self.assertTrue(torch.equal(got.weights["base"], base))
        self.assertEqual(got.weights["order"].dtype, torch.int64)

    def test_jobs_share_a_base_of_bytes(self):
        with common.Server() as server:
            models = []
            for job in ("one", "two"):
                models.append(common.wrap(Quantised(), standalone=False, server=server.sockets, job=job, rcache="100%"))
                tidepool.optim.AdamW(models[-1].parameters(), lr=1e-2)
                self.assertEqual(models[-1].base.untyped_storage()._cdata, models[-1].signs.untyped_storage()._cdata, "one raw chunk")

            def raw():
                chunks = ask(server.sockets, "/v1/chunks?limit=1000")["chunks"]
                return [chunk for chunk in chunks if chunk["dtype"] == "raw" and chunk["state"] == "frozen"]

            self.assertTrue(common.wait_until(lambda: len(raw()) == 2), "the picture is made anew now and then")
            self.assertGreaterEqual(raw()[0]["bytes"], 64 * 64 + 64 + 64 * 8)
            pool = ask(server.sockets, "/v1/status")["pool"]
            self.assertEqual(pool["frozen_chunks"], 2, "the bytes, and the scales in fp32")
            losses = [common.mlp_loss(model, common.mlp_batches(1)[0]).item() for model in models]
            self.assertEqual(losses[0], losses[1])
            for model in models:
                tidepool.close(model)

    def test_a_frozen_part_keeps_its_type_unless_a_dtype_is_given(self):
        for dtype, want in ((None, torch.float16), ("bf16", torch.bfloat16)):
            model = Quantised()
            model.scale.data = model.scale.data.half()
            common.wrap(model, dtype=dtype, rcache="100%")
            tidepool.optim.AdamW(model.parameters(), lr=1e-2)
            self.assertEqual(model.scale.dtype, want)
            self.assertEqual(model.base.dtype, torch.uint8)
            tidepool.close(model)


def train_here(folder, server, job):
    """On each of two ranks: trains on its half of each batch. In the job "killed", rank 0 kills the server within a step."""
    rank = int(os.environ["RANK"])

    def half(batch):
        size = batch["y"].shape[0] // 2
        return {name: tensor[rank * size : (rank + 1) * size] for name, tensor in batch.items()}

    def kill():
        if rank == 0 and job == "killed":
            (pid,) = common.pids_of("memserver", server)
            os.kill(pid, 9)

    model = common.wrap(mixed(normed()), standalone=False, server=server, job=job, **Trained.options)
    run = train(model, at=3, act=kill, share=half)
    torch.save(run.weights, os.path.join(folder, f"{job}-{rank}.pt"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train_here(*sys.argv[2:])
    else:
        unittest.main(verbosity=2)
