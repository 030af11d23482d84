"""Record the runs that tests/golden pins again: python tools/record_trajectories.py --reason "...".

Without a reason nothing is written: it only prints which runs changed. A run that has the same
folder as before, and other numbers, is refused even with one: raise PROTOCOL first, or finished
runs of users would be taken for what they are not. Where the numbers differ by rounding alone,
raising REVISION is enough.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from same_numbers import differences, fingerprint, folders, in_words
from trajectories import CONFIGS, FILE, protocol, revision, tolerance, train, write_data

Runs = dict[str, list[dict[str, Any]]]
NOTHING: dict[str, Any] = {"revision": 0, "history": [], "fingerprint": {}, "runs": {}}


def train_all() -> Runs:
    """Train all runs in a temporary folder."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        write_data(data)
        for run in CONFIGS["run"]:
            folder = Path(name) / run
            folder.mkdir()
            with redirect_stdout(sys.stderr):
                found[run] = train(run, folder, data)
    return found


def changes(before: dict[str, Any], found: Runs) -> Iterator[tuple[str, str, bool]]:
    """Yield what differs: the name, how, and whether it has the same folder and other numbers."""
    is_exact = before["fingerprint"] == fingerprint()
    for name in dict.fromkeys([*before["runs"], *found]):
        old, new = before["runs"].get(name), found.get(name)
        if old is None or new is None:
            yield name, "is new" if old is None else "is gone", False
            continue
        bound = tolerance(name)
        if differing := list(differences(old, new, is_exact, bound)):
            at = {run["folder"]: run for run in new}
            again = [run for run in old if run["folder"] in at]
            found_again = [at[run["folder"]] for run in again]
            # A new revision may round otherwise, and no more than that.
            is_strict = is_exact and revision() == before["revision"]
            is_refused = any(differences(again, found_again, is_strict, bound))
            yield name, f"changed\n{in_words(differing)}", is_refused
        elif folders(old) != folders(new):
            yield name, "has another folder, and the same numbers", False


def to_text(content: dict[str, Any]) -> str:
    """Return the file: a line for each round, so that a change is seen where it is."""
    about = {key: value for key, value in content.items() if key != "runs"}
    head = json.dumps(about, indent=1)[:-2]
    runs = ",\n".join(
        f"  {json.dumps(name)}: [\n{_joined(_run(run) for run in runs)}\n  ]"
        for name, runs in content["runs"].items()
    )
    return f'{head},\n "runs": {{\n{runs}\n }}\n}}\n'


def _run(run: dict[str, Any]) -> str:
    about = [f"    {json.dumps(key)}: {json.dumps(run[key])}" for key in run if key != "rounds"]
    rounds = _joined(f"     {json.dumps(each)}" for each in run["rounds"])
    return "   {\n" + _joined([*about, f'    "rounds": [\n{rounds}\n    ]']) + "\n   }"


def _joined(parts: Any) -> str:
    return ",\n".join(parts)


def main(words: list[str] | None = None) -> int:
    """Train, compare, and write if there is a reason to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--reason", default="", help="why the numbers are others than before")
    reason = parser.parse_args(words).reason.strip()
    before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else NOTHING
    found = train_all()
    changed = list(changes(before, found))
    for name, how, _ in changed:
        sys.stdout.write(f"{name} {how}\n")
    if not changed and before["fingerprint"] != fingerprint():
        sys.stdout.write(
            "The processor or torch are others; the runs are the same within bounds.\n"
        )
    if any(is_refused for _, _, is_refused in changed):
        sys.stdout.write(
            f"Nothing is written: runs changed while PROTOCOL stayed {protocol()}. Find the fault, "
            "or raise PROTOCOL (finished runs will not be reused), or REVISION if it is rounding "
            "alone, and record again.\n"
        )
        return 1
    if not reason:
        sys.stdout.write(
            f"Nothing {'is written: that takes --reason' if changed else 'changed'}.\n"
        )
        return 1 if changed else 0
    content = {
        "protocol": protocol(),
        "revision": revision(),
        "history": [
            *before["history"],
            {"protocol": protocol(), "revision": revision(), "reason": reason},
        ],
        "fingerprint": fingerprint(),
        "runs": found,
    }
    FILE.write_text(to_text(content), encoding="utf-8")
    sys.stdout.write(f"{len(found)} tables are recorded.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
