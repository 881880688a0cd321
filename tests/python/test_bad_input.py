"""What is wrong is said by name, in a Python error, and nothing is lost: neither the model nor the job."""

import copy
import os
import signal
import sys
import threading
import unittest
from unittest import mock

import torch
from torch import nn

import common
import tidepool
from tidepool import _library


class BadModels(unittest.TestCase):
    def refuse(self, text, model, **options):
        with self.assertRaisesRegex(tidepool.UsageError, text) as caught:
            common.wrap(model, **options)
        self.assertIsInstance(caught.exception, (tidepool.TidepoolError, ValueError))
        self.assertTrue(caught.exception.what)
        return caught.exception

    def test_no_module(self):
        self.refuse("is not a torch.nn.Module", torch.zeros(1))

    def test_nothing_to_train(self):
        self.assertIn("asks for a gradient", self.refuse("no parameter that is trained", common.mlp().requires_grad_(False)).why)
        self.assertIn("has no parameters", self.refuse("no parameter that is trained", nn.ReLU()).why)

    def test_dtypes_that_cannot_be_trained(self):
        self.refuse("float64", common.mlp().double())
        self.assertIn("bf16", self.refuse("float16", common.mlp().half()).fix)

    def test_mixed_devices_and_meta(self):
        model = common.mlp()
        model[2].to("meta")
        self.refuse("2.weight is on the meta device", model)

    def test_aliased_parameters(self):
        model = common.mlp()
        model[4].weight = nn.Parameter(model[2].weight.detach())
        error = self.refuse("2.weight and 4.weight share memory", model)
        self.assertIn("same Parameter object", error.fix)

    def test_a_buffer_over_a_parameter(self):
        model = common.mlp()
        model.register_buffer("row", model[2].weight.detach()[3])
        self.refuse("2.weight and row share memory", model)

    def test_parameters_side_by_side_in_one_storage_are_fine(self):
        model = common.mlp()
        flat = torch.cat([model[2].weight.detach().flatten(), model[4].weight.detach().flatten()])
        for layer, half in zip((model[2], model[4]), flat.chunk(2)):
            layer.weight = nn.Parameter(half.view_as(layer.weight))
        common.wrap(model)
        tidepool.optim.SGD(model.parameters())
        with torch.no_grad():
            self.assertTrue(torch.equal(model(torch.ones(1, 8)), common.mlp()(torch.ones(1, 8))))
        tidepool.close(model)

    def test_not_contiguous(self):
        model = common.mlp()
        model[2].weight = nn.Parameter(model[2].weight.detach().t())
        self.refuse("2.weight is not contiguous", model)

    def test_sparse(self):
        model = common.mlp()
        model[2].weight = nn.Parameter(torch.eye(24).to_sparse())
        self.refuse("2.weight is sparse", model)

    def test_wrappers_by_name(self):
        self.refuse("wrapped by DataParallel", nn.DataParallel(common.mlp()))
        for name in ("DistributedDataParallel", "FullyShardedDataParallel"):
            stand_in = type(name, (nn.Module,), {})()
            stand_in.module = common.mlp()
            self.refuse(f"wrapped by {name}", stand_in)

    def test_a_subclass_of_tensors(self):
        class DTensor(torch.Tensor):
            pass

        model = common.mlp()
        model[2].weight = nn.Parameter(torch.zeros(24, 24).as_subclass(DTensor))
        self.refuse("2.weight is a DTensor", model)

    def test_lazy_parameters(self):
        self.refuse("no shape yet", nn.Sequential(nn.LazyLinear(3)))

    def test_more_dimensions_and_longer_names_than_there_can_be(self):
        model = common.mlp()
        model.many = nn.Parameter(torch.ones(1, 1, 1, 1, 1, 1, 2))
        self.refuse("many has 7 dimensions", model)
        model = common.mlp()
        model.register_parameter("x" * 256, nn.Parameter(torch.ones(2)))
        self.refuse("256 bytes", model)

    def test_options(self):
        self.refuse("neither", common.mlp(), resume="perhaps")
        self.refuse("whole number", common.mlp(), gradient_accumulation_steps=0)
        self.refuse("private one", common.mlp(), server="/somewhere", standalone=True)
        self.refuse("no parameter 9.weight", common.mlp(), multi_use=["9.weight"])
        self.refuse("fp8", common.mlp(), dtype="fp8")
        with self.assertRaises(TypeError):
            common.wrap(common.mlp(), chunks=3)
        with self.assertRaisesRegex(tidepool.UsageError, "unknown option chunks"):
            tidepool.estimate(common.mlp(), chunks=3)

    def test_a_cell_that_runs_twice(self):
        model = common.wrap(common.mlp())
        self.refuse("wrapped already", model)
        tidepool.optim.SGD(model.parameters())
        self.refuse("wrapped already, and its job has begun", model)
        with self.assertRaisesRegex(tidepool.UsageError, "has begun already"):
            tidepool.optim.SGD(model.parameters())
        tidepool.close(model)
        with self.assertRaisesRegex(tidepool.UsageError, "was closed"):
            tidepool.optim.SGD(model.parameters())


