"""Hand-made Flower messages: a federation in memory, and every way in which one reply can be bad.

The benchmark that shows Flower's own strategies the same replies uses this file too.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from itertools import count

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Flower makes messages inside of a run only.
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
SUPERLINK = 1
Named = dict[str, np.ndarray]
Respond = Callable[[Message], Message | None]


class HandMadeGrid(Grid):
    """Delivers messages to functions; what they do not answer in time may come later."""

    def __init__(self, nodes: Iterable[int], respond: Respond) -> None:
        self.nodes, self.respond = list(nodes), respond
        self.ids = count(1)
        self.mail: dict[str, Message] = {}
        self.asked: list[list[int]] = []

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in messages])
        for message in messages:
            key = message.metadata.__dict__["_message_id"] = f"message-{next(self.ids)}"
            reply = self.respond(message)
            if reply is not None:
                self.mail[key] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.mail.pop(key) for key in list(message_ids) if key in self.mail]

    def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def record_of(arrays: Named) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord) -> Named:
    return {name: array.numpy() for name, array in record.items()}


def content_of(arrays: Named | ArrayRecord, **metrics: float) -> RecordDict:
    record = arrays if isinstance(arrays, ArrayRecord) else record_of(arrays)
    values = MetricRecord({"num-examples": 10, "loss": 1.0} | metrics)
    return RecordDict({"arrays": record, "metrics": values})


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def error_reply(message: Message, reason: str = "Node Unavailable") -> Message:
    """What the SuperLink sends for a node that died: from its own id, not from the node's."""
    reply = Message(Error(3, reason), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK
    return reply


def swapped(arrays: Named, name: str, array: Array) -> RecordDict:
    record = record_of(arrays)
    record[name] = array
    return content_of(record)


def _of_first(arrays: Named, change: Callable[[np.ndarray], np.ndarray]) -> RecordDict:
    name = next(iter(arrays))
    return content_of({**arrays, name: change(arrays[name])})


def _all(arrays: Named, change: Callable[[np.ndarray], np.ndarray]) -> RecordDict:
    floats = {name: change(array) for name, array in arrays.items() if array.dtype.kind == "f"}
    return content_of(arrays | floats)


def _lie(arrays: Named) -> RecordDict:
    """The label is right, what is inside is smaller."""
    name = next(iter(arrays))
    right = arrays[name]
    data = npy(right.ravel()[:-1])
    return swapped(arrays, name, Array(str(right.dtype), right.shape, "numpy.ndarray", data))


def _pickle(arrays: Named) -> RecordDict:
    """Something that would be run, if it were loaded with pickle."""
    name = next(iter(arrays))
    right = arrays[name]
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    array = Array(str(right.dtype), right.shape, "numpy.ndarray", file.getvalue())
    return swapped(arrays, name, array)


def _words(arrays: Named) -> RecordDict:
    return _of_first(arrays, lambda array: np.full(array.shape, "ruin"))


def _keys(arrays: Named) -> RecordDict:
    renamed = dict(arrays)
    renamed["other"] = renamed.pop(next(iter(arrays)))
    return content_of(renamed)


def _two_records(arrays: Named) -> RecordDict:
    content = content_of(arrays)
    content["more"] = record_of(arrays)
    return content


def _no_metrics(arrays: Named) -> RecordDict:
    return RecordDict({"arrays": record_of(arrays)})


# As in the table: what an honest node sends -> what the bad one sends. None: an error reply.
BAD: dict[str, Callable[[Named], RecordDict] | None] = {
    "none": content_of,
    "error": None,
    "nan": lambda arrays: _of_first(arrays, lambda a: np.full_like(a, np.nan)),
    "inf": lambda arrays: _of_first(arrays, lambda a: np.full_like(a, np.inf)),
    "big": lambda arrays: _all(arrays, lambda a: np.full_like(a, 1e20)),
    "shape": lambda arrays: _of_first(arrays, lambda a: np.ones((*a.shape, 2), a.dtype)),
    "scalarshape": lambda arrays: _of_first(arrays, lambda a: np.ones((), a.dtype)),
    "transpose": lambda arrays: _of_first(arrays, lambda a: np.ascontiguousarray(a.T)),
    "lie": _lie,
    "pickle": _pickle,
    "keys": _keys,
    "tworecs": _two_records,
    "dtype64": lambda arrays: _all(arrays, lambda a: a.astype(np.float64)),
    "strdtype": _words,
    "nometric": _no_metrics,
    "numex_huge": lambda arrays: content_of(arrays, **{"num-examples": 10**15}),
    "numex_neg": lambda arrays: content_of(arrays, **{"num-examples": -99}),
    "numex_nan": lambda arrays: content_of(arrays, **{"num-examples": float("nan")}),
    "loss_nan": lambda arrays: content_of(arrays, loss=float("nan")),
}
HARMLESS = ("none", "numex_huge")
"""Nothing is wrong with these for who does not look at the counts."""
USABLE = (*HARMLESS, "big", "nometric", "numex_neg", "numex_nan", "loss_nan")
"""Replies whose arrays can be aggregated."""


def honest(node: int, model: Named) -> Named:
    """What an honest node sends: near 1, whatever it was sent."""
    draw = np.random.default_rng(node)
    return {
        name: draw.normal(1, 0.1, array.shape).astype(array.dtype) for name, array in model.items()
    }


def respond_with(kind: str, bad_nodes: Sequence[int]) -> Respond:
    """Nodes that are honest but for some, which send one kind of bad reply."""

    def respond(message: Message) -> Message:
        node = message.metadata.dst_node_id
        arrays = honest(node, arrays_of(message.content["arrays"]))
        if node not in bad_nodes:
            return Message(content_of(arrays), reply_to=message)
        make = BAD[kind]
        return error_reply(message) if make is None else Message(make(arrays), reply_to=message)

    return respond


def run_round(strategy, grid: HandMadeGrid, model: ArrayRecord, number: int = 1):
    """Run the training of one round."""
    messages = strategy.configure_train(number, model, ConfigRecord(), grid)
    return strategy.aggregate_train(number, grid.send_and_receive(messages))
