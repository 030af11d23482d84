"""The nodes: honest ones train; a hostile one sends one kind of bad reply after the other."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from hostile.replies import KINDS, STALL
from hostile.task import train

app = ClientApp()


@app.train()
def train_once(message: Message, context: Context) -> Message:
    """Train the received model on the node's own images, and send it back, or something else."""
    node, round_ = context.node_config, int(message.content["config"]["server-round"])
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    with np.load(str(node["data"])) as stored:
        images, labels = stored["images"], stored["labels"]
    model, loss = train(sent, images, labels, seed=1000 * round_ + int(node["partition-id"]))
    if node.get("hostile"):
        kind = next_kind(Path(str(node["notes"])), int(node["first-kind"]), round_)
        if kind == STALL:
            time.sleep(float(node["stall-seconds"]))
        return Message(KINDS[kind](model, sent), reply_to=message)
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(labels)})
    record = ArrayRecord({name: Array(array) for name, array in model.items()})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)


def next_kind(notes: Path, first: int, round_: int) -> str:
    """Return the next kind of bad reply, and note it with its round."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    kind = list(KINDS)[(first + len(lines)) % len(KINDS)]
    with notes.open("a") as file:
        file.write(f"{round_} {kind}\n")
    return kind
