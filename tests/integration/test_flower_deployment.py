"""A real federation on this machine: SuperLink, SuperNodes and the example's app."""

import hashlib
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flwr.app import Array

from flower_federation import Federation
from flower_processes import HOST, left_over, wait_until
from outvote.flower.server_state import CONFIG
from outvote.results import checkpoint
from outvote.results.audit_log import find_log, read_audit

ROUGH_CLIENT = Path(__file__).parents[1] / "flower_rough_client.py"
ALIKE = {"beta": 5.0}  # the nodes' data differ little: a Byzantine node cannot pass as unusual


@pytest.fixture
def federation(tmp_path, request):
    if shutil.which("ss") is None:
        pytest.skip("needs ss, of iproute2, to see who listens where")
    with Federation(tmp_path, is_secure=request.param) as started:
        shutil.copy(ROUGH_CLIENT, started.app / "fashion" / "rough_client.py")
        settings = started.app / "pyproject.toml"
        text = settings.read_text().replace("fashion.client_app:app", "fashion.rough_client:app")
        settings.write_text(text)
        yield started
    wait_until(lambda: not left_over(tmp_path), "all processes are gone", 30)


def start_node(federation, number, num_nodes, **config):
    notes = federation.folder / f"notes{number}"
    notes.mkdir()
    federation.start_node(number, num_nodes, notes=str(notes), **config)
    return notes


def by_client(entry):
    return {each.client: each for each in entry.clients}


def accuracies(log):
    return [float(found) for found in re.findall(r"'accuracy': ([0-9.]+)", log)]


@pytest.mark.slow  # test_flower_example.py has a round of the same app in one process.
@pytest.mark.parametrize("federation", [True], indirect=True)
def test_with_tls_and_keys_a_round_ends_and_a_byzantine_node_is_named(federation):
    federation.start_link()
    # Each is let in by a program of its own, which takes one core.
    with ThreadPoolExecutor(3) as pool:
        nodes = list(pool.map(federation.register, range(3)))
    for number, attack in enumerate(("none", "none", "bit-flip")):
        start_node(federation, number, 3, attack=attack)
    # The strategy waits for the nodes; the server starts meanwhile.
    federation.start_run(
        "run", **ALIKE, **{"num-rounds": 1, "min-nodes": 3, "fraction-evaluate": 0.0}
    )
    log = federation.wait_for_end("run")
    entries = read_audit(federation.folder / "audit")
    assert [each.round for each in entries] == [1], log
    assert entries[0].is_updated
    assert [by_client(entries[0])[node].kept for node in nodes] == [True, True, False]
    assert set(federation.addresses()) == {HOST}


@pytest.mark.slow
@pytest.mark.parametrize("federation", [True], indirect=True)
def test_byzantine_malformed_and_killed_nodes_are_named_and_a_stranger_stays_out(federation):
    federation.start_link()
    nodes = [federation.register(number) for number in range(5)]
    honest, other, byzantine, broken, killed = nodes
    for number in (0, 1):
        start_node(federation, number, 5)
    start_node(federation, 2, 5, attack="bit-flip")
    start_node(federation, 3, 5, **{"sends-garbage": True})
    notes = start_node(federation, 4, 5, **{"hangs-in-round": 2})
    start_node(federation, 5, 5)  # its key was never registered
    federation.wait_for_nodes(5)
    federation.start_run(
        "run", **ALIKE, **{"num-rounds": 3, "min-nodes": 4, "fraction-evaluate": 0.0}
    )
    wait_until((notes / "train2").exists, "the second round has begun")
    addresses = federation.addresses()
    federation.kill("node4")
    log = federation.wait_for_end("run")

    rounds = [by_client(entry) for entry in read_audit(federation.folder / "audit")]
    assert len(rounds) == 3, log
    assert all(entry.is_updated for entry in read_audit(federation.folder / "audit"))
    for clients in rounds:
        assert clients[broken].standing == "malformed"
        assert clients[byzantine].standing == "aggregated"
        assert [clients[node].kept for node in (honest, other, byzantine)] == [True, True, False]
    assert rounds[0][killed].kept
    assert rounds[1][killed].standing == "error"
    assert killed not in rounds[2]
    assert federation.online() == set(nodes) - {killed}
    assert set().union(*rounds) == set(nodes)
    assert "Failed to activate SuperNode" in federation.log("node5")
    assert accuracies(log)[-1] > 0.5 > accuracies(log)[0]
    assert len(addresses) >= 6
    assert set(addresses) == {HOST}


@pytest.mark.slow
@pytest.mark.parametrize("federation", [False], indirect=True)
def test_a_server_killed_between_rounds_goes_on_where_it_was_with_the_same_model(federation):
    audit = federation.folder / "audit"
    settings = {"num-rounds": 4, "rule": "median", "min-nodes": 3, "fraction-evaluate": 0.0}
    federation.start_link()
    notes = [start_node(federation, number, 3) for number in range(3)]
    federation.wait_for_nodes(3)
    federation.start_run("run", **settings)
    wait_until(lambda: len(read_audit(audit)) == 2, "two rounds are over")
    federation.kill("superlink")  # and with it the ServerApp
    saved, faults = checkpoint.load_newest(find_log(audit), CONFIG)
    assert not faults
    assert saved.round in {1, 2}

    federation.start_link()
    federation.wait_for_nodes(3)
    federation.start_run("again", resume=True, **settings)
    log = federation.wait_for_end("again")
    assert [entry.round for entry in read_audit(audit)] == [1, 2, 3, 4], log
    assert f"[ROUND {saved.round + 1}/4]" in log
    assert f"[ROUND {saved.round}/4]" not in log
    files = [each / f"train{saved.round + 1}" for each in notes]
    sent = {line for file in files for line in file.read_text().split()}
    assert sent == {digest_of(saved)}


@pytest.mark.slow
@pytest.mark.parametrize("federation", [False], indirect=True)
def test_after_a_killed_superlink_resume_waits_for_the_server_that_is_left_over(federation):
    audit = federation.folder / "audit"
    settings = {"num-rounds": 3, "rule": "median", "min-nodes": 2, "fraction-evaluate": 0.0}
    settings |= {"num-byzantine": 0, **ALIKE}
    federation.start_link()
    for number in range(2):
        start_node(federation, number, 2)
    federation.start_run("run", **settings)
    wait_until(lambda: len(read_audit(audit)) == 1, "a round is over")
    orphans = federation.kill_alone("superlink")
    assert orphans
    federation.start_link()  # At once: the old server app may still hold the folder.
    federation.start_run("again", resume=True, **settings)
    log = federation.wait_for_end("again")
    assert [entry.round for entry in read_audit(audit)] == [1, 2, 3], log
    assert all(entry.is_updated for entry in read_audit(audit))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), "all ended")


def digest_of(saved):
    """Return what the nodes would note of the model in a checkpoint."""
    whole = hashlib.sha256()
    for name in sorted(saved.arrays):
        if name.startswith("model/"):
            content = Array(saved.arrays[name]).data
            whole.update(name.removeprefix("model/").encode() + content)
    return whole.hexdigest()
