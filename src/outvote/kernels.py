"""Triton kernels: loaded where Triton is installed, and only when a GPU asks for them."""

import importlib
import importlib.util
from functools import cache
from types import ModuleType


@cache
def load_kernels(module: str) -> ModuleType | None:
    """Return a module of kernels by its name, or None without Triton."""
    has_triton = importlib.util.find_spec("triton") is not None
    return importlib.import_module(module) if has_triton else None
