"""Directories of Hugging Face: from transformers to a job and back, with the same bits."""

import json
import os
import struct
import sys
import tempfile
import unittest

import torch
import transformers
from torch import nn

import common
import tidepool
import tiny_models
from tidepool import _safetensors

ADAMW = {"lr": 1e-3, "max_grad_norm": 1.0}


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)


class Pretrained(InFolder):
    def saved(self, name, **how):
        """The class and the directory of a model that transformers saved."""
        model = tiny_models.make(name)
        model.save_pretrained(self.path(name), **how)
        return type(model), self.path(name)

    def begins_alike(self, name, **how):
        """The first loss is plain transformers'; returns the model, in training, with its optimizer."""
        kind, directory = self.saved(name, **how)
        (batch,) = tiny_models.batches(name, 1)
        want = kind.from_pretrained(directory)(**batch).loss.item()
        model = tidepool.from_pretrained(kind, directory, standalone=True, rcache=common.RCACHE)
        self.addCleanup(lambda: tidepool.close(model))
        self.assertFalse(model.training)
        was_empty = any(parameter.is_meta for parameter in model.parameters())
        optimizer = tidepool.optim.AdamW(model.parameters(), **ADAMW)
        loss = model(**batch).loss
        self.assertEqual(loss.item(), want)
        loss.backward()
        optimizer.step()
        return model, was_empty

    def goes_back_alike(self, name, model):
        """What we save is loaded by plain transformers, whole, and bit for bit."""
        tidepool.save_pretrained(model, self.path("out"))
        again, told = type(model).from_pretrained(self.path("out"), output_loading_info=True)
        self.assertFalse(any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told)
        with tidepool.gathered(model) as values:
            self.assertEqual(common.farthest(dict(values), {key: parameter.detach() for key, parameter in again.named_parameters()}), 0)
        (batch,) = tiny_models.batches(name, 1)
        with torch.no_grad():
            self.assertEqual(again(**batch).loss.item(), model(**batch).loss.item())
        self.assertEqual(sorted(set(os.listdir(self.path("out"))) - {"generation_config.json"}), ["config.json", "model.safetensors"])

    def there_and_back(self, name):
        model, was_empty = self.begins_alike(name)
        self.assertTrue(was_empty)
        self.goes_back_alike(name, model)

    def test_names_and_shapes_of_other_formats_are_read_by_transformers(self):
        for name in ("mixtral", "vit"):  # experts that are fused; names that were others once
            with self.subTest(name), self.assertLogs("tidepool", "WARNING") as told:
                model, was_empty = self.begins_alike(name)
                self.assertFalse(was_empty)
                self.assertIn("is read by transformers", told.output[0])
                self.goes_back_alike(name, model)

    def test_several_files(self):
        model, was_empty = self.begins_alike("llama", max_shard_size="20KB")
        self.assertGreater(len([name for name in os.listdir(self.path("llama")) if name.endswith(".safetensors")]), 1)
        self.assertTrue(was_empty)
        self.assertEqual(sum(parameter.is_meta for parameter in model.parameters()), 0)

    def test_a_base_model_gets_its_head(self):
        torch.manual_seed(0)
        whole = tiny_models.make("gpt2")
        whole.transformer.save_pretrained(self.path("base"))
        (batch,) = tiny_models.batches("gpt2", 1)
        model = tidepool.from_pretrained(transformers.AutoModelForCausalLM, self.path("base"), standalone=True, rcache=common.RCACHE)
        self.assertTrue(all(parameter.is_meta for parameter in model.parameters()))
        tidepool.optim.AdamW(model.parameters(), **ADAMW)
        with torch.no_grad():
            self.assertEqual(model(**batch).loss.item(), whole(**batch).loss.item())
        tidepool.close(model)

    def test_dtypes(self):
        kind, directory = self.saved("gpt2")
        (batch,) = tiny_models.batches("gpt2", 1)
        want = kind.from_pretrained(directory, dtype=torch.bfloat16)(**batch).loss.item()
        model = tidepool.from_pretrained(kind, directory, dtype="bf16", standalone=True, rcache=common.RCACHE)
        tidepool.optim.AdamW(model.parameters(), states="split-8bit", **ADAMW)
        with torch.no_grad():
            self.assertEqual(model(**batch).loss.item(), want)
        tidepool.save_pretrained(model, self.path("out"))
        tidepool.close(model)
        self.assertEqual(kind.from_pretrained(self.path("out")).dtype, torch.bfloat16)

    def test_configuration_options_are_passed_on(self):
        kind, directory = self.saved("gpt2")
        model = tidepool.from_pretrained(kind, directory, attn_implementation="eager", resid_pdrop=0.25)
        self.assertEqual((model.config._attn_implementation, model.config.resid_pdrop), ("eager", 0.25))
        with self.assertRaisesRegex(tidepool.UsageError, "float16"):
            tidepool.from_pretrained(kind, directory, dtype=torch.float16)

    def test_frozen_parts_are_loaded_too(self):
        kind, directory = self.saved("llama")
        (batch,) = tiny_models.batches("llama", 1)
        want = kind.from_pretrained(directory)(**batch).loss.item()
        model = tidepool.from_pretrained(kind, directory, standalone=True, rcache="100%")
        model.model.embed_tokens.requires_grad_(False)
        tidepool.optim.AdamW(model.parameters(), **ADAMW)
        with torch.no_grad():
            self.assertEqual(model(**batch).loss.item(), want)
        self.goes_back_alike("llama", model)
        tidepool.close(model)


