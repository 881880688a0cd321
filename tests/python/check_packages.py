"""The tests of the Python package have the packages that they need."""

import sys

try:
    import torch
    import transformers
except ImportError as error:
    sys.exit(f"{error}\n(scripts/setup --tests installs the packages of scripts/pypi-packages.txt; the target python_stubs makes what torch needs besides)")
print(f"torch {torch.__version__}, transformers {transformers.__version__}")
