"""Shell completion: the scripts that docs/how-to/cli.md names, and what they complete."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outvote.cli.app import VERBS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cli.md"
PROGRAM = "import sys; from outvote.cli.app import main; sys.argv[0] = 'outvote'; sys.exit(main())"


def outvote(instruction, **environment):
    env = {**os.environ, "_OUTVOTE_COMPLETE": instruction, **environment}
    words = [sys.executable, "-c", PROGRAM]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_documented_shell_has_a_script(shell):
    assert f"_OUTVOTE_COMPLETE={shell}_source outvote" in PAGE.read_text(encoding="utf-8")
    if shell == "bash" and not Path("/bin/bash").exists():
        pytest.skip("click asks bash for its version")
    done = outvote(f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert f"{shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("outvote ", set(VERBS)),
        ("outvote ve", {"verify"}),
        ("outvote data f", {"fetch"}),
        ("outvote plot --kind h", {"heatmap"}),
        ("outvote bench --dry", {"--dry-run"}),
    ],
)
def test_words_are_completed(typed, wanted):
    words = typed.split(" ")
    environment = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = outvote("bash_complete", **environment)
    found = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert wanted <= found
    assert len(found) == len(wanted)
