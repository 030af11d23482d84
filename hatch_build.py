"""Build the C kernels of a wheel, or of an editable installation, where there is a C compiler.

Without one, or if it fails, outvote is installed without them and uses plain torch: see
docs/decisions/0022.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-Wno-psabi")
# What a processor must have, and what the compiler is asked for. 256 bits for what it vectorises by
# itself: unaligned rows of 512 bits take three times as long.
LEVELS = {
    "4": ("-march=x86-64-v4", "-mprefer-vector-width=256"),
    "3": ("-march=x86-64-v3",),
    "0": (),
}


class NativeKernels(BuildHookInterface):  # type: ignore[misc]
    """Compile kernels/native.c beside itself, and put what came of it into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the files of the wheel are collected."""
        del version
        folder = Path(self.root) / "src" / "outvote" / "kernels"
        built = build(folder / "native.c", folder, self.app.display_warning)
        if not built:
            return
        build_data["artifacts"] += [f"/src/outvote/kernels/{path.name}" for path in built]
        build_data["pure_python"] = False
        # Any Python: the libraries do not use it.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"


def build(source: Path, folder: Path, warn: Callable[[str], Any]) -> list[Path]:
    """Compile for every level of this kind of processor; return the libraries, none on failure."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    built = []
    if compiler is None or sys.platform == "win32":
        warn("no C compiler, so without C kernels: gas takes two to four times as long on a CPU.")
    else:
        for level, flags in LEVELS.items() if is_x86 else [("0", ())]:
            # A second dot, so that nothing that lists modules takes it for one. Written elsewhere
            # first: a program that starts now finds the old library or the new one.
            library = folder / f"native.{level}.so"
            fresh = library.with_suffix(f".{os.getpid()}")
            error = _compile([*compiler.split(), *FLAGS, *flags], source, fresh)
            if error is None:
                fresh.replace(library)
                built.append(library)
            else:
                warn(f"without C kernels for level {level} of this processor: {error}")
    for old in set(folder.glob("native.*.so")) - set(built):
        old.unlink()
    return built


def _compile(command: list[str], source: Path, library: Path) -> str | None:
    """Return what went wrong, None if nothing did."""
    checksum = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
    command = [*command, checksum, str(source), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    library.unlink(missing_ok=True)
    return done.stderr.strip().partition("\n")[0] or f"{command[0]} failed"
