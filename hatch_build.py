"""Build the C kernels of a wheel, or of an editable installation, where there is a C compiler.

Without one, or if it fails, outvote is installed without them and uses plain torch: see
docs/decisions/0022.
"""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

# Without warnings: the first line of what the compiler writes is then the reason of a failure.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-w")
V3 = ("-mavx2", "-mfma", "-mbmi", "-mbmi2")
# What the compiler may use; outvote_level() in native.c asks the processor for the same. 256 bits
# for what is vectorised by itself: unaligned rows of 512 bits take three times as long.
LEVELS = {
    "4": (
        *V3,
        *("-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"),
        "-mprefer-vector-width=256",
    ),
    "3": V3,
    "0": (),
}


class NativeKernels(BuildHookInterface):  # type: ignore[misc]
    """Compile ops/native.c beside itself, and put the libraries into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the files of the wheel are collected."""
        del version
        folder = Path(self.root) / "src" / "outvote" / "ops"
        built = build(folder / "native.c", folder, self.app.display_warning)
        if not built:
            return
        build_data["artifacts"] += [f"/src/outvote/ops/{path.name}" for path in built]
        build_data["pure_python"] = False
        # Any Python: the libraries do not use it.
        system = next(tag for tag in platform_tags() if not tag.startswith(("many", "musl")))
        build_data["tag"] = f"py3-none-{system}"


def build(source: Path, folder: Path, warn: Callable[[str], Any]) -> list[Path]:
    """Compile for every level of this kind of processor; return the libraries, none on failure."""
    compiler = _compiler(warn)
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    levels = LEVELS if is_x86 else {"0": ()}
    built: list[Path] = []
    # The lowest first: without it, no other is used.
    for level in sorted(levels) if compiler else ():
        # A second dot, so that nothing that lists modules takes it for one.
        library = folder / f"native.{level}.so"
        error = _compile([*compiler, *FLAGS, *levels[level]], source, library)
        if error is None:
            built.append(library)
        else:
            warn(f"without C kernels for level {level} of this processor: {error}")
            if level == "0":
                break
    # Where nothing was built they stay: another installation of this folder may use them, and it
    # does only if they are of this source.
    for old in set(folder.glob("native.*.so")) - set(built) if built else ():
        with suppress(OSError):
            old.unlink()
    return built


def _compiler(warn: Callable[[str], Any]) -> list[str]:
    """Return the command of the C compiler, empty if there is none."""
    found = shutil.which("cc") or shutil.which("gcc")
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ([found] if found else [])
    except ValueError as error:
        warn(f"without C kernels: CC is not a command, got {os.environ['CC']!r}: {error}.")
        return []
    if not compiler or sys.platform == "win32":
        warn("no C compiler, so without C kernels: gas takes up to twice as long on a CPU.")
        return []
    return compiler


def _refused(library: Path) -> str | None:
    """Return why a library cannot be loaded; a compiler may be for another processor or system.

    Where the folder of a build is one that nothing is executed from, it cannot be known.
    """
    if os.statvfs(library).f_flag & getattr(os, "ST_NOEXEC", 0):
        return None
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return str(error)
    return None


def _compile(command: list[str], source: Path, library: Path) -> str | None:
    """Return what went wrong, None if nothing did."""
    try:
        with TemporaryDirectory(prefix=".native.", dir=library.parent) as folder:
            fresh = Path(folder) / library.name
            checksum = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
            done = subprocess.run(
                [*command, checksum, str(source), "-o", str(fresh)],
                capture_output=True,
                errors="replace",
                check=False,
                timeout=300,
                env={**os.environ, "LC_ALL": "C"},
            )
            if done.returncode == 0:
                if (error := _refused(fresh)) is None:
                    # A program that starts now finds the old library or the new one.
                    fresh.replace(library)
                return error
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    # The linker gives its reason without that word, and then fails with it.
    errors = [line for line in lines if "error:" in line and "collect2:" not in line] or lines
    return errors[0] if errors else f"{command[0]} failed"
