"""Models too large for a matrix of updates: replies are aggregated some coordinates at a time."""

import subprocess
import sys

import numpy as np
import pytest

from bad_replies import arrays_of, record_of
from flower_small import grid_of, strategy_of
from outvote.files import streaming
from outvote.flower import reply_checks
from outvote.results.audit_log import read_audit

LARGE = {
    "w": np.zeros((40, 50), np.float32),
    "b": np.zeros(300, np.float16),
    "n": np.zeros((), np.int64),
    "e": np.zeros(0, np.float32),
}


def send(node, model):
    rng = np.random.default_rng(node)
    sent = {name: array + rng.normal(size=array.shape) for name, array in model.items()}
    sent["w"][:, 3] += 5 * (node == 109)
    if node == 104:
        sent["w"][7, 7] = np.nan
    return {name: np.asarray(sent[name]).astype(array.dtype) for name, array in model.items()}


def run(rule, folder):
    strategy = strategy_of(rule, audit_dir=folder, seed=3)
    result = strategy.start(grid_of(send), record_of(LARGE), num_rounds=2)
    return arrays_of(result.arrays), read_audit(folder)


@pytest.mark.parametrize(
    "rule",
    ["gas(multi-krum, num_groups=50)", "gas(median, split=by-layer)", "bulyan", "trimmed-mean"],
)
def test_large_models_have_the_rounds_that_small_ones_have(rule, tmp_path, monkeypatch):
    wanted, rounds = run(rule, tmp_path / "matrix")
    monkeypatch.setattr(reply_checks, "NUM_COPIES", 1e9)
    monkeypatch.setattr(reply_checks, "_subtract", None)
    monkeypatch.setattr(streaming, "LARGEST_CHUNK", 700)
    monkeypatch.setattr(streaming, "SMALLEST_CHUNK", 700)
    found, streamed = run(rule, tmp_path / "streamed")
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
    assert len(rounds) == len(streamed) == 2
    for one, other in zip(rounds, streamed, strict=True):
        assert [(each.client, each.kept, each.reason) for each in one.clients] == [
            (each.client, each.kept, each.reason) for each in other.clients
        ]
        for key in ("score", "norm", "cosine", "distance"):
            numbers = [[getattr(each, key) for each in log.clients] for log in (one, other)]
            are_known = [[number is not None for number in own] for own in numbers]
            assert are_known[0] == are_known[1]
            known = [[number for number in own if number is not None] for own in numbers]
            np.testing.assert_allclose(known[1], known[0], rtol=1e-4, atol=1e-6)


def test_a_rule_with_a_state_gets_the_matrix(monkeypatch):
    monkeypatch.setattr(reply_checks, "NUM_COPIES", 1e9)
    strategy = strategy_of("centered-clipping")
    assert strategy.settings.max_bytes is None
    strategy.start(grid_of(send), record_of(LARGE), num_rounds=1)
    assert strategy.state.rule_state is not None


def test_memory_is_checked_at_once():
    with pytest.raises(ValueError, match="max_memory must be"):
        strategy_of(max_memory="much")


MEASURE = """
import sys, threading, time
from pathlib import Path
import numpy as np, torch
from bad_replies import content_of, record_of
from flower_small import grid_of, strategy_of

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

torch.set_num_threads(1)
dim, nodes = 3_000_000, range(100, 112)
contents = {
    node: content_of({"w": np.random.default_rng(node).random(dim, np.float32)}) for node in nodes
}
strategy = strategy_of("gas(median)", num_byzantine=2, max_memory=sys.argv[1])
grid = grid_of(lambda node, model: contents[node], nodes)
messages = strategy.configure_train(1, record_of({"w": np.zeros(dim, np.float32)}), {}, grid)
replies = grid.send_and_receive(messages)
before, largest = anonymous(), [0]

def watch():
    while True:
        largest[0] = max(largest[0], anonymous())
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
model, _ = strategy.aggregate_train(1, replies)
assert model is not None
print(largest[0] - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_models_take_little_memory_beside_the_replies():
    taken = {}
    for allowed in ("2GB", "400MB"):
        command = [sys.executable, "-c", MEASURE, allowed]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        taken[allowed] = int(done.stdout.split()[-1])
    # A matrix of the updates alone has 144 MB; the model, the update and the step 12 MB each.
    assert taken["2GB"] > 144_000_000
    assert taken["400MB"] < 100_000_000
