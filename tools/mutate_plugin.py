"""The part of mutate.py that pytest loads: record what tests execute, or run chosen tests only."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

RECORD, WANTED = (os.environ.get(f"OUTVOTE_{name}_TESTS") for name in ("RECORD", "WANTED"))
"""A folder to write to, and a file with the tests that are wanted, in their order."""
ROOT = Path(__file__).parents[1]
SOURCE = str(ROOT / "src")
_FOUND: dict[str, dict[str, Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Record the functions of outvote that a test executes, fixtures included."""
    if RECORD is None:
        return (yield)
    codes: set[CodeType] = set()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    began = time.monotonic()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None stops it
        seconds = time.monotonic() - began
        _FOUND[item.nodeid] = {"seconds": seconds, "functions": sorted(_places(codes))}


def _places(codes: set[CodeType]) -> set[str]:
    """Return files, and file:line of functions."""
    own = [each for each in codes if each.co_filename.startswith(SOURCE)]
    names = {each: Path(each.co_filename).relative_to(ROOT).as_posix() for each in own}
    return set(names.values()) | {f"{names[each]}:{each.co_firstlineno}" for each in own}


def pytest_sessionfinish() -> None:
    """Write what this process has recorded."""
    if RECORD is not None and _FOUND:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        path = Path(RECORD) / f"{worker}.json"
        path.write_text(json.dumps(_FOUND), encoding="utf-8")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are wanted, in their order."""
    if WANTED is None:
        return
    place = {name: k for k, name in enumerate(json.loads(Path(WANTED).read_text("utf-8")))}
    config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in place])
    items[:] = [each for each in items if each.nodeid in place]
    items.sort(key=lambda each: place[each.nodeid])
