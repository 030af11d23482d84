"""What is accepted of a reply."""

import io

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given
from hypothesis import strategies as st

from bad_replies import (
    content_of,
    npy,
    record_of,
    swapped,
)
from outvote.flower.model_record import SentModel
from outvote.flower.reply_checks import read_reply
from outvote.server.replies import Malformed

MODEL = {"w": np.zeros((3, 4), np.float32), "b": np.zeros(2, np.float32)}
SENT = SentModel.read(record_of(MODEL))


def read(content, use_counts=False):
    return read_reply(SENT, content, "num-examples", use_counts=use_counts)


def labelled(data, dtype="float32", shape=(3, 4), stype="numpy.ndarray"):
    return swapped(MODEL, "w", Array(dtype, shape, stype, data))


RIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def with_header(text):
    """A file whose header is this text, as other writers than numpy pad it."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + RIGHT.tobytes()


PLAIN = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
ACCEPTED = {
    "as numpy writes it": npy(RIGHT),
    "in the other order": npy(np.asfortranarray(RIGHT)),
    "without padding": with_header(PLAIN),
    "padded by others": with_header(PLAIN + b" " * 37 + b"\n"),
    "version 2": b"\x93NUMPY\x02\x00" + len(PLAIN).to_bytes(4, "little") + PLAIN + RIGHT.tobytes(),
}
REFUSED = {
    "nothing": (b"", "not in numpy's format"),
    "short": (b"\x93NUMPY\x01\x00", "not in numpy's format"),
    "noise": (bytes(range(256)), "not in numpy's format"),
    "zip": (b"PK\x03\x04" + bytes(100), "not in numpy's format"),
    "unknown version": (b"\x93NUMPY\x09\x00" + bytes(100), "not in numpy's format"),
    "a byte less": (npy(RIGHT)[:-1], "holds 47 bytes, its shape needs 48"),
    "a byte more": (npy(RIGHT) + b"x", "holds 49 bytes, its shape needs 48"),
    "header alone": (npy(RIGHT)[:-48], "holds 0 bytes"),
    "smaller inside": (npy(RIGHT[:2]), "does not hold what its label claims"),
    "wider inside": (npy(RIGHT.astype(np.float64)), "does not hold what its label claims"),
    "big-endian inside": (npy(RIGHT.astype(">f4")), "does not hold what its label claims"),
    "code for a header": (
        with_header(b"__import__('os').abort()"),
        "does not hold what its label claims",
    ),
    "endless header": (
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(64),
        "does not hold what its label claims",
    ),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_files_that_hold_the_right_values_are_read_however_they_are_padded(data):
    np.testing.assert_array_equal(read(labelled(data)).weights[0], RIGHT.ravel())


@given(data=st.data())
def test_whatever_bytes_come_they_are_read_or_refused(data):
    whole = bytearray(data.draw(st.sampled_from(list(ACCEPTED.values()))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(whole) - 1))
        whole[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not whole:
            break
    try:
        values = read(labelled(bytes(whole))).weights[0]
    except Malformed:
        return
    assert values.shape == (12,)
    assert values.dtype == np.float32


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_files_that_hold_anything_else_are_refused_with_a_reason(data, reason):
    with pytest.raises(Malformed, match=reason):
        read(labelled(data))


@pytest.mark.parametrize("count", [0, -1, float("nan"), float("inf"), [3, 4]])
def test_a_count_that_shall_matter_must_be_a_positive_number(count):
    content = content_of(MODEL, **{"num-examples": count})
    assert "num-examples" in read(content).note
    with pytest.raises(Malformed, match="num-examples must be a number from 1 on"):
        read(content, use_counts=True)


def test_a_server_with_a_broken_model_is_an_error_that_blames_no_client():
    with pytest.raises(ValueError, match="'w' of the model holds NaN"):
        SentModel.read(record_of({"w": np.full(3, np.nan, np.float32)}))
    with pytest.raises(ValueError, match="must hold numbers, got <U1"):
        SentModel.read(record_of({"w": np.array(["a"])}))
    with pytest.raises(ValueError, match="at least one array of floating-point numbers"):
        SentModel.read(record_of({"counts": np.zeros(3, np.int64)}))
    with pytest.raises(ValueError, match="at least one array of floating-point numbers"):
        SentModel.read(record_of({"nothing": np.zeros((0, 3), np.float32)}))


def test_nothing_is_unpickled():
    file = io.BytesIO()
    np.save(file, np.array([open], dtype=object), allow_pickle=True)
    with pytest.raises(Malformed):
        read(labelled(file.getvalue(), dtype="object", shape=(1,)))
    with pytest.raises(Malformed):
        read(labelled(file.getvalue()))
