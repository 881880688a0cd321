"""Code that reads parameters by their addresses, behind LibTorch's dispatcher: functions and operators of the user's own, torch.compile."""

import ctypes
import sys
import unittest

import torch
from torch import nn

import common
import tidepool

STEPS = 4


def by_address(tensor):
    """A copy of a dense fp32 tensor, read as a kernel would."""
    words = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    return torch.frombuffer(bytearray(words), dtype=torch.float32).view(tensor.shape)


class Product(torch.autograd.Function):
    """Multiplies by a weight."""

    @staticmethod
    def forward(context, x, weights):
        context.save_for_backward(x, weights["weight"])
        return x @ by_address(weights["weight"]).t()

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ by_address(weight), None


class ProductOfTwo(torch.autograd.Function):
    """The same with a gradient for the weight, and in the form that torch.func can transform."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return x @ by_address(weight).t()

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        return gradient @ weight, gradient.transpose(-1, -2) @ x


product_of_two = ProductOfTwo.apply  # as programs keep it, from before any job begins


@torch.library.custom_op("tidepool_test::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ by_address(weight).t()


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _product_backward(context, gradient):
    x, weight = context.saved_tensors
    return gradient @ by_address(weight), gradient.t() @ x


product.register_autograd(_product_backward, setup_context=_keep)


class OwnLayer(nn.Module):
    def __init__(self, multiply):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) * 0.2)
        self.multiply = multiply

    def forward(self, x):
        return self.multiply(x, self.weight).tanh()


def loss_of(model, x):
    return model(x).square().mean()


def own_layers(multiply):
    torch.manual_seed(1)
    return nn.Sequential(*(OwnLayer(multiply) for _ in range(8)))


def inputs(size=32):
    torch.manual_seed(2)
    return [torch.randn(4, size) for _ in range(STEPS)]


class Functions(unittest.TestCase, common.Checks):
    def assert_trains(self, multiply):
        plain, ours = common.twins(own_layers(multiply))
        want = common.train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), inputs(), loss_of)
        common.wrap(ours, rcache="30%", chunk_size="4KiB")
        got = common.train(ours, tidepool.optim.SGD(ours.parameters(), lr=0.1, max_grad_norm=1.0), inputs(), loss_of)
        self.assert_same_run(got, want)
        self.assert_learned(got)

    def test_a_function_reads_addresses_in_forward_and_backward(self):
        self.assert_trains(product_of_two)

    def test_an_operator_of_the_users_own_reads_addresses(self):
        self.assert_trains(lambda x, weight: product(x, weight))  # a function can be copied with the model

    def test_parameters_in_containers_are_found(self):
        model = own_layers(lambda x, weight: Product.apply(x, {"weight": weight.detach()}))
        model.append(nn.Linear(32, 32))
        want = model(inputs()[0]).tolist()
        common.wrap(model, rcache="30%", chunk_size="8KiB")
        tidepool.optim.SGD(model.parameters())
        self.assertEqual(model(inputs()[0]).tolist(), want)
        tidepool.close(model)

    def test_functions_under_torch_func(self):
        model = own_layers(product_of_two)
        parameters = dict(model.named_parameters())
        x = inputs()[0]
        loss = lambda values: torch.func.functional_call(model, values, (x,)).square().mean()  # noqa: E731
        with torch.no_grad():
            want = torch.func.grad(loss)({name: value.detach() for name, value in parameters.items()})
        common.wrap(model, rcache="100%", chunk_size="4KiB")
        tidepool.optim.SGD(model.parameters())
        got = torch.func.grad(loss)({name: value.detach() for name, value in parameters.items()})
        self.assertEqual(common.farthest(got, want), 0)
        tidepool.close(model)

    def test_other_functions_are_left_alone(self):
        model = common.wrap(common.mlp())
        tidepool.optim.SGD(model.parameters())
        x, weight = torch.randn(3, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
        product_of_two(x, weight).sum().backward()
        self.assertTrue(torch.equal(weight.grad, torch.ones(3, 8).t() @ x))
        self.assertEqual(torch.autograd.Function.apply.__name__, "apply")
        tidepool.close(model)


class Held(unittest.TestCase):
    def setUp(self):
        self.weights = [layer.weight.detach().clone() for layer in own_layers(torch.matmul)]
        self.model = common.wrap(own_layers(torch.matmul), rcache="50%", chunk_size="4KiB")
        self.optimizer = tidepool.optim.SGD(self.model.parameters(), lr=0.1)
        self.addCleanup(lambda: tidepool.close(self.model))

    def test_parameters_are_there_within(self):
        with torch.no_grad():
            for layer, want in zip(self.model, self.weights):
                with tidepool.held(layer.weight):
                    self.assertTrue(torch.equal(by_address(layer.weight), want))
                with tidepool.held(layer):
                    self.assertTrue(torch.equal(torch.from_numpy(layer.weight.detach().numpy()), want))
            with self.assertRaisesRegex(RuntimeError, "at the memory server"):  # half of them are away
                for layer in self.model:
                    by_address(layer.weight)

    def test_it_nests_and_serves_a_step(self):
        for x in inputs():
            with tidepool.held(self.model[0]), tidepool.held(self.model[0], self.model[1]):
                loss = loss_of(self.model, x)
            loss.backward()
            self.optimizer.step()
        self.assertEqual(self.optimizer.sealed_steps, STEPS)

    def test_more_than_the_rcache_has_is_refused_and_changes_nothing(self):
        with self.assertRaisesRegex(tidepool.MemoryTooSmall, "8 parameters of 32.0 KiB are read at once"), tidepool.held(self.model):
            pass
        self.test_it_nests_and_serves_a_step()

    def test_a_step_within_is_refused(self):
        loss_of(self.model, inputs()[0]).backward()
        with tidepool.held(self.model[0]), self.assertRaisesRegex(tidepool.UsageError, "while parameters are held"):
            self.optimizer.step()
        self.optimizer.step()

    def test_the_order_of_ends_is_checked(self):
        first, second = tidepool.held(self.model[0]), tidepool.held(self.model[1])
        with torch.no_grad():
            first.__enter__()
            second.__enter__()
            with self.assertRaisesRegex(tidepool.UsageError, "not held last"):
                first.__exit__(None, None, None)
            second.__exit__(None, None, None)

    def test_what_is_no_parameter_of_a_job_may_be_asked_for(self):
        with tidepool.held(torch.zeros(3), nn.Linear(2, 2)):
            pass


class Block(nn.Module):
    """Operators that a compiler makes kernels of, which read weights."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(24), nn.Linear(24, 24)
        self.scale = nn.Parameter(torch.ones(24))

    def forward(self, x):
        return x + nn.functional.gelu(self.linear(self.norm(x))) * self.scale


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Compiled(unittest.TestCase, common.Checks):
    def setUp(self):
        torch.compiler.reset()
        self.addCleanup(torch.compiler.reset)

    def assert_trains_and_evaluates(self, compile_it, backend="aot_eager", rcache="40%"):
        plain, ours = common.twins(Blocks())
        want = common.train_plain(plain, torch.optim.SGD(plain.parameters(), lr=0.1), inputs(24), loss_of)
        common.wrap(ours, rcache=rcache, chunk_size="4KiB")
        optimizer = tidepool.optim.SGD(ours.parameters(), lr=0.1, max_grad_norm=1.0)
        called = compile_it(ours, backend)
        losses, norms = [], []
        for x in inputs(24):
            loss = loss_of(called, x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            norms.append(optimizer.last_grad_norm)
        with torch.no_grad():
            difference = (called(inputs(24)[0]) - plain(inputs(24)[0])).abs().max().item()
        self.assertLessEqual(difference, 5e-6)
        with tidepool.gathered(ours) as values:
            weights = {name.replace("_orig_mod.", ""): value for name, value in values.items()}
        tidepool.close(ours)
        self.assert_same_run(common.Run(losses, norms, weights), want)

    def blocks_in_place(self, model, backend):
        for block in model.blocks:
            block.compile(backend=backend)
        return model

    def blocks_replaced(self, model, backend):
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend=backend)
        return model

    def test_blocks(self):
        self.assert_trains_and_evaluates(self.blocks_in_place)
        self.assert_trains_and_evaluates(self.blocks_replaced)

    def test_blocks_by_inductor(self):
        from torch._inductor import config

        # No vector instructions, which would be tried out first.
        with config.patch({"cpp.simdlen": 1}):
            self.assert_trains_and_evaluates(self.blocks_in_place, "inductor")

    def test_a_whole_model_in_an_rcache_that_has_it_all(self):
        self.assert_trains_and_evaluates(lambda model, backend: torch.compile(model, backend=backend), rcache="100%")

    def test_a_whole_model_in_a_smaller_rcache_is_refused(self):
        for in_place in (False, True):
            model = common.wrap(Blocks(), rcache="40%", chunk_size="4KiB")
            optimizer = tidepool.optim.SGD(model.parameters(), lr=0.1)
            if in_place:
                model.compile(backend="aot_eager")
            called = model if in_place else torch.compile(model, backend="aot_eager")
            for training in (True, False):
                with torch.set_grad_enabled(training), self.assertRaises(tidepool.MemoryTooSmall) as caught:
                    called(inputs(24)[0])
                self.assertEqual(caught.exception.where, "torch.compile")
                self.assertIn("compile the blocks", caught.exception.fix)
            model.__dict__["_compiled_call_impl"] = None
            loss_of(model, inputs(24)[0]).backward()  # nothing was changed
            optimizer.step()
            tidepool.close(model)

    def test_graphs_are_refused(self):
        model = common.wrap(Blocks())
        model.blocks[2].compile(mode="reduce-overhead")
        with self.assertRaisesRegex(tidepool.UsageError, "CUDA graphs") as caught:
            tidepool.optim.SGD(model.parameters())
        self.assertIn("no-cudagraphs", caught.exception.fix)

        model = common.wrap(Blocks())
        tidepool.optim.SGD(model.parameters())
        with self.assertRaisesRegex(tidepool.UsageError, "CUDA graphs"):
            torch.compile(model, mode="reduce-overhead")(inputs(24)[0])
        tidepool.close(model)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
