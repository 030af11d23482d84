"""Measuring: interleaved repeats, medians, peak memory; and what a result file must say."""

import ctypes
import gc
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch

Timed = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)
WARM_UP_SECONDS = 0.5


def medians(jobs: dict[Name, Timed], repeats: int, device: torch.device) -> dict[Name, float]:
    """Return the median seconds of every job, after a warm-up.

    On a CPU the jobs take turns, so that a disturbance hits all of them, each timed right after an
    untimed call: memory that the system took back meanwhile would be counted otherwise. On a GPU,
    which nobody else uses, each is repeated on its own.
    """
    times: dict[Name, list[float]] = {name: [] for name in jobs}
    if device.type == "cuda":
        for name, job in jobs.items():
            # Compiled kernels, memory at hand, and a processor that is awake.
            start = time.perf_counter()
            while time.perf_counter() - start < WARM_UP_SECONDS:
                job()
            times[name] = [_seconds(job, device) for _ in range(repeats)]
        return {name: median(seconds) for name, seconds in times.items()}
    for _ in range(repeats):
        for name, job in jobs.items():
            job()
            times[name].append(_seconds(job, device))
    return {name: median(seconds) for name, seconds in times.items()}


def _seconds(job: Timed, device: torch.device) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        job()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    job()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def peak_extra_bytes(job: Timed, device: torch.device) -> int:
    """Return how much more memory than before the job needs at its peak."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        job()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    job()
    return _status_bytes("VmHWM") - before


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def circumstances(device: torch.device) -> dict[str, object]:
    """Return date, hardware, versions and commit."""
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "device": gpu or _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _commit() -> str | None:
    """Return the commit of this checkout, with a word where files differ from it.

    A copy without its history gets it from OUTVOTE_COMMIT.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    is_changed = git("status", "--porcelain", "--", "../src", ".")
    if not commit:
        return os.environ.get("OUTVOTE_COMMIT") or None
    return f"{commit} with changes" if is_changed else commit


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
