"""ByzFL for the comparison: its own environment, its aggregators, and which rule is which of ours.

The environment holds ByzFL alone and borrows everything else (torch, numpy, scipy, outvote) from
the one that made it. ByzFL's data sets want torchvision; its aggregators do not, so they are
imported past the package's ``__init__``.
"""

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = "0.0.11"
VENV = Path(__file__).parents[1] / "build" / "byzfl-venv"

# Tensors, or numpy arrays of float64 where the exact answer is wanted.
Aggregate = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One of our rules beside ByzFL's."""

    ours: Callable[[int, int], str]
    """The text of our rule, from n and f."""
    theirs: Callable[[Any, int], Aggregate]
    """ByzFL's rule, from its module of aggregators and f; made anew for every call."""
    is_same: bool = True
    """Whether the two are defined alike (if not, only the speed compares)."""
    changes_input: bool = False
    """Whether ByzFL writes to what it is given: it then gets a copy, made before the clock runs."""
    max_clients: int = 1000
    """ByzFL is asked up to this many clients (it tries all subsets)."""
    dim_share: int = 1
    """The dimension is divided by this from 10 clients on (ByzFL's memory is n (n - f) d)."""


def around(inside: str, rule: Callable[[Any, int], Aggregate]) -> tuple[Pair, ...]:
    """Return our wrappers around a rule beside ByzFL's pre-aggregations followed by its rule."""
    return (
        Pair(
            ours=lambda n, f: f"clip({inside}, max_norm=2)",
            theirs=lambda byzfl, f: both(byzfl.Clipping(2.0), rule(byzfl, f)),
            changes_input=True,
        ),
        Pair(
            ours=lambda n, f: f"clip({inside}, max_norm=adaptive)",
            theirs=lambda byzfl, f: both(byzfl.ARC(f), rule(byzfl, f)),
            changes_input=True,
        ),
        Pair(
            ours=lambda n, f: f"nnm({inside})",
            theirs=lambda byzfl, f: both(byzfl.NNM(f), rule(byzfl, f)),
            dim_share=10,
        ),
        # Each stream its own order of the clients.
        Pair(
            ours=lambda n, f: f"bucketing({inside}, size=2)",
            theirs=lambda byzfl, f: both(byzfl.Bucketing(2), rule(byzfl, f)),
            is_same=False,
        ),
    )


def both(first: Aggregate, second: Aggregate) -> Aggregate:
    """Return one rule after the other."""
    return lambda X: second(first(X))


PAIRS = (
    Pair(ours=lambda n, f: "mean", theirs=lambda byzfl, f: byzfl.Average()),
    Pair(ours=lambda n, f: "median", theirs=lambda byzfl, f: byzfl.Median()),
    Pair(ours=lambda n, f: "trimmed-mean", theirs=lambda byzfl, f: byzfl.TrMean(f)),
    Pair(ours=lambda n, f: "meamed", theirs=lambda byzfl, f: byzfl.Meamed(f)),
    # One neighbour more than in the paper.
    Pair(
        ours=lambda n, f: f"krum(num_neighbours={n - f - 1})",
        theirs=lambda byzfl, f: byzfl.Krum(f),
    ),
    Pair(
        ours=lambda n, f: f"multi-krum(num_neighbours={n - f - 1})",
        theirs=lambda byzfl, f: byzfl.MultiKrum(f),
    ),
    # Three smoothed steps from the origin.
    Pair(
        ours=lambda n, f: "rfa(start=zero, smoothing=0.1)",
        theirs=lambda byzfl, f: byzfl.GeometricMedian(nu=0.1, T=3),
    ),
    # Not ByzFL's: the point that those steps are on the way to.
    Pair(
        ours=lambda n, f: "geometric-median",
        theirs=lambda byzfl, f: byzfl.GeometricMedian(nu=0.1, T=3),
        is_same=False,
    ),
    Pair(
        ours=lambda n, f: "centered-clipping(radius=100, num_iterations=1)",
        theirs=lambda byzfl, f: byzfl.CenteredClipping(L=1, tau=100.0),
    ),
    Pair(ours=lambda n, f: "mda", theirs=lambda byzfl, f: byzfl.MDA(f), max_clients=10),
    Pair(
        ours=lambda n, f: "norm-clipping(max_norm=2)",
        theirs=lambda byzfl, f: both(byzfl.Clipping(2.0), byzfl.Average()),
        changes_input=True,
    ),
    *around(
        "trimmed-mean",
        lambda byzfl, f: byzfl.TrMean(f),
    ),
    *around(
        "rfa(start=zero, smoothing=0.1)",
        lambda byzfl, f: byzfl.GeometricMedian(nu=0.1, T=3),
    ),
)


def is_inside() -> bool:
    """Return whether this process runs in the environment that has ByzFL."""
    return Path(sys.prefix) == VENV


def make_environment() -> str | None:
    """Make the environment unless it is there; return why that is not possible, else None."""
    here = Path(sysconfig.get_path("purelib"))
    there = VENV / here.relative_to(sys.prefix)
    if (there / f"byzfl-{VERSION}.dist-info").is_dir():
        return None
    venv.EnvBuilder(clear=True, symlinks=True).create(VENV)
    # Not only the folder: what is installed there from a source tree is found as well.
    (there / "borrowed.pth").write_text(f"import site; site.addsitedir({str(here)!r})\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python()]
    options = ["--quiet", "--no-deps", "--retries", "1", "--timeout", "15"]
    install = subprocess.run(
        [*pip, "install", *options, f"byzfl=={VERSION}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if install.returncode == 0:
        return None
    return install.stderr.strip().rpartition("\n")[2] or f"pip returned {install.returncode}"


def python() -> str:
    """Return the interpreter of the environment that has ByzFL."""
    return str(VENV / "bin" / "python")


def load_aggregators() -> Any:
    """Import ByzFL's aggregators alone: the package is entered without running its own import."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None:
        raise ModuleNotFoundError(f"byzfl is not in {VENV}; remove that folder and start again.")
    sys.modules["byzfl"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("byzfl.aggregators")
