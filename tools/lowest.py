"""Test the lowest versions that pyproject.toml allows: python tools/lowest.py [FOLDER].

Makes a virtual environment in FOLDER (a temporary one, if none is given), installs outvote there
with exactly the lowest version of each of its dependencies, and runs a small set of tests. On
Linux, old builds of torch bring gigabytes of CUDA libraries.
"""

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
TOOLS = ("pytest>=8", "hypothesis", "setuptools")
"""What the tests need; setuptools, because Triton of old builds of torch imports it."""
TESTS = (
    "tests/golden/test_golden.py",
    "tests/integration/test_cli_run.py",
    "tests/unit/test_aggregate.py",
    "tests/unit/test_client_files.py",
    "tests/unit/test_data_image_folder.py",
    "tests/unit/test_report.py",
    "tests/unit/test_results.py",
)


def lowest() -> list[str]:
    """Return each dependency of outvote, pinned to its lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for text in project["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", text)
        if match is None:
            raise ValueError(f"{text!r} in pyproject.toml must be a name with >= and a version.")
        found.append(f"{match[1]}=={match[2]}")
    return found


def run(folder: Path) -> int:
    """Install and test; return the exit status of the tests."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    sys.stdout.write(f"installing {' '.join(lowest())}\n")
    sys.stdout.flush()
    subprocess.run([*install, *lowest(), *TOOLS], check=True)
    subprocess.run([*install, "--no-deps", ROOT], check=True)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    # Old libraries warn of newer ones: only results count here.
    command = [python, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(run(Path(sys.argv[1])))
    with TemporaryDirectory() as temporary:
        sys.exit(run(Path(temporary)))
