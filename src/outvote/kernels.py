"""Triton kernels: loaded where Triton is installed, and only when a GPU asks for them.

With TRITON_INTERPRET=1 Triton plays them on a CPU, very slowly and in one thread only
(OMP_NUM_THREADS=1): a way to test them without a GPU.
"""

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType

from torch import Tensor

_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def is_for_kernels(values: Tensor) -> bool:
    """Tell whether a tensor lies where kernels run."""
    return values.is_cuda or _IS_INTERPRETED


@cache
def load_kernels(module: str) -> ModuleType | None:
    """Return a module of kernels by its name, or None without Triton."""
    has_triton = importlib.util.find_spec("triton") is not None
    return importlib.import_module(module) if has_triton else None
