"""Small suites for tests, and the program that runs them."""

import subprocess
import sys
import time
from pathlib import Path

MAIN = "import sys; from outvote.cli import main; sys.exit(main())"
SUITE = """
title = "Tiny"

[settings]
rounds = {rounds}
seed = [0, 1]
attack = ["lie", "mimic(client=none)"]
data.partition = "iid"
federation = {{ num_clients = 10, sampled = 5 }}
model.name = "mlp"
training = {{ num_steps = 2, batch_size = 16 }}

[[part]]
name = "main"

[part.settings]
rule = {rules}
"""
RULE = """
import os, signal, time
from pathlib import Path
import outvote
class Mine(outvote.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients - 1
    def aggregate(self, rows, num_byzantine):
        {work}
        return rows.mean(dim=0)
"""
SLOW = "time.sleep(0.05)"


def own_rule(folder, work, name="mine"):
    """Write a rule that does some work before it takes the mean; return its text."""
    path = folder / f"{name}.py"
    path.write_text(RULE.format(work=work))
    return f"{path}:Mine"


def own_suite(folder, rules, rounds=3, name="tiny"):
    """Write a suite of 4 runs for each rule."""
    path = folder / f"{name}.toml"
    path.write_text(SUITE.format(rules=list(rules), rounds=rounds).replace("'", '"'))
    return path


def finished_store(folder):
    """A suite, and a store in which all its runs are finished; not to be written to."""
    from outvote.cli import main

    suite = own_suite(folder, ["mean", "gas(median)"])
    assert main(["bench", str(suite), "-o", str(folder / "runs"), "--device", "cpu"]) == 0
    return suite, folder / "runs"


def start(suite, output, *words):
    """Start `outvote bench` as a program."""
    command = [sys.executable, "-c", MAIN, "bench", suite, "--device", "cpu", "-o", output, *words]
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def num_rounds(output):
    """How many rounds all runs of a store have."""
    files = output.glob("*/*/metrics.jsonl")
    return sum(path.read_bytes().count(b"\n") for path in files)


def wait_for_rounds(process, output, number):
    """Wait until so many rounds are done, or the program ended."""
    while num_rounds(output) < number and process.poll() is None:
        time.sleep(0.005)


def metrics(output):
    """What must be the same to the last bit, by run."""
    return {
        path.parent.name: path.read_bytes() for path in sorted(output.glob("*/*/metrics.jsonl"))
    }


def outcomes(output):
    """How many runs of a store came to what."""
    from outvote.results.folder import find_runs

    found = [run.status().outcome for run in find_runs(output)]
    return {word: found.count(word) for word in sorted(set(found))}


def children(process):
    """The processes that a program has started; none where there is no /proc."""
    return [
        int(text)
        for path in Path(f"/proc/{process.pid}/task").glob("*/children")
        for text in path.read_text().split()
    ]


def is_running(number):
    """Return whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
