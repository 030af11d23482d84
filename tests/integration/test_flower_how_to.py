"""The commands of docs/how-to/flower.md, as they are printed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flower_federation import EXAMPLE
from outvote.results.audit_log import read_audit

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower.md"
ALONE = ["unshare", "-rn", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""A network of its own, where the ports of the page are free; whoever is left is ended."""


def commands(title):
    """Return the commands of a section."""
    section = PAGE.read_text().split(f"{title}\n", 1)[1].split("\n#", 1)[0]
    return "\n".join(re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))


def run(folder, text):
    bash = ["bash", "-c", f"set -e; ip link set lo up\n{text}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*ALONE, *bash],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path):
    if subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace: unshare -rn")
    leave_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "flower", ignore=leave_out)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("### On one machine, without encryption", "open"),
        ("### With TLS and registered nodes", "secure"),
    ],
)
def test_commands_of_the_page_can_be_copied(checkout, title, name):
    text = commands("## The example") + commands(title)
    done = run(checkout, text.replace("num-rounds=3", "num-rounds=1"))
    (entry,) = read_audit(checkout / "flower-home" / name)
    assert entry.is_updated, done.stdout + done.stderr
    assert len(entry.clients) == 4
    assert done.returncode == 0


def test_settings_on_the_page_are_settings_of_the_example():
    known = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    given = re.findall(r"-c ['\"](.*?)(?:'\n|\"'|\"\n)", PAGE.read_text(), flags=re.DOTALL)
    names = {name for text in given for name in re.findall(r"([a-z-]+)=", text)}
    assert {"num-rounds", "audit-dir", "resume", "attack"} <= names <= set(known)
