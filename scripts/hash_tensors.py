#!/usr/bin/env python3
"""Prints the SHA-256 of the tensors of a safetensors file: names, types, shapes and bytes, in the order of the names.

usage: scripts/hash_tensors.py FILE

The metadata of the file does not count: a later release may note more there about the same weights.
"""

import hashlib
import json
import struct
import sys


def hash_tensors(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        for name in sorted(set(header) - {"__metadata__"}):
            begin, end = header[name]["data_offsets"]
            digest.update(json.dumps([name, header[name]["dtype"], header[name]["shape"]]).encode())
            file.seek(8 + header_bytes + begin)
            digest.update(file.read(end - begin))
    return digest.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    print(hash_tensors(sys.argv[1]))