class Texts(unittest.TestCase):
    def test_no_line_of_an_error_is_wider_than_100_columns(self):
        long = "8 GiB of 12 GiB, " * 20
        error = tidepool.errors.MemoryTooSmall(long, where=long, why=long, fix=long)
        shown = f"{type(error).__module__}.{type(error).__qualname__}: {error}".splitlines()  # as a traceback shows it
        self.assertLessEqual(max(map(len, shown)), 100)
        self.assertEqual(" ".join(str(error).split()), " ".join(f"{long} where: {long} why: {long} fix: {long}".split()))
        path = "/" + "p" * 150
        self.assertIn(path, str(tidepool.errors.FileError(f"cannot read {path} at all")), "a path can be copied")


class BadOptimizers(unittest.TestCase):
    def setUp(self):
        self.model = common.wrap(common.mlp())
        self.addCleanup(lambda: tidepool.close(self.model))

    def refuse(self, text, params, **numbers):
        with self.assertRaises(tidepool.UsageError) as refused:
            tidepool.optim.AdamW(params, **numbers)
        self.assertRegex(" ".join(str(refused.exception).split()), text)  # long lines are folded

    def test_parameters_of_no_model(self):
        self.refuse("belong to no wrapped model", common.mlp().parameters())

    def test_parameters_left_out(self):
        self.refuse("2 trained parameters are not given to the optimizer, among them 10.weight", list(self.model.parameters())[:-2])

    def test_parameters_twice(self):
        parameters = list(self.model.parameters())
        with self.assertWarns(UserWarning):
            self.refuse("more than once", parameters + parameters[:1])
        with self.assertRaisesRegex(ValueError, "more than one parameter group"):
            tidepool.optim.AdamW([{"params": parameters}, {"params": parameters[:1]}])

    def test_parameters_of_another_model_too(self):
        self.refuse("1 parameters given to the optimizer are not of this model", [*self.model.parameters(), nn.Parameter(torch.zeros(1))])

    def test_numbers(self):
        self.refuse("lr", self.model.parameters(), lr=-1.0)
        self.refuse("max_grad_norm", self.model.parameters(), max_grad_norm=float("nan"))
        self.refuse("beta1", self.model.parameters(), betas=(1.5, 0.9))
        self.refuse("states", self.model.parameters(), states="fp4")
        self.refuse("split", self.model.parameters(), states="split-8bit")  # of an fp32 job
        first, *others = self.model.parameters()
        groups = [{"params": [first]}, {"params": others, "nesterov": True}]
        with self.assertRaisesRegex(tidepool.UsageError, "nesterov of parameter group 1"):
            tidepool.optim.SGD(groups, momentum=0.9)

    def test_a_refused_start_can_be_tried_again(self):
        model = common.mlp()
        want = model(torch.ones(1, 8)).detach()
        tidepool.wrap(model, server="/nonexistent/tidepool", dtype="bf16", server_timeout="1s")
        with self.assertRaises(tidepool.ServerError) as caught:
            tidepool.optim.AdamW(model.parameters())
        self.assertEqual(caught.exception.id, "NoServer")
        self.assertTrue(torch.equal(model(torch.ones(1, 8)), want))
        tidepool.close(model)
        common.wrap(model)
        tidepool.optim.AdamW(model.parameters())
        with torch.no_grad():
            self.assertTrue(torch.equal(model(torch.ones(1, 8)), want))
        tidepool.close(model)

    def test_an_rcache_that_is_too_small(self):
        model = common.wrap(common.mlp(width=64), rcache="1KiB", chunk_size="32KiB")
        with self.assertRaises(tidepool.TidepoolError):
            tidepool.optim.AdamW(model.parameters())
            common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        tidepool.close(model)

    def test_another_thread(self):
        found = []

        def make():
            try:
                tidepool.optim.SGD(self.model.parameters())
            except tidepool.UsageError as error:
                found.append(error.what)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        self.assertIn("another thread", found[0])


