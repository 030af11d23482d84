"""Gradients that are read some coordinates at a time: the verdict is the one in memory."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import outvote as ov
from every_rule import EVERY_RULE, cases
from outvote.files import StreamingAggregator, streaming
from outvote.files.safetensors_file import UnusableFile
from outvote.files.sources import ArraySource, open_source
from outvote.files.streaming import parse_memory
from update_files import write_tensors

NUM_CLIENTS, DIM = 11, 2501
IN_MEMORY_ONLY = {"fltrust", "foolsgold"}
# Scores of these are differences or powers of what is rounded in float32 in memory.
ROUGH = ("dnc", "power=", "nnm(", "clip(")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks, and a narrow last tile, of few coordinates."""
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 600)
    monkeypatch.setattr(streaming, "SMALLEST_CHUNK", 600)


def gradients(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(NUM_CLIENTS, DIM)).astype(dtype)
    rows[-2:] += 1
    return rows


def streamed(rule, sources, **options):
    aggregator = StreamingAggregator(rule, sources, **options)
    verdict = aggregator.verdict()
    pieces = list(aggregator.update())
    assert [piece.start for piece, _ in pieces[1:]] == [piece.stop for piece, _ in pieces[:-1]]
    return verdict, torch.cat([update.clone() for _, update in pieces]).numpy(), aggregator


def assert_same(rule, rows, *, rtol=1e-6, **options):
    verdict, update, aggregator = streamed(rule, list(rows), **options)
    # What is sent in half precision is worked on in float32.
    same = rule.inspect(rows if rows.dtype != np.float16 else rows.astype(np.float32), **options)
    assert (verdict.kept, verdict.rejected) == (same.kept, same.rejected)
    facts = ("num_byzantine", "base_num_byzantine", "num_groups", "notes", "seed")
    assert [getattr(verdict, f) for f in facts] == [getattr(same, f) for f in facts]
    if same.weights is not None:
        np.testing.assert_allclose(verdict.weights, same.weights, rtol=1e-5, atol=1e-12)
    scale = np.abs(same.scores[np.isfinite(same.scores)]).max()
    np.testing.assert_allclose(verdict.scores, same.scores, rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(update, same.update, rtol=1e-4, atol=1e-5 * np.abs(update).max())
    return aggregator


@pytest.mark.parametrize("text", cases(text for text in EVERY_RULE if text not in IN_MEMORY_ONLY))
def test_every_rule_has_the_verdict_that_it_has_in_memory(text):
    rule = ov.make_rule(text)
    rows = gradients()
    rows[3, 1700] = np.nan
    f = min(3, rule.max_byzantine(NUM_CLIENTS))
    rtol = 1e-5 if any(word in text for word in ROUGH) else 1e-6
    # In memory it is the eigenvector of float32 products that differs from the one in float64.
    rtol = 1e-4 if text == "norm-filter(dnc, factor=1)" else rtol
    aggregator = assert_same(rule, rows, num_byzantine=f, seed=5, rtol=rtol)
    assert aggregator.reasons == {3: "NaN, infinity or too large numbers at coordinate 1700"}
    assert np.isnan(aggregator.norms).nonzero()[0].tolist() == [3]


HARD = {
    "usual": lambda rows: None,
    "copies": lambda rows: rows.__setitem__(slice(2, 5), rows[2]),
    "nearly copies": lambda rows: rows.__setitem__(slice(2, 5), rows[2] + 1e-4 * rows[5:8]),
    "the other way": lambda rows: rows.__setitem__(3, -rows[2]),
    "one is huge": lambda rows: rows.__setitem__(0, np.copysign(np.float32(3e38), rows[0])),
    "many are huge": lambda rows: rows.__setitem__(slice(0, 8), rows[:8] * 1e25),
    "one is tiny": lambda rows: rows.__setitem__(1, rows[1] * 1e-30),
    "all are tiny": lambda rows: rows.__imul__(np.float32(1e-25)),
    "infinity": lambda rows: rows.__setitem__((slice(7, 9), 2000), -np.inf),
    "the first are long at the end": lambda rows: rows.__setitem__(
        (slice(0, 2), slice(2400, None)), [[1e3], [2e3]]
    ),
}
HARD_RULES = [
    "gas(multi-krum)",
    "gas(median, num_groups=7)",
    "gas(nnm(median), num_groups=9)",
    "nnm(gas(multi-krum, num_groups=20))",
    "rfa",
    "krum",
    "clip(median)",
    "norm-filter(rfa)",
    "bucketing(trimmed-mean)",
    "nnm(bulyan)",
]
COUNTS = [5, 1, 1, 2, 3, 1, 1, 0, 4, 2, 900]


@pytest.mark.parametrize("case", HARD)
@pytest.mark.parametrize("text", HARD_RULES)
def test_hard_numbers_have_the_verdict_that_they_have_in_memory(case, text):
    rows, rule = gradients(), ov.make_rule(text)
    HARD[case](rows)
    f = min(3, rule.max_byzantine(NUM_CLIENTS))
    assert_same(rule, rows, num_byzantine=f, seed=1)
    assert_same(rule, rows, num_byzantine=f, seed=1, sample_counts=COUNTS)
    assert_same(rule, rows.astype(np.float64) * 1e30, num_byzantine=f, seed=1)
    if np.abs(rows).max() < 6e4:
        assert_same(rule, rows.astype(np.float16), num_byzantine=f, seed=1)


@pytest.mark.parametrize("inside", ["multi-krum", "median", "bulyan"])
@pytest.mark.parametrize(
    "options", ["", "split=ceil, ", "split=contiguous, ", "num_groups=2501", "num_groups=1"]
)
def test_every_split_is_the_one_in_memory(inside, options):
    rule = ov.make_rule(f"gas({inside}, {options.rstrip(', ')})".replace(", )", ")"))
    assert_same(rule, gradients(), num_byzantine=2, seed=3)


@pytest.mark.parametrize("inside", ["multi-krum", "median"])
@pytest.mark.parametrize("how", ["balanced", "contiguous"])
def test_scores_of_wide_groups_are_those_of_float64(inside, how, monkeypatch):
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 1 << 20)
    rows = np.random.default_rng(0).normal(size=(9, 400_000)).astype(np.float32)
    rule = ov.make_rule(f"gas({inside}, num_groups=3, split={how})")
    found = StreamingAggregator(rule, list(rows), num_byzantine=2, seed=5).verdict().scores
    same = rule.inspect(rows.astype(np.float64), num_byzantine=2, seed=5).scores
    np.testing.assert_allclose(found, same, rtol=1e-6)


