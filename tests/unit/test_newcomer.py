"""scripts/newcomer.sh: a step fails if any of its commands does; the whole takes too long here."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "scripts" / "newcomer.sh").read_text(encoding="utf-8")
STEP = re.search(r"^step\(\) .*?^\}$", SCRIPT, flags=re.MULTILINE | re.DOTALL)[0]


def bash(text, folder):
    given = (
        f"set -euo pipefail\nfolder={folder} logs={folder} failed=0 names=() seconds=() states=()"
    )
    command = ["bash", "-c", f"{given}\n{STEP}\n{text}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("commands", "state"),
    [("true; true", "passed"), ("false; true", "FAILED"), ("true; false", "FAILED")],
)
def test_a_step_fails_if_one_of_its_commands_fails(commands, state, tmp_path):
    done = bash(f'some() {{ {commands}; }}\nstep some some\necho "$failed"', tmp_path)
    assert done.returncode == 0, done.stderr
    assert state in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == str(int(state == "FAILED"))


def test_a_step_runs_in_the_clone_and_the_next_one_follows_a_failure(tmp_path):
    done = bash("step first false\nstep second touch made", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").exists()


def test_the_script_is_valid_bash():
    done = subprocess.run(["bash", "-n", ROOT / "scripts" / "newcomer.sh"], check=False)
    assert done.returncode == 0
