"""The nodes of a test federation: those of the example, but some are faulty as configured."""

import hashlib
import time
from pathlib import Path

from fashion.client_app import evaluate, train_once
from flwr.app import Array
from flwr.clientapp import ClientApp

from outvote.flower import AttackMod


def faulty(message, context, call_next):
    """Note which model came; then hang in a round, or send garbage, if the node is to."""
    node, number = context.node_config, message.content["config"]["server-round"]
    kind = message.metadata.message_type
    with (Path(node["notes"]) / f"{kind}{number}").open("a") as notes:
        notes.write(f"{digest(message.content['arrays'])}\n")
    if node.get("hangs-in-round") == number:
        time.sleep(3600)
    reply = call_next(message, context)
    if node.get("sends-garbage"):
        garbage = Array("float32", (10**6, 10**6), "numpy.ndarray", b"\x93NUMPY garbage")
        reply.content["arrays"][next(iter(reply.content["arrays"]))] = garbage
    return reply


def digest(arrays):
    """Return a checksum of a model."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        whole.update(name.encode() + arrays[name].data)
    return whole.hexdigest()


app = ClientApp(mods=[faulty, AttackMod()])
app.train()(train_once)
app.evaluate()(evaluate)
