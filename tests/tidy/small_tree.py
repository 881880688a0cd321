"""What the tests of scripts/tidy share: trees made of a few texts."""

import os
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from tidy_checks.tree import Tree  # noqa: E402

LAYERS = """
```layers
base :
shm optim : base
client : base shm
memserver/residency : base shm
memserver : all of the above but client
trainer/plan : base
trainer : all of the above but memserver, shm
```
```doors
spdlog | spdlog/ | base/log.cpp
LibTorch | torch/ c10/ | trainer/model/** trainer/*
```
"""


def tree_of(files: dict[str, str], page: str = LAYERS, root: str = ROOT) -> Tree:
    texts = {path: textwrap.dedent(text) for path, text in files.items()}
    texts.setdefault("docs/architecture.md", page)
    return Tree(root, texts)


def places(findings) -> list[tuple[str, int]]:
    return [(finding.path, finding.line) for finding in findings]
