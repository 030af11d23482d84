"""One of several processes that share the coordinates: does the cases of a job, writes the results.

python shard_worker.py FOLDER RANK; FOLDER/job.json has the cases.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import outvote as ov
from outvote.files import ShardedRule, streaming
from outvote.files.processes import Processes
from outvote.files.safetensors_file import UnusableFile
from outvote.files.sources import SafetensorsSource
from outvote.files.tensor_writer import TensorWriter


class Rows(ov.VectorRule):
    """A rule that needs whole gradients."""

    name = "rows"

    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, rows, num_byzantine):
        return rows[0] / rows.norm()


def main():
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(1)
    streaming.LARGEST_CHUNK = streaming.SMALLEST_CHUNK = 300
    store = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=job["size"])
    found = {}
    for name, case in job["cases"].items():
        found[name] = done(folder, rank, case)
        if found[name].get("error", "").startswith("ProcessLost"):
            break
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # Without a farewell to processes that are lost.


def done(folder, rank, case):
    rule = Rows() if case["rule"] == "rows" else case["rule"]
    work = files if "output" in case else shards
    try:
        return work(folder, rank, ShardedRule(rule, timeout=case.get("timeout", 60)), case)
    except Exception as error:  # noqa: BLE001  (the test checks which)
        return {"error": f"{type(error).__name__}: {error}", "time": time.time()}


def shards(folder, rank, sharded, case):
    rows = np.load(folder / case["rows"])
    shard = rows[:, slice(*case["cuts"][rank : rank + 2])]
    if case.get("is_torch"):
        shard = torch.from_numpy(shard).bfloat16()
    options = case["options"] | case.get("differs", {}).get(str(rank), {})
    verdict = sharded.inspect(shard, **{"clients": case["clients"]} | options)
    found = facts(verdict)
    return found | {"update": verdict.update.tolist(), "dtype": str(verdict.update.dtype)}


def files(folder, rank, sharded, case):
    if case.get("who") == rank:
        {"read": fail_to_read, "write": fail_to_write, "signal": end}[case["how"]](folder, case)
    output = folder / case["output"]
    verdict = sharded.aggregate_files(folder / "updates", output=output, **case["options"])
    return facts(verdict) | {"is_there": output.exists()}


def facts(verdict):
    names = ("kept", "rejected", "num_groups", "num_byzantine", "notes", "seed")
    found = {name: getattr(verdict, name) for name in names}
    weights = None if verdict.weights is None else verdict.weights.tolist()
    return found | {"weights": weights, "scores": verdict.scores.tolist()}


def fail_to_read(folder, case):
    """Let this process alone find a file cut off, after some reads."""
    read, calls = SafetensorsSource.read, []

    def fails(source, start, out):
        if source.path.stem == "3":
            calls.append(1)
            if len(calls) >= case["after"]:
                raise UnusableFile("is cut off")
        read(source, start, out)

    SafetensorsSource.read = fails


def fail_to_write(folder, case):
    """Let the disk be full once, after some pieces."""
    write, calls = TensorWriter.write, []

    def fails(writer, name, start, values):
        calls.append(1)
        if len(calls) == case["after"]:
            TensorWriter.write = write
            raise OSError(28, "No space left on device")
        write(writer, name, start, values)

    TensorWriter.write = fails


def end(folder, case):
    """Stop or kill this process in the middle of its work."""
    add_up, calls = Processes.sum, []

    def ends(processes, values):
        calls.append(1)
        if len(calls) == case["after"]:
            (folder / "lost-at.txt").write_text(str(time.time()))
            os.kill(os.getpid(), getattr(signal, case["signal"]))
        return add_up(processes, values)

    Processes.sum = ends


if __name__ == "__main__":
    main()
