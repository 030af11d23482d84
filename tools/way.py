"""How long is the way of a call? Count the functions and files that Python runs through in outvote.

python tools/way.py    prints the ways of `WAYS` as JSON

Each call is made twice, and the second is counted: imports and compilation are over. Threads count
too, those that run already (from Python 3.12 on) and those that start within the call.
"""

import ast
import json
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import outvote as ov

SOURCE = Path(ov.__file__).parent
LONGEST = 40
"""Lines that a function may have, without its docstring."""
Work = Callable[[], object]


class Way:
    """Functions, files and depth of the calls within a `with` block."""

    def __init__(self) -> None:
        """Begin with none."""
        self.functions: set[tuple[str, int]] = set()
        self.depth = 0
        self._depths: dict[int, int] = defaultdict(int)
        self._start = str(SOURCE)

    def __enter__(self) -> "Way":
        """Count from here on, in all threads."""
        everywhere = getattr(threading, "setprofile_all_threads", threading.setprofile)
        everywhere(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        sys.setprofile(None)
        getattr(threading, "setprofile_all_threads", threading.setprofile)(None)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if not frame.f_code.co_filename.startswith(self._start):
            return
        thread = threading.get_ident()
        if event == "call":
            self._depths[thread] += 1
            self.depth = max(self.depth, self._depths[thread])
            self.functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
        elif event == "return":
            self._depths[thread] -= 1

    @property
    def files(self) -> set[str]:
        """The files that the functions are in."""
        return {name for name, _ in self.functions}

    def counts(self) -> dict[str, Any]:
        """Return the counts, and the functions of these files that are too long to hide in."""
        long = sorted(each for name in self.files for each in long_functions(Path(name)))
        return {
            "functions": len(self.functions),
            "files": len(self.files),
            "depth": self.depth,
            "long": long,
        }


def long_functions(path: Path) -> list[str]:
    """Return the functions of a file that have more than `LONGEST` lines, as file:name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > LONGEST:
            found.append(f"{path.relative_to(SOURCE).as_posix()}:{node.name}")
    return found


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first, *rest = node.body
    is_documented = ast.get_docstring(node) is not None
    begin = rest[0].lineno if is_documented and rest else first.lineno
    return (node.end_lineno or begin) - begin + 1


def count(work: Work) -> dict[str, Any]:
    """Return the counts of the second of two calls."""
    work()
    with Way() as way:
        work()
    return way.counts()


def ways() -> dict[str, Work]:
    """Return the calls that are counted, by name."""
    rows = np.random.default_rng(0).normal(size=(10, 10_000)).astype(np.float32)
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(200, 8, generator=draw), torch.arange(200) % 3
    mean, krum, gas = ov.Mean(), ov.MultiKrum(), ov.GAS(ov.Median())

    def simulate() -> object:
        return ov.simulate(
            model=lambda: torch.nn.Linear(8, 3),
            train=data,
            test=data,
            partition="iid",
            num_clients=10,
            byzantine=0.2,
            rules=["gas(median)"],
            attacks=["bit-flip"],
            seeds=[0],
            rounds=1,
            output=None,
            progress="none",
        )

    return {
        "mean": lambda: mean(rows),
        "multi-krum": lambda: krum(rows, num_byzantine=2),
        "gas(median)": lambda: gas(rows, num_byzantine=2),
        "simulate": simulate,
    }


def main() -> None:
    """Print all counts."""
    warnings.simplefilter("ignore")
    found = {name: count(work) for name, work in ways().items()}
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
