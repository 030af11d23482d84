"""The first signal is answered at once, the second ends the program; a dead run is not running."""

import hashlib
import json
import signal
import subprocess
import sys
import time

import pytest

from benches import own_rule, own_suite, start, wait_for_rounds
from command_line import run

# From the fourth call on, longer than an answer may take.
WORK = "n = len(list(Path(__file__).parent.glob('called-*'))); "
WORK += (
    "Path(__file__).with_name(f'called-{{n}}').touch(); time.sleep(0.05 if n < 3 else {seconds})"
)
LONG = 90


def lines_until(process, word, seconds=60):
    """Read stderr up to a line with a word; return how long it took."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if word in process.stderr.readline():
            return time.monotonic() - begin
    raise AssertionError(f"no {word!r} on stderr")


def long_round(folder, output, seconds=LONG):
    """Start a run whose fourth round takes so long, and wait for it."""
    suite = own_suite(folder, [own_rule(folder, WORK.format(seconds=seconds))], rounds=6)
    text = suite.read_text().replace("seed = [0, 1]", "seed = 0")
    suite.write_text(text.replace('["lie", "mimic(client=none)"]', '"lie"'))
    process = start(suite, output)
    while not (folder / "called-3").exists() and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_the_first_signal_is_answered_at_once_and_the_second_ends(tmp_path, number):
    process = long_round(tmp_path, tmp_path / "runs")
    process.send_signal(number)
    assert lines_until(process, "finishing round 4 of 6, then saving; again to abort") < LONG / 3
    process.send_signal(number)
    begin = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "run the same command again to resume" in err
    assert time.monotonic() - begin < LONG / 3


def test_a_run_whose_process_was_killed_is_listed_as_interrupted(capsys, tmp_path):
    output = tmp_path / "runs"
    process = long_round(tmp_path, output)
    wait_for_rounds(process, output, 3)
    (entry,) = run(capsys, "list", "runs", "--store", output, "--json").json
    assert entry["outcome"] == "running"
    process.kill()
    process.communicate(timeout=60)
    (status,) = (json.loads(p.read_text()) for p in output.glob("*/*/status.json"))
    assert status["outcome"] == "running"
    (entry,) = run(capsys, "list", "runs", "--store", output, "--json").json
    assert entry["outcome"] == "interrupted"
    assert "interrupted" in run(capsys, "list", "runs", "--store", output).out


# Two signals of a kind that arrive in one long call into C, where Python cannot handle them.
BOTH_IN_ONE_CALL = """
import hashlib, os, signal, sys, threading, time
from outvote.experiment.stop_signal import Aborted, StopSignal
def send():
    for _ in range(2):
        time.sleep(0.15)
        os.kill(os.getpid(), signal.SIGINT)
    is_sent.append(time.monotonic())
is_sent = []
with StopSignal(lambda: "again to abort"):
    try:
        threading.Thread(target=send).start()
        while not is_sent or time.monotonic() < is_sent[0] + 1:
            hashlib.pbkdf2_hmac("sha256", b"", b"", int(sys.argv[1]))
        time.sleep(20)
    except Aborted as error:
        sys.exit(error.exit_code)
"""


def test_two_signals_within_one_long_call_abort():
    begin = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)
    per_second = 100_000 / (time.perf_counter() - begin)
    command = [sys.executable, "-c", BOTH_IN_ONE_CALL, str(int(1.5 * per_second))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 130, done.stderr
    assert "again to abort" in done.stderr
