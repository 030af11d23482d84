"""Everything that a hostile node can send: wrong numbers, shapes, types, names, and faults.

Each kind makes the content of a reply from the model that was trained and the one that was sent.
"""

import gzip
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Model = dict[str, Any]
Make = Callable[[Model, Model], RecordDict]
STALL = "stall"
"""The kind that keeps silent for longer than a round waits."""


def content(arrays: Model | ArrayRecord, **metrics: Any) -> RecordDict:
    """Return a reply as an honest node writes it."""
    record = arrays if isinstance(arrays, ArrayRecord) else record_of(arrays)
    values = MetricRecord({"num-examples": 100, "train-loss": 1.0} | metrics)
    return RecordDict({"arrays": record, "metrics": values})


def record_of(arrays: Model) -> ArrayRecord:
    """Return arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def npy(array: Any, **options: Any) -> bytes:
    """Return an array as numpy stores it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def every(change: Callable[[Any], Any]) -> Make:
    """Change all arrays."""
    return lambda model, _: content({name: change(array) for name, array in model.items()})


def first(change: Callable[[Any], Any]) -> Make:
    """Change one array."""
    return lambda model, _: content({**model, "weight": change(model["weight"])})


def step(change: Callable[[Any], Any]) -> Make:
    """Change the update, which is what was trained minus what was sent."""
    return lambda model, sent: content(
        {name: (sent[name] + change(model[name] - sent[name])).astype("f4") for name in model}
    )


def labelled(**labels: Any) -> Make:
    """Lie about one array: its type, shape, kind of storage or bytes."""

    def make(model: Model, _: Model) -> RecordDict:
        right = model["weight"]
        about = {"dtype": "float32", "shape": right.shape, "stype": "numpy.ndarray"}
        data = labels.get("data", npy)
        about |= {name: value for name, value in labels.items() if name != "data"}
        record = record_of(model)
        record["weight"] = Array(**about, data=data(right) if callable(data) else data)
        return content(record)

    return make


def counted(value: Any) -> Make:
    """Claim some number of examples."""
    return lambda model, _: content(model, **{"num-examples": value})


def measured(**metrics: Any) -> Make:
    """Send some metrics."""
    return lambda model, _: content(model, **metrics)


def named(change: Callable[[Model], Model]) -> Make:
    """Change the names of the arrays."""
    return lambda model, _: content(change(dict(model)))


def does(act: Callable[[], object]) -> Make:
    """Do something before a reply as it should be."""

    def make(model: Model, _: Model) -> RecordDict:
        act()
        return content(model)

    return make


def noise(size: float) -> Callable[[Any], Any]:
    """Return random numbers in the shape of an array."""
    return lambda a: np.random.default_rng().normal(0, size, a.shape).astype("f4")


def fail(error: Exception) -> Callable[[], None]:
    """Return what raises."""

    def act() -> None:
        raise error

    return act


def spoil(a: Any, value: float, share: float = 1.0) -> Any:
    """Return an array with a share of its values replaced."""
    a = a.copy()
    a.flat[: max(1, round(share * a.size))] = value
    return a


def _extra(model: Model, name: str, record: Any) -> RecordDict:
    made = content(model)
    made[name] = record
    return made


def _pickled(_: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return file.getvalue()


def _npz(a: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, a=a)
    return file.getvalue()


def _header(text: str) -> bytes:
    raw = text.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw


KINDS: dict[str, Make] = {
    "nan": every(lambda a: np.full_like(a, np.nan)),
    "one nan": first(lambda a: spoil(a, np.nan, 0)),
    "inf": every(lambda a: np.full_like(a, np.inf)),
    "minus inf": first(lambda a: spoil(a, -np.inf, 0.5)),
    "1e20": every(lambda a: np.full_like(a, 1e20)),
    "largest float": every(lambda a: np.full_like(a, 3.4e38)),
    "smallest float": every(lambda a: np.full_like(a, 1e-45)),
    "zeros": every(np.zeros_like),
    "model as sent": lambda _, sent: content(sent),
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
    "exception": does(fail(ValueError("x" * 100_000))),
    "exit": does(lambda: sys.exit(3)),
    "process ends": does(lambda: os._exit(1)),
    "process is killed": does(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "5 MB of output": does(lambda: sys.stdout.write("x\n" * 2_500_000)),
    "late": does(lambda: time.sleep(20)),
    STALL: does(lambda: None),
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
    "no arrays": lambda _, __: content(ArrayRecord()),
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
    "nan loss": measured(**{"train-loss": float("nan")}),
    "10,000 metrics": measured(**{f"m{k}": 1.0 for k in range(10_000)}),
    "metric of a million": measured(many=[0.5] * 1_000_000),
    "odd metric": measured(**{"a\nb\x1b[2J": 1.0, "x" * 50_000: 1}),
}
"""By name, in the order in which they are sent."""
HARMLESS = ("late", "5 MB of output", "10**15 examples", "Fortran order")
"""A rule without counts can use these as they are."""
