"""scripts/hash_tensors.py: what counts in its hash, and what does not."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "hash_tensors.py")


def hash_of(tensors, metadata=None):
    """tensors: (name, shape, bytes), written in this order as F32."""
    header, data = {}, b""
    for name, shape, content in tensors:
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
        file.flush()
        return subprocess.run([sys.executable, "-B", SCRIPT, file.name], capture_output=True, text=True, check=True).stdout.strip()


class HashTensors(unittest.TestCase):
    A, B = ("a", [2], b"12345678"), ("b", [1], b"abcd")

    def test_metadata_and_order_do_not_count(self):
        expected = hash_of([self.A, self.B])
        self.assertEqual(len(expected), 64)
        self.assertEqual(hash_of([self.A, self.B], {"tidepool.data_cursor": "6"}), expected)
        self.assertEqual(hash_of([self.B, self.A]), expected)

    def test_names_shapes_and_bytes_count(self):
        expected = hash_of([self.A, self.B])
        for other in (("c", [1], b"abcd"), ("b", [1, 1], b"abcd"), ("b", [1], b"abce")):
            self.assertNotEqual(hash_of([self.A, other]), expected)
        self.assertNotEqual(hash_of([self.A]), expected)


if __name__ == "__main__":
    unittest.main()
