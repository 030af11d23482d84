"""`outvote doctor`: installed versions, optional parts, devices and data."""

import os
import platform
import re
from collections import Counter
from importlib import metadata
from typing import Any

import click

from outvote.cli.output import print_listing
from outvote.cli.verb import Verb

# A requirement as pip writes it: name, extras and versions, then for which extra it is.
_REQUIREMENT = re.compile(r"^([\w.-]+).*?(?:;\s*extra\s*==\s*['\"]([\w-]+)['\"])?$")
HIDDEN_EXTRAS = ("dev",)


@click.command("doctor", cls=Verb)
def command(as_json: bool) -> None:
    """Print versions, optional parts, devices and data; for missing ones, how to get them."""
    from outvote.cli.data import about_dataset
    from outvote.data.catalog import DATASETS

    packages: list[dict[str, Any]] = [
        {"what": "outvote", "found": version("outvote"), "get": ""},
        {"what": "python", "found": platform.python_version(), "get": ""},
        *(_package(*requirement) for requirement in requirements()),
        _package("triton", None) | {"get": "", "note": "faster kernels on a GPU; not needed"},
    ]
    devices, datasets = _devices(), [about_dataset(entry) for entry in DATASETS.values()]
    rows = [
        *(_row(each["what"], each) for each in packages),
        *([*row, ""] for row in _device_rows(devices)),
        *(_row(each["name"], each) for each in datasets),
    ]
    data = {"packages": packages, "devices": devices, "datasets": datasets}
    print_listing(as_json, data, ["what", "found", ""], rows)


def _row(what: str, entry: dict[str, Any]) -> list[str]:
    found = entry["found"]
    return [what, found or "missing", "" if found else entry.get("note") or entry["get"]]


def version(package: str) -> str | None:
    """Return the installed version of a package, without importing it; None if it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> list[tuple[str, str | None]]:
    """Return the requirements of outvote: each package once, and the extra that it belongs to.

    Of several extras it is the one with the fewest packages, as that installs nothing else.
    """
    try:
        lines = metadata.requires("outvote") or []
    except metadata.PackageNotFoundError:
        lines = []
    found = [match.groups() for match in map(_REQUIREMENT.match, lines) if match]
    wanted = [(name, extra) for name, extra in found if extra not in HIDDEN_EXTRAS]
    sizes = Counter(extra for _, extra in wanted)
    smallest: dict[str, str | None] = {}
    for name, extra in sorted(wanted, key=lambda each: sizes[each[1]] if each[1] else 0):
        smallest.setdefault(name, extra)
    return list(smallest.items())


def _package(name: str, extra: str | None) -> dict[str, Any]:
    get = f"pip install 'outvote[{extra}]'" if extra else f"pip install {name}"
    return {"what": name, "found": version(name), "get": get}


def _devices() -> dict[str, Any]:
    """Return the threads and GPUs of torch."""
    devices: dict[str, Any] = {"cpu_count": os.cpu_count(), "torch_threads": None, "cuda": []}
    try:
        import torch
    except (ImportError, OSError) as error:
        return devices | {"error": f"torch cannot be imported: {error}"}
    from outvote.ops import native

    devices |= {"torch_threads": torch.get_num_threads(), "cuda_build": torch.version.cuda}
    devices["native_kernels"] = native.level()
    try:
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            devices["cuda"].append({"name": name, "memory_bytes": total, "free_bytes": free})
    except RuntimeError as error:
        devices["error"] = f"a GPU was found but cannot be used: {error}"
    return devices


def _device_rows(devices: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("CPU cores", str(devices["cpu_count"])),
        ("threads of torch", str(devices["torch_threads"] or "unknown")),
        ("C kernels", _native_kernels(devices.get("native_kernels"))),
    ]
    for number, gpu in enumerate(devices["cuda"]):
        gib = f"{gpu['memory_bytes'] / 2**30:.1f} GiB, {gpu['free_bytes'] / 2**30:.1f} free"
        rows.append((f"GPU {number}", f"{gpu['name']}, {gib}"))
    if not devices["cuda"]:
        build = devices.get("cuda_build")
        rows.append(
            ("GPU", f"none found (torch is built for {f'CUDA {build}' if build else 'CPUs'})")
        )
    if "error" in devices:
        rows.append(("error", devices["error"].partition("\n")[0]))
    return rows


def _native_kernels(level: str | None) -> str:
    if level is not None:
        return "in use" if level == "0" else f"in use, for x86-64-v{level}"
    if os.environ.get("OUTVOTE_NATIVE") == "0":
        return "switched off by OUTVOTE_NATIVE=0; gas and median are slower on a CPU"
    return (
        "missing, or of another version: install outvote again, with a C compiler (pip install -v)"
    )