def test_groups_of_the_caller_and_layers_are_the_ones_in_memory():
    rows = gradients()
    order = np.random.default_rng(1).permutation(DIM)
    groups = [order[:5], order[5:1000], order[1000:]]
    rule = ov.GAS(ov.MultiKrum())
    assert_same(rule, rows, num_byzantine=2, groups=groups, seed=0)
    named = [{"a": row[:900], "b": row[900:900], "c": row[900:]} for row in rows]
    for split, num_groups in (("by-layer", 2), ("by-layer-random", 40), ("by-layer-random", 1)):
        rule = ov.GAS(ov.Median(), split=split, num_groups=num_groups)
        verdict, _, _ = streamed(rule, named, num_byzantine=2, seed=4)
        same = rule.inspect(named, num_byzantine=2, seed=4)
        assert (verdict.kept, verdict.num_groups) == (same.kept, max(2, num_groups))
        assert verdict.notes == same.notes
        np.testing.assert_allclose(verdict.scores, same.scores, rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_signs_are_counted_in_the_window_alone(seed):
    rows = gradients()
    rows[4, DIM // 2 :] = np.abs(rows[4, DIM // 2 :])
    assert_same(ov.SignGuard(), rows, num_byzantine=0, seed=seed)


@pytest.mark.parametrize("num_clients", [1, 2])
@pytest.mark.parametrize("text", ["gas(multi-krum)", "gas(median)", "krum", "nnm(median)"])
def test_few_clients_have_the_verdict_that_they_have_in_memory(num_clients, text):
    assert_same(ov.make_rule(text), gradients()[:num_clients], num_byzantine=0, seed=0)


def test_float64_is_worked_on_in_float64():
    rows = gradients(np.float64)
    rows[4] = rows[5] + 1e-9
    found = assert_same(ov.MultiKrum(), rows, num_byzantine=2, seed=0, rtol=1e-12)
    assert [piece.dtype for _, piece in found.update()] == [torch.float64] * found.num_chunks


@pytest.mark.parametrize("apart", [1.0, 1e-6, 0.0])
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e20])
def test_distances_in_groups_are_the_same_however_they_are_added_up(apart, scale):
    """In memory the differences of few clients are squared, in a stream products are added up."""
    rows = np.random.default_rng(0).normal(size=(5, 5000))
    rows[1] = rows[0] + apart * rows[1]
    rows[:, :200] = 0
    rule = ov.make_rule("gas(multi-krum, num_groups=50)")
    assert_same(rule, (rows * scale).astype(np.float32), num_byzantine=1, seed=0, rtol=1e-5)


