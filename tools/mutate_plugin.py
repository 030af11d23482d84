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
"""A folder to write to, and a file with the tests that are wanted, in their order; with a folder,
those that it has already are not repeated."""
ROOT = Path(__file__).parents[1]
SOURCE = str(ROOT / "src")
_FAILED: set[str] = set()


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
        row = {"test": item.nodeid, "seconds": seconds, "fails": item.nodeid in _FAILED}
        line = json.dumps(row | {"functions": sorted(_places(codes))})
        with (Path(RECORD) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    """Note a test that fails."""
    report = yield
    if report.failed:
        _FAILED.add(item.nodeid)
    return report


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is recorded of each test; an incomplete line of a killed process is left out."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        found |= {row["test"]: row for row in rows}
    return found


def _places(codes: set[CodeType]) -> set[str]:
    """Return files, and file:line of functions."""
    own = [each for each in codes if each.co_filename.startswith(SOURCE)]
    names = {each: Path(each.co_filename).relative_to(ROOT).as_posix() for each in own}
    return set(names.values()) | {f"{names[each]}:{each.co_firstlineno}" for each in own}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests that are wanted, in their order, or that are not recorded yet."""
    kept = items
    if WANTED is not None:
        place = {name: k for k, name in enumerate(json.loads(Path(WANTED).read_text("utf-8")))}
        kept = [each for each in items if each.nodeid in place]
        kept.sort(key=lambda each: place[each.nodeid])
    if RECORD is not None:
        known = recorded(Path(RECORD))
        kept = [each for each in items if each.nodeid not in known]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