class BadSteps(unittest.TestCase):
    def setUp(self):
        self.model = common.wrap(common.mlp())
        self.optimizer = tidepool.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.addCleanup(lambda: tidepool.close(self.model))

    def backward(self):
        common.mlp_loss(self.model, common.mlp_batches(1)[0]).backward()

    def step(self):
        self.backward()
        self.optimizer.step()

    def refuse(self, text):
        with self.assertRaisesRegex(tidepool.UsageError, text):
            self.optimizer.step()

    def test_closures(self):
        with self.assertRaisesRegex(tidepool.UsageError, "takes no closure"):
            self.optimizer.step(lambda: None)

    def test_step_without_backward(self):
        self.refuse("without a backward")
        self.step()
        self.refuse("without a backward")
        self.step()
        self.assertEqual(self.optimizer.sealed_steps, 2)

    def test_more_backwards_than_said(self):
        self.backward()
        with self.assertRaisesRegex(RuntimeError, "gradient_accumulation_steps=2"):
            self.backward()

    def test_options_that_cannot_be(self):
        (group,) = self.optimizer.param_groups
        self.backward()
        for name, value, text in (
            ("weight_decay", -0.5, "weight_decay"),
            ("lr", float("nan"), "lr"),
            ("betas", (0.5, 1.0), "beta1 and beta2 must lie in"),
            ("eps", -1e-3, "eps must be finite"),
        ):
            former = group[name]
            group[name] = value
            self.refuse(text)
            group[name] = former
        self.optimizer.step()
        self.assertEqual(self.optimizer.sealed_steps, 1)
        with self.assertRaisesRegex(tidepool.UsageError, "fixed when it begins"):
            self.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    def test_options_that_are_fixed(self):
        model = common.wrap(common.mlp())
        optimizer = tidepool.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        common.mlp_loss(model, common.mlp_batches(1)[0]).backward()
        (group,) = optimizer.param_groups
        for name, value, text in (("nesterov", False, "nesterov of parameter group 0"), ("momentum", 0.0, "momentum")):
            former = group[name]
            group[name] = value
            with self.assertRaisesRegex(tidepool.UsageError, text):
                optimizer.step()
            group[name] = former
        optimizer.step()
        tidepool.close(model)

    def test_strange_states(self):
        with self.assertRaisesRegex(tidepool.UsageError, "no state of a tidepool.optim.AdamW"):
            self.optimizer.load_state_dict({"state": {}, "param_groups": []})
        state = copy.deepcopy(self.optimizer.state_dict())
        state["tidepool"]["sealed_steps"] = 7
        with self.assertRaisesRegex(tidepool.UsageError, "the state is of step 7"):
            self.optimizer.load_state_dict(state)

    def test_writes_to_parameters(self):
        with self.assertRaisesRegex(RuntimeError, "would be lost|written"):
            with torch.no_grad():
                self.model[2].weight.mul_(0.5)
            self.step()

    def test_other_memory_for_a_parameter(self):
        self.model[2].weight.data = torch.zeros(24, 24)
        with self.assertRaisesRegex(RuntimeError, "2.weight has got other memory"):
            self.step()
            self.step()

    def test_a_closed_job(self):
        tidepool.close(self.model)
        tidepool.close(self.model)  # harmless
        for call in (lambda: self.optimizer.step(), lambda: tidepool.memory(self.model), lambda: tidepool.sealed_steps(self.model)):
            with self.assertRaisesRegex(tidepool.UsageError, "was closed"):
                call()
        with self.assertRaisesRegex(RuntimeError, "closed or left"):
            self.model(torch.zeros(1, 8))

    def test_a_forked_process(self):
        self.assertEqual(in_child(lambda: self.model(torch.zeros(1, 8))), "UsageError: a forked process uses the job of its parent")
        self.assertRegex(in_child(lambda: self.model[2].weight.sum().item()), "RuntimeError: .*forked")
        self.assertRegex(in_child(lambda: self.optimizer.step()), "UsageError: a forked process")
        self.assertEqual(in_child(lambda: None), "done")
        self.step()  # the parent's job is as it was
        self.assertEqual(self.optimizer.sealed_steps, 1)

    def test_a_worker_of_a_data_loader(self):
        model = self.model

        class Touching(torch.utils.data.Dataset):
            def __len__(self):
                return 1

            def __getitem__(self, _):
                return model[2].weight.sum()

        with self.assertRaisesRegex(RuntimeError, "forked"):
            list(torch.utils.data.DataLoader(Touching(), num_workers=1, multiprocessing_context="fork"))
        self.step()

    def test_a_copy_of_the_model_is_an_ordinary_one(self):
        other = copy.deepcopy(self.model)
        self.step()
        other(torch.zeros(1, 8)).sum().backward()
        self.assertIsNotNone(other[2].weight.grad)
        self.assertEqual(self.optimizer.sealed_steps, 1)


def in_child(act):
    """What `act` says in a forked process: "done", or its error; "signal N" where it ended by one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            text = "done"
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    return f"signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else text


class Library(unittest.TestCase):
    def test_another_torch_than_it_was_built_for_is_refused(self):
        _library.load.cache_clear()
        self.addCleanup(_library.load.cache_clear)
        with mock.patch.object(torch, "__version__", "2.99.1"), self.assertRaises(tidepool.TidepoolError) as caught:
            _library.load()
        self.assertEqual(caught.exception.id, "LibraryFailed")
        self.assertIn("this is torch 2.99.1", caught.exception.what)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
