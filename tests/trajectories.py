"""Short runs by `outvote run`, and their numbers under names that outvote does not choose.

What is pinned (golden/trajectories.json, data/store) must outlive the names of the program: all
that knows those names is in the first part of this file, up to the line.
"""

import json
import os
import tomllib
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from safetensors.numpy import load_file

from outvote.cli import main
from outvote.experiment.run_spec import PROTOCOL, REVISION
from same_numbers import digest, norm
from synthetic_data import write_image_folder, write_leaf

# What metrics.jsonl calls it -> what it is called here. A key that is not here is an error: nothing
# is left out.
NAMES = {
    "round": "round",
    "num_samples": "samples",
    "loss": "loss",
    "accuracy": "accuracy",
    "clients": "clients",
    "byzantine": "byzantine",
    "num_byzantine_assumed": "assumed",
    "num_byzantine_used": "used",
    "kept": "kept",
    "rejected": "rejected",
    "scores": "scores",
    "deviation": "deviation",
    "honest_norm": "honest_norm",
    "byzantine_weight": "byzantine_weight",
    "diagnostics": "diagnostics",
}
# What later versions record besides: it is not pinned.
LATER = {"client_accuracy", "worst_decile", "client_accuracies"}
DATA_VARIABLE = "OUTVOTE_DATA"


def protocol():
    """The number that enters the hash of every run."""
    return PROTOCOL


def revision():
    """The number that is raised when numbers differ from before by rounding alone."""
    return REVISION


def run_program(config, store, *words):
    """`outvote run CONFIG -o STORE` on the CPU; the exit code."""
    command = ["run", config, "--output", store, "--device", "cpu", *words]
    return main([str(word) for word in command])


def make_table(path):
    """`outvote table PATH --json`: what it has of each rule, under the names of this file."""
    with redirect_stdout(StringIO()) as out:
        code = main(["table", str(path), "--json"])
    assert code == 0, f"`outvote table {path}` ended with {code}"
    return {
        cell["rule"]: {
            "runs": cell["num_runs"],
            "unfinished": cell["num_unfinished"],
            "best": cell["best_mean"],
            "final": cell["final_mean"],
            "kept_byzantine": cell["kept_byzantine_mean"],
            "byzantine_weight": cell["byzantine_weight_mean"],
            "deviation": cell["deviation_mean"],
        }
        for cell in json.loads(out.getvalue())["cells"]
    }


def read_run(folder):
    """What there is in the folder of a run, under the names of this file."""
    status = json.loads((folder / "status.json").read_text())
    data = json.loads((folder / "env.json").read_text())["data"]
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    arrays = load_file(folder / "checkpoint.safetensors")
    return {
        "folder": folder.name,
        "outcome": status["outcome"],
        "data": data["checksum"],
        "test_images": data["num_test"],
        "weights": digest(arrays["weights"]),
        "weights_norm": norm(arrays["weights"]),
        "buffers": digest(arrays["buffers"]),
        "buffers_norm": norm(arrays["buffers"]),
        "rounds": [neutral(json.loads(line)) for line in lines],
    }


def read_store(store):
    """All runs of a store, in the order of their folders."""
    return [read_run(path.parent) for path in sorted(store.glob("*/*/status.json"))]


def neutral(line):
    """A line of metrics.jsonl with the names of this file; what it does not have is None."""
    values = {NAMES[key]: value for key, value in line.items() if key not in LATER}
    return {name: values.get(name) for name in dict.fromkeys(NAMES.values())}


# ------------------------------------------------------------------------------------------------

FILE = Path(__file__).parent / "golden" / "trajectories.json"
CONFIGS = tomllib.loads(FILE.with_suffix(".toml").read_text())


@contextmanager
def reproducible(data):
    """One thread for torch, and the synthetic data of the folder `data`.

    With more threads some sums over coordinates (of fltrust, and of diagnostics) are added up in
    another order, and the last bits differ.
    """
    threads, before = torch.get_num_threads(), os.environ.get(DATA_VARIABLE)
    torch.set_num_threads(1)
    os.environ[DATA_VARIABLE] = str(data)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del os.environ[DATA_VARIABLE]
        if before is not None:
            os.environ[DATA_VARIABLE] = before


def write_data(folder):
    """Make the synthetic data that the pinned runs need."""
    images, leaf = folder / "imagenet12", folder / "femnist"
    write_image_folder(images, size=16, num_classes=4, num_train=60, num_test=20)
    write_leaf(leaf, num_writers=9, num_classes=6, num_train=8, num_test=3)


def write_store_data(folder):
    """Make the synthetic data that data/store was made with."""
    write_image_folder(folder / "imagenet12", size=1, num_classes=3, num_train=20, num_test=15)


def train(name, folder, data):
    """Train the runs of a table of trajectories.toml below a folder; their numbers."""
    config = folder / f"{name}.toml"
    table = merged(CONFIGS["common"], CONFIGS["run"][name])
    config.write_text("".join(f"{line}\n" for line in toml_lines(table)))
    with reproducible(data):
        code = run_program(config, folder / "store")
    assert code == 0, f"`outvote run` of {name} ended with {code}"
    return read_store(folder / "store")


def merged(below, above):
    """One table laid over another."""
    result = dict(below)
    for key, value in above.items():
        is_inside = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if is_inside else value
    return result


def toml_lines(table, prefix=""):
    """A table as lines of TOML, with dotted keys."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from toml_lines(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key} = {json.dumps(value)}"


def tolerance(name):
    """What floats of a run may differ by where bits are not the same."""
    return CONFIGS["tolerance"].get(name, CONFIGS["tolerance"]["usual"])
