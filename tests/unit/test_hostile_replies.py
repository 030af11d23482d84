"""All kinds of hostile replies, each in one round in memory."""

import gzip
import io

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from bad_replies import HandMadeGrid, arrays_of, content_of, record_of, run_round
from outvote.flower import RobustStrategy
from outvote.results.audit_log import read_audit

NODES = range(100, 108)
MODEL = {"weight": np.zeros((20, 10), "f4"), "bias": np.zeros(10, "f4")}
HOSTILE = (100, 101)
USABLE = (
    *("1e20", "largest float", "smallest float", "zeros", "model as sent", "reversed"),
    *("reversed, ten times", "a million times", "noise", "much noise"),
    *("noise of the step's size", "all ones", "shuffled", "one huge value", "half huge"),
    *("Fortran order", "no metrics", "other key", "5 MB of settings", "no examples"),
    *("-99 examples", "10**15 examples", "nan examples", "inf examples", "5e-324 examples"),
    *("a list of examples", "nan loss", "10,000 metrics", "metric of a million", "odd metric"),
)
"""A rule without counts gets the arrays of these, and outvotes those that are far."""


def npy(array, **options):
    """Return an array as numpy stores it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def every(change):
    """Change all arrays."""
    return lambda model, _: content_of({name: change(array) for name, array in model.items()})


def first(change):
    """Change one array."""
    return lambda model, _: content_of({**model, "weight": change(model["weight"])})


def step(change):
    """Change the update, which is what was trained minus what was sent."""
    return lambda model, sent: content_of(
        {name: (sent[name] + change(model[name] - sent[name])).astype("f4") for name in model}
    )


def labelled(**labels):
    """Lie about one array: its type, shape, kind of storage or bytes."""

    def make(model, _):
        right = model["weight"]
        about = {"dtype": "float32", "shape": right.shape, "stype": "numpy.ndarray"}
        data = labels.get("data", npy)
        about |= {name: value for name, value in labels.items() if name != "data"}
        record = record_of(model)
        record["weight"] = Array(**about, data=data(right) if callable(data) else data)
        return content_of(record)

    return make


def counted(value):
    """Claim some number of examples."""
    return lambda model, _: content_of(model, **{"num-examples": value})


def measured(**metrics):
    """Send some metrics."""
    return lambda model, _: content_of(model, **metrics)


def named(change):
    """Change the names of the arrays."""
    return lambda model, _: content_of(change(dict(model)))


def noise(size):
    """Return random numbers in the shape of an array."""
    return lambda a: np.random.default_rng().normal(0, size, a.shape).astype("f4")


def spoil(a, value, share=1.0):
    """Return an array with a share of its values replaced."""
    a = a.copy()
    a.flat[: max(1, round(share * a.size))] = value
    return a


def _extra(model, name, record):
    made = content_of(model)
    made[name] = record
    return made


def _pickled(_):
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return file.getvalue()


def _npz(a):
    file = io.BytesIO()
    np.savez_compressed(file, a=a)
    return file.getvalue()


def _header(text):
    raw = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw


KINDS = {
    "nan": every(lambda a: np.full_like(a, np.nan)),
    "one nan": first(lambda a: spoil(a, np.nan, 0)),
    "inf": every(lambda a: np.full_like(a, np.inf)),
    "minus inf": first(lambda a: spoil(a, -np.inf, 0.5)),
    "1e20": every(lambda a: np.full_like(a, 1e20)),
    "largest float": every(lambda a: np.full_like(a, 3.4e38)),
    "smallest float": every(lambda a: np.full_like(a, 1e-45)),
    "zeros": every(np.zeros_like),
    "model as sent": lambda _, sent: content_of(sent),
    "reversed": step(lambda a: -a),
    "reversed, ten times": step(lambda a: -10 * a),
    "a million times": step(lambda a: 1e6 * a),
    "noise": every(noise(1.0)),
    "much noise": every(noise(1e3)),
    "noise of the step's size": step(lambda a: noise(float(a.std()) + 1e-6)(a)),
    "all ones": every(np.ones_like),
    "shuffled": every(lambda a: np.random.default_rng().permutation(a.ravel()).reshape(a.shape)),
    "one huge value": first(lambda a: spoil(a, 1e30, 0)),
    "half huge": first(lambda a: spoil(a, 1e10, 0.5)),
    "one axis more": first(lambda a: a[..., None]),
    "scalar": first(lambda a: np.ones((), a.dtype)),
    "transposed": first(lambda a: np.ascontiguousarray(a.T)),
    "flat": first(np.ravel),
    "empty": first(lambda a: a[:0]),
    "one row less": first(lambda a: a[:-1]),
    "one row more": first(lambda a: np.concatenate([a, a[:1]])),
    "shape is not what is inside": labelled(data=lambda a: npy(a.ravel()[:-1])),
    "shape of a terabyte": labelled(shape=(10**6, 10**6), data=b"\x93NUMPY garbage"),
    "negative shape": labelled(shape=(-784, -10)),
    "hundred axes": labelled(shape=(1,) * 100),
    "no axes": labelled(shape=()),
    "float64": every(lambda a: a.astype("f8")),
    "float16": every(lambda a: a.astype("f2")),
    "whole numbers": every(lambda a: a.astype("i4")),
    "booleans": every(lambda a: a > 0),
    "complex": first(lambda a: a.astype("c8")),
    "words": first(lambda a: np.full(a.shape, "ruin")),
    "dates": first(lambda a: np.zeros(a.shape, "M8[s]")),
    "other byte order": labelled(data=lambda a: npy(a.astype(">f4"))),
    "float64 inside": labelled(data=lambda a: npy(a.astype("f8"))),
    "unknown type": labelled(dtype="bfloat16"),
    "long type": labelled(dtype="x" * 100_000),
    "no type": labelled(dtype=""),
    "objects": labelled(dtype="object", data=_pickled),
    "pickle": labelled(data=_pickled),
    "stored as torch": labelled(stype="torch.Tensor"),
    "stored as nothing": labelled(stype=""),
    "garbage": labelled(data=b"garbage"),
    "no bytes": labelled(data=b""),
    "half of the bytes": labelled(data=lambda a: npy(a)[: a.nbytes // 2]),
    "bytes too many": labelled(data=lambda a: npy(a) + b"more"),
    "zip": labelled(data=_npz),
    "gzip": labelled(data=lambda a: gzip.compress(npy(a))),
    "Fortran order": labelled(data=lambda a: npy(np.asfortranarray(a))),
    "npy version 3": labelled(data=lambda a: npy(a, version=(3, 0))),
    "header of 60 kB": labelled(data=_header("{" * 60_000)),
    "header of a petabyte": labelled(
        data=_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**9, 10**6)}\n")
    ),
    "header that is code": labelled(data=_header("__import__('os').getpid()\n")),
    "20 MB": labelled(data=lambda a: npy(a) + bytes(20_000_000)),
    "other names": named(lambda m: {f"other.{name}": array for name, array in m.items()}),
    "one name less": named(lambda m: {"weight": m["weight"]}),
    "one name more": named(lambda m: m | {"more": m["bias"]}),
    "2,000 names more": named(lambda m: m | {f"more{k}": m["bias"][:1] for k in range(2000)}),
    "long name": named(lambda m: m | {"x" * 200_000: m["bias"]}),
    "odd names": named(lambda m: m | {"a\nb\x1b[2J\u202e": m["bias"]}),
    "no arrays": lambda _, __: content_of(ArrayRecord()),
    "no records": lambda _, __: RecordDict(),
    "two array records": lambda m, _: _extra(m, "more", record_of(m)),
    "two metric records": lambda m, _: _extra(m, "more", MetricRecord({"num-examples": 1})),
    "5 MB of settings": lambda m, _: _extra(m, "more", ConfigRecord({"x": bytes(5_000_000)})),
    "no metrics": lambda m, _: RecordDict({"arrays": record_of(m)}),
    "other key": lambda m, _: RecordDict({"x": record_of(m), "y": MetricRecord({"z": 1.0})}),
    "no examples": counted(0),
    "-99 examples": counted(-99),
    "10**15 examples": counted(10**15),
    "nan examples": counted(float("nan")),
    "inf examples": counted(float("inf")),
    "5e-324 examples": counted(5e-324),
    "a list of examples": counted([1, 2, 3]),
    "nan loss": measured(loss=float("nan")),
    "10,000 metrics": measured(**{f"m{k}": 1.0 for k in range(10_000)}),
    "metric of a million": measured(many=[0.5] * 1_000_000),
    "odd metric": measured(**{"a\nb\x1b[2J": 1.0, "x" * 50_000: 1}),
}
"""By name: what makes a reply of the model that was trained and the one that was sent."""


def honest(node, model):
    draw = np.random.default_rng(node)
    return {name: draw.normal(1, 0.1, a.shape).astype("f4") for name, a in model.items()}


def one_round(kind, folder):
    """Run a round in which two nodes send one kind; return the model and the clients' records."""

    def respond(message):
        node, sent = message.metadata.dst_node_id, arrays_of(message.content["arrays"])
        trained = honest(node, sent)
        content = KINDS[kind](trained, sent) if node in HOSTILE else content_of(trained)
        return Message(content, reply_to=message)

    strategy = RobustStrategy("gas(median)", num_byzantine=2, audit_dir=folder, seed=0)
    model, _ = run_round(strategy, HandMadeGrid(NODES, respond), record_of(MODEL))
    strategy.close()
    (line,) = read_audit(folder)
    return arrays_of(model), {int(each.client): each for each in line.clients}


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_reply_of_two_nodes_spoils_a_round(kind, tmp_path):
    model, clients = one_round(kind, tmp_path / "audit")
    assert all(np.abs(array - 1).max() < 0.5 for array in model.values())
    for node in NODES:
        is_used = node not in HOSTILE or kind in USABLE
        assert clients[node].standing == ("aggregated" if is_used else "malformed")
        assert len(clients[node].reason) < 500
    assert all(clients[node].reason for node in HOSTILE if kind not in USABLE)


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("10,000 metrics", "it sent 10,002 metrics"),
        ("metric of a million", "its 'many' has 1,000,000 values"),
        ("odd metric", "a metric has a name of 50,000 characters"),
        ("5 MB of settings", "it sent 5,000,000 bytes of settings"),
    ],
)
def test_far_too_much_is_noted(kind, note, tmp_path):
    _, clients = one_round(kind, tmp_path / "audit")
    assert note in clients[HOSTILE[0]].reason
    assert not clients[NODES[-1]].reason.endswith(note)
