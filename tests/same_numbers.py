"""Whether numbers are the same: to the last bit where that can be, else within a tolerance."""

import hashlib
import math
import os
import platform
from pathlib import Path

import numpy as np
import torch

from outvote.ops import native

HASHES = ("weights", "buffers")
# Environment variables by which MKL and oneDNN choose other kernels, with other bits.
VARIABLES = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def digest(array):
    """The checksum of the bytes of an array."""
    about = f"{array.dtype.str} {array.shape} ".encode()
    return hashlib.sha256(about + np.ascontiguousarray(array).tobytes()).hexdigest()


def norm(array):
    """The norm of an array, rounded once: it depends on no order of summation."""
    return math.sqrt(math.fsum((array.astype(np.float64).ravel() ** 2).tolist()))


def fingerprint():
    """What the last bits depend on, besides the number of threads, which is fixed here."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available(),
        "native": native.level(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _processor():
    """Vendor, family and model: MKL and oneDNN choose their kernels by more than AVX2 or AVX512."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    first = text.partition("\n\n")[0].splitlines()
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first)
    }
    return " ".join(facts.get(key, "?") for key in ("vendor_id", "cpu family", "model"))


def differences(recorded, found, is_exact, relative):
    """Every place where two lists of runs differ; to the last bit, or within a tolerance.

    The names of their folders do not count, so that numbers can be compared whatever those are.
    """
    if len(recorded) != len(found):
        yield "number of runs", len(recorded), len(found)
        return
    for before, now in zip(recorded, found, strict=True):
        for place, a, b in pairs(before, {**now, "folder": before["folder"]}, before["folder"]):
            if not same(place, a, b, is_exact, relative, before["test_images"]):
                yield place, a, b


def folders(runs):
    """The names of their folders, which have the hash of their settings."""
    return [run["folder"] for run in runs]


def pairs(a, b, place):
    """The single values of two trees side by side."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from pairs(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from pairs(x, y, f"{place}[{k}]")
    else:
        yield place, a, b


def same(place, a, b, is_exact, relative, test_images):
    """Whether two values are the same: 1 and 1.0 are not, and neither are 0.0 and -0.0."""
    if is_exact or not (isinstance(a, float) and isinstance(b, float)):
        is_left_out = not is_exact and place.rpartition(".")[2] in HASHES
        return is_left_out or repr(a) == repr(b)
    if place.endswith(".accuracy"):
        return abs(a - b) <= 2.5 / test_images
    return abs(a - b) <= relative * max(abs(a), abs(b)) + relative / 10


def in_words(found, most=5):
    """The first differences, one in a line."""
    found = list(found)
    lines = [f"  {place}: {a!r} recorded, {b!r} now" for place, a, b in found[:most]]
    more = len(found) - most
    return "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])])