def add_model(name):
    setattr(Pretrained, f"test_{name}", lambda self: self.there_and_back(name))


for each in ("gpt2", "qwen3", "bert", "t5", "opt", "mamba"):
    add_model(each)


class Files(InFolder):
    def test_any_module_is_saved_and_loaded(self):
        model = nn.Sequential(common.mlp(), nn.BatchNorm1d(4))
        model[1].running_mean.fill_(3)
        want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        common.wrap(model)
        tidepool.optim.SGD(model.parameters())
        tidepool.save_pretrained(model, self.path("out"))
        tidepool.close(model)

        from safetensors.torch import load_file

        found = load_file(self.path("out", "model.safetensors"))
        self.assertEqual(found.keys(), want.keys())
        self.assertTrue(all(torch.equal(found[name], want[name]) and found[name].dtype == want[name].dtype for name in want))

        with tidepool.init():
            again = nn.Sequential(common.mlp(), nn.BatchNorm1d(4))
        common.wrap(again, weights=self.path("out"))
        tidepool.optim.SGD(again.parameters())
        self.assertEqual(again[1].running_mean[0].item(), 3)
        with tidepool.gathered(again) as values:
            self.assertTrue(all(torch.equal(values[name], want[name]) for name in values))
        tidepool.close(again)

    def test_files_of_the_library_are_read(self):
        from safetensors.torch import save_file

        want = {
            "half": torch.randn(3, 5).half(), "brain": torch.randn(7).bfloat16(), "double": torch.randn(2, 1, 2).double(),
            "bytes": torch.arange(9, dtype=torch.uint8), "flags": torch.tensor([True, False]), "one": torch.tensor(4.0), "none": torch.zeros(0, 3),
        }  # fmt: skip
        save_file(want, self.path("model.safetensors"))
        directory = _safetensors.Directory(self.folder)
        self.assertEqual(set(directory), set(want))
        for name, tensor in want.items():
            self.assertTrue(torch.equal(directory.tensor(name), tensor), name)
            directory.forget(name)
            self.assertTrue(torch.equal(directory.tensor(name), tensor), name)

    def test_damaged_files_are_said_to_be(self):
        header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}

        def file(about, data=bytes(8), length=None):
            text = about if isinstance(about, bytes) else json.dumps(about).encode()
            return struct.pack("<Q", len(text) if length is None else length) + text + data

        cases = {
            "an empty file": b"",
            "no JSON": file(b"{]"),
            "no object": file([]),
            "a header beyond its end": file(header, length=1 << 40),
            "cut short": file(header, data=bytes(7)),
            "an unknown dtype": file({"a": {**header["a"], "dtype": "F31"}}),
            "a shape that does not fit": file({"a": {**header["a"], "shape": [3]}}),
            "a negative shape": file({"a": {**header["a"], "shape": [-2]}}),
            "a negative place": file({"a": {**header["a"], "data_offsets": [-8, 0]}}),
            "no place": file({"a": {"dtype": "F32", "shape": [2]}}),
        }
        for name, content in cases.items():
            with self.subTest(name):
                with open(self.path("model.safetensors"), "wb") as out:
                    out.write(content)
                with self.assertRaises(tidepool.FileError) as caught:
                    _safetensors.Directory(self.folder)
                self.assertEqual(caught.exception.id, "SafetensorsBad")

    def test_weights_that_do_not_fit(self):
        _safetensors.write(self.path("model.safetensors"), {"0.weight": (torch.float32, (3, 3))}, [torch.zeros(3, 3)])
        for model, why in ((common.mlp(), "shape"), (nn.ReLU(), "no parameter for 0.weight")):
            with self.assertRaisesRegex(tidepool.UsageError, why):
                common.wrap(model, weights=self.folder)
        with self.assertRaisesRegex(tidepool.UsageError, "no weights for 0.weight"):
            common.wrap(common.mlp(), weights=self.path("nowhere"))

    def test_a_save_that_fails_leaves_the_former_file(self):
        model = common.wrap(common.mlp())
        optimizer = tidepool.optim.SGD(model.parameters())
        tidepool.save_pretrained(model, self.path("out"))
        with open(self.path("out", "model.safetensors"), "rb") as file:
            former = file.read()

        class Full(Exception):
            pass

        def tensors():
            yield torch.zeros(3)
            raise Full

        with self.assertRaises(Full):
            _safetensors.write(self.path("out", "model.safetensors"), {"a": (torch.float32, (3,)), "b": (torch.float32, (3,))}, tensors())
        with self.assertRaisesRegex(tidepool.FileError, "free"):
            _safetensors.write(self.path("out", "model.safetensors"), {"a": (torch.float32, (1 << 60,))}, [])
        with self.assertRaises(tidepool.FileError):
            tidepool.save_pretrained(model, self.path("out", "model.safetensors"))  # a file is no directory
        with open(self.path("out", "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), former)
        self.assertEqual(os.listdir(self.path("out")), ["model.safetensors"])

        common.mlp_loss(model, common.mlp_batches(1)[0]).backward()  # and training goes on
        optimizer.step()
        tidepool.close(model)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
