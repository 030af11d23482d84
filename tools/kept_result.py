"""The result file of a long check, which it writes again and again while it runs."""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Replace the file: a check that is stopped loses what it did since, and no more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def new_call(script: str, words: list[str]) -> dict[str, Any]:
    """Return the date, the command and the commit of a call."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", script, *words]),
        "commit": done.stdout.strip() or None,
        "python": sys.version.split()[0],
    }