def test_little_memory_means_more_passes_and_the_same_verdict(monkeypatch):
    rows = gradients()
    wanted = StreamingAggregator("gas(bulyan, num_groups=20)", list(rows), num_byzantine=2, seed=0)
    passes = []
    few = StreamingAggregator("gas(bulyan, num_groups=20)", list(rows), num_byzantine=2, seed=0)
    monkeypatch.setattr(few, "max_memory", streaming.PROGRAM_BYTES + 200_000)
    chunks = few._chunks
    monkeypatch.setattr(few, "_chunks", lambda *given: passes.append(1) or chunks(*given))
    np.testing.assert_allclose(few.verdict().scores, wanted.verdict().scores, rtol=1e-6)
    assert len(passes) > 4


def test_every_kind_of_source_is_the_same_vector(tmp_path):
    row = gradients()[0]
    tensors = {"a": torch.tensor(row[:1000]).view(10, 100), "b": torch.tensor(row[1000:])}
    np.save(tmp_path / "row.npy", row)
    torch.save(tensors, tmp_path / "row.pt")
    write_tensors(tmp_path / "row.safetensors", tensors | {"n": torch.tensor(3)})
    np.lib.format.open_memmap(tmp_path / "map.npy", "w+", np.float32, row.shape)[:] = row
    kinds = [
        row,
        torch.tensor(row),
        tensors,
        {"a": row[:7], "b": row[7:]},
        *(tmp_path / name for name in ("row.npy", "row.pt", "row.safetensors")),
        np.load(tmp_path / "map.npy", mmap_mode="r"),
        lambda: (row[k : k + 333] for k in range(0, DIM, 333)),
    ]
    for kind in kinds:
        source = open_source(kind)
        assert source.size == DIM
        for start, stop in [(0, 10), (990, 1010), (1500, DIM), (3, 5), (0, DIM)]:
            out = torch.empty(stop - start)
            source.read(start, out)
            assert torch.equal(out, torch.tensor(row[start:stop]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_narrow_floats_are_read_as_float32(tmp_path, dtype):
    values = torch.tensor(gradients()[0]).to(dtype)
    write_tensors(tmp_path / "a.safetensors", {"w": values})
    out = torch.empty(DIM)
    open_source(tmp_path / "a.safetensors").read(0, out)
    assert torch.equal(out, values.float())


def test_sources_that_cannot_be_read_are_rejected_with_a_reason(tmp_path):
    rows = gradients()
    for name in ("a.npy", "a.pt", "a.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
    write_tensors(tmp_path / "cut.safetensors", {"w": torch.ones(DIM)})
    cut = StreamingAggregator("median", [*rows, tmp_path / "cut.safetensors"])
    (tmp_path / "cut.safetensors").write_bytes(b"12345678")
    assert cut.verdict().rejected == [11]
    assert cut.reasons[11] == "changed while it was read"
    calls = []

    def fewer():
        calls.append(1)
        return [rows[0]] if len(calls) == 1 else [rows[0][:1000]]

    bad = [tmp_path / name for name in ("a.npy", "a.pt", "a.safetensors")]
    bad += [rows[0][:7], fewer, UnusableFile("is late"), np.arange(DIM)]
    verdict, update, found = streamed("trimmed-mean", [*rows, *bad], num_byzantine=7)
    assert verdict.rejected == list(range(11, 18))
    words = ["numpy", "torch", "not a safetensors file", "7 coordinates", "fewer", "late", "floats"]
    for k, word in enumerate(words, 11):
        assert word in found.reasons[k]
    np.testing.assert_allclose(update, rows.mean(axis=0), atol=1e-6)


HOSTILE_STATES = {
    "sparse": ({"w": torch.ones(DIM).to_sparse()}, "'w' holds a sparse tensor"),
    "meta": ({"w": torch.empty(DIM, device="meta")}, "'w' holds no numbers"),
    "ragged": ({"w": torch.ones(DIM), "x": [[1], [1, 2]]}, "no tensor"),
    "4 TB": ({"w": torch.ones(10**6, 1).expand(10**6, 10**6)}, "'w' repeats numbers"),
}


@pytest.mark.parametrize("case", HOSTILE_STATES)
def test_a_hostile_state_dict_is_rejected_with_a_reason(tmp_path, case):
    state, reason = HOSTILE_STATES[case]
    torch.save(state, tmp_path / "a.pt")
    streaming = StreamingAggregator("median", [*gradients(), tmp_path / "a.pt"])
    assert streaming.verdict().rejected == [NUM_CLIENTS]
    assert reason in streaming.reasons[NUM_CLIENTS]


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<f4",
        "-" * 9000 + "1",
    ],
)
def test_a_hostile_array_of_numpy_is_rejected_with_a_reason(tmp_path, header):
    text = header.encode() + b"\n"
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    (tmp_path / "a.npy").write_bytes(start + text + bytes(4 * DIM))
    with pytest.raises(UnusableFile, match="not an array of numpy"):
        open_source(tmp_path / "a.npy")


def test_empty_chunks_and_the_order_of_bytes_do_not_matter(tmp_path):
    row = gradients()[0]
    np.save(tmp_path / "row.npy", row.astype(">f4"))
    for kind in (lambda: [row[:0], row[:9], row[:0], row[9:]], tmp_path / "row.npy"):
        out = torch.empty(DIM)
        open_source(kind).read(0, out)
        assert torch.equal(out, torch.tensor(row))


def test_an_iterator_is_a_mistake_of_the_caller_and_no_byzantine_client():
    with pytest.raises(TypeError, match="give the function that makes it"):
        StreamingAggregator("median", [iter([gradients()[0]])])


def test_many_copies_are_found_in_little_time():
    rows = np.random.default_rng(0).normal(size=(300, 1100)).astype(np.float32)
    rows[:150] = rows[7]
    streaming = StreamingAggregator("mean", list(rows), seed=0)
    start = time.process_time()
    streaming.verdict()
    assert time.process_time() - start < 2  # 0.2, and 5.7 where pairs are looked up in a list.
    assert streaming.copies == dict.fromkeys(range(1, 150), 0)


def test_no_read_is_longer_than_a_chunk(monkeypatch):
    """The sample of the first coordinates is bounded by the memory, too."""
    read, lengths = ArraySource.read, []

    def counts(source, start, out):
        lengths.append(len(out))
        read(source, start, out)

    monkeypatch.setattr(ArraySource, "read", counts)
    StreamingAggregator("median", list(gradients())).verdict()
    assert max(lengths) <= 600


class Rows(ov.VectorRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, rows, num_byzantine):
        return rows[0] / rows.norm()


class Peeks(ov.AffineRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def weigh(self, matrix, info):
        longest = matrix.columns.abs().amax(dim=-2)
        return ov.Aggregation(weights=longest / longest.sum(dim=-1, keepdim=True))


class Nearest(ov.AffineRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def weigh(self, matrix, info):
        near = 1 / matrix.squared_distances.double().sum(dim=-1)
        return ov.Aggregation(weights=near / near.sum(dim=-1, keepdim=True))


class AtTwo(ov.AffineRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def weigh(self, matrix, info):
        first, second = matrix.at_coordinates(torch.tensor([[2000, 5]])).columns.unbind(dim=-2)
        return ov.Aggregation(weights=(first.double() - 2 * second).softmax(dim=-1))


class Middle(ov.CoordinatewiseRule):
    def max_byzantine(self, num_clients):
        return num_clients

    def reduce(self, columns, num_byzantine):
        return (columns.amin(dim=-1) + columns.amax(dim=-1)) / 2


@pytest.mark.parametrize("rule", [Rows(), Peeks(), ov.NNM(Rows())])
def test_a_rule_of_the_user_that_needs_whole_rows_is_refused_in_one_line(rule, monkeypatch):
    aggregator = StreamingAggregator(rule, list(gradients()), num_byzantine=2)
    monkeypatch.setattr(aggregator, "max_memory", streaming.PROGRAM_BYTES)
    with pytest.raises(ValueError, match=r"cannot be streamed.*whole gradients") as raised:
        aggregator.verdict()
    assert "\n" not in str(raised.value)


def test_gradients_of_64_bits_take_twice_the_memory():
    rows = np.zeros((5, 10**6), np.float32)

    def small(rows):
        return StreamingAggregator(Rows(), list(rows), num_byzantine=0, max_memory="400MB")

    refused = small(rows.astype(np.float64))
    with pytest.raises(ValueError, match=r"that takes 0\.5 GB"):
        refused.verdict()
    assert small(rows + 1).verdict().rejected == []


def test_fltrust_and_foolsgold_are_refused_in_one_line(monkeypatch):
    with pytest.raises(ValueError, match=r"fltrust cannot be streamed.*reference="):
        StreamingAggregator("fltrust", list(gradients())).verdict()
    few = StreamingAggregator("foolsgold", list(gradients()))
    monkeypatch.setattr(few, "max_memory", streaming.PROGRAM_BYTES)
    with pytest.raises(ValueError, match="foolsgold cannot be streamed") as raised:
        few.verdict()
    assert "gas(" not in str(raised.value)  # It cannot be wrapped.


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize(
    "inside", ["gas(multi-krum, num_groups=9)", "median", "krum", "gas(median)"]
)
def test_a_norm_filter_is_streamed(inside, factor, monkeypatch):
    monkeypatch.setattr(StreamingAggregator, "_in_memory", None)
    rows = gradients()
    rows[0] *= 50
    rows[5] = rows[6]
    counts = [1, 2, 1, 1, 3, 1, 1, 1, 1, 2, 1]
    rule = ov.make_rule(f"norm-filter({inside}, factor={factor})")
    found = assert_same(rule, rows, num_byzantine=3, seed=0, sample_counts=counts)
    assert found.copies == {6: 5}


@pytest.mark.parametrize(
    "rule", [Nearest(), AtTwo(), Middle(), ov.GAS(Nearest()), ov.GAS(Middle())]
)
def test_a_rule_of_the_user_that_keeps_to_its_kind_is_streamed(rule, monkeypatch):
    monkeypatch.setattr(StreamingAggregator, "_in_memory", None)
    assert_same(rule, gradients(), num_byzantine=2, seed=0)


class Breaks(Middle):
    def reduce(self, columns, num_byzantine):
        return columns.amax(dim=-1) / 0


@pytest.mark.parametrize("rule", [Breaks(), ov.GAS(Breaks()), ov.NNM(Breaks())])
def test_a_rule_of_the_user_that_gives_infinity_is_named(rule):
    with pytest.raises(ValueError, match="gave NaN or infinity for finite gradients"):
        StreamingAggregator(rule, list(gradients()), num_byzantine=2).verdict()


def test_inside_gas_a_rule_of_the_user_has_the_whole_groups():
    assert_same(ov.GAS(Rows(), num_groups=9), gradients(), num_byzantine=2, seed=0)


def test_norms_and_cosines_are_those_of_the_clients():
    rows = gradients().astype(np.float64)
    _, update, found = streamed("mean", list(rows))
    np.testing.assert_allclose(found.norms, np.linalg.norm(rows, axis=1), rtol=1e-6)
    wanted = rows @ update / np.linalg.norm(update) / np.linalg.norm(rows, axis=1)
    np.testing.assert_allclose(found.cosines, wanted, rtol=1e-6)


def test_memory_is_a_number_with_a_unit():
    assert parse_memory("2GB") == parse_memory(" 2000 mb ") == parse_memory(2 * 10**9)
    assert parse_memory("1.5GiB") == 3 * 2**29
    assert parse_memory("9" * 400 + "GB") >= 2**60
    for text in ("much", "2 XB", "-1GB", "1KB"):
        with pytest.raises(ValueError, match="max_memory"):
            parse_memory(text)


MEASURE = """
import sys, threading, time
from pathlib import Path
import torch
from outvote.files import StreamingAggregator

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

torch.set_num_threads(1)
largest = [0]
def watch():
    while True:
        largest[0] = max(largest[0], anonymous())
        time.sleep(0.002)
paths = sorted(Path(sys.argv[1]).glob("*.safetensors"))
aggregator = StreamingAggregator(sys.argv[2], paths, num_byzantine=2, max_memory="400MB")
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
aggregator.verdict()
for _ in aggregator.update():
    pass
print(largest[0] - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "text",
    [
        "gas(multi-krum)",
        *(pytest.param(text, marks=pytest.mark.slow) for text in ("gas(median)", "gas(bulyan)")),
    ],
)
def test_memory_stays_below_what_was_allowed(tmp_path, text):
    generator = torch.Generator().manual_seed(0)
    for k in range(16):
        values = torch.randn(1_500_000, generator=generator).bfloat16()
        write_tensors(tmp_path / f"{k:02}.safetensors", {"w": values})
    command = [sys.executable, "-c", MEASURE, str(tmp_path), text]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    # In float32 the gradients alone have 96 MB; they and their copies in memory more than 200.
    assert int(found.stdout) < 100_000_000
