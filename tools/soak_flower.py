"""A federation of Flower under attack: hostile nodes, floods, a flapping node, a server that dies.

python tools/soak_flower.py --minutes 30 -o FILE.json

A SuperLink with TLS, and eight SuperNodes with keys, all on 127.0.0.1. Two nodes are hostile: they
send every kind of bad reply in turn (hostile_app/hostile/replies.py), and stall. One node is killed
and started again, over and over. The SuperLink gets half-open connections, floods of garbage and a
node with an unknown key. The server is killed three times: with the SuperLink, alone, and so that
the SuperLink leaves it behind; each time the run is resumed. At the end the accuracy of ten rounds
is compared with that of the same rounds in memory without any of this. The audit must name every
bad reply and exclude no honest node, and the memory of the server must not grow.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent / "hostile_app"))
from flwr.app import Message
from hostile.replies import HARMLESS, KINDS
from hostile.task import accuracy, new_model, train

import outvote as ov
from bad_replies import HandMadeGrid, arrays_of, content_of, record_of, run_round
from flower_federation import Federation
from flower_processes import HOST, descendants, left_over, wait_until
from kept_result import new_call, save_result
from outvote.data import load
from outvote.flower import RobustStrategy
from outvote.results.audit_log import find_log, read_audit

APP = Path(__file__).parent / "hostile_app"
NUM_NODES, HOSTILE, FLAPPING = 8, (0, 1), 7
BETA = 5.0
SERVER_KILLS = (0.25, 0.5, 0.75)
"""When, as shares of the time."""
LAST = 10
"""Rounds at the end whose accuracies are averaged."""
MOST_LATE = 150
"""Connections of a flood."""


def main(words: list[str] | None = None) -> int:
    """Run the federation; 1 if something is not as it must be."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a round waits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(words)
    result: dict[str, Any] = new_call("tools/soak_flower.py", words)
    signal.signal(signal.SIGTERM, _interrupt)  # The processes of the federation are to end, too.
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options, result)
        try:
            with soak.federation:
                soak.run()
        finally:
            soak.compare()
            save_result(options.output, result)
        wait_until(lambda: not left_over(Path(folder)), "all processes are gone", 30)
    sys.stdout.write(json.dumps(result["checks"], indent=1) + "\n")
    return int(not all(result["checks"].values()))


def _interrupt(*_about: object) -> None:
    raise KeyboardInterrupt


class Soak:
    """A federation, what is done to it, and what came of it."""

    def __init__(self, folder: Path, options: argparse.Namespace, result: dict[str, Any]) -> None:
        self.folder, self.options, self.result = folder, options, result
        self.chance = random.Random(options.seed)
        self.audit = folder / "audit"
        self.federation = Federation(folder, is_secure=True)
        shutil.rmtree(self.federation.app)
        shutil.copytree(APP, self.federation.app, ignore=shutil.ignore_patterns("__pycache__"))
        self.data = _write_data(folder, options.seed)
        self.nodes: list[str] = []
        self.counts = Counter[str]()
        self.memory: list[dict[str, Any]] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        """Start everything, attack it for the time given, and end it."""
        federation = self.federation
        federation.start_link()
        with ThreadPoolExecutor(3) as pool:
            self.nodes = list(pool.map(federation.register, range(NUM_NODES)))
        for number in range(NUM_NODES):
            self._start_node(number)
            time.sleep(3)  # All at once would take all cores for minutes.
        self._start_run(resume=False)
        wait_until(lambda: read_audit(self.audit), "the first round is over", 600)
        self.began = time.monotonic()
        others = [threading.Thread(target=each) for each in (self._flap, self._flood)]
        for thread in others:
            thread.start()
        try:
            self._watch()
        finally:
            self.is_over.set()
            for thread in others:
                thread.join()
            self.result["addresses"] = sorted(set(federation.addresses()))
            self.result["minutes"] = round((time.monotonic() - self.began) / 60, 2)

    def _watch(self) -> None:
        """Measure memory, and kill the server now and then."""
        seconds, killed = 60 * self.options.minutes, 0
        while (now := time.monotonic() - self.began) < seconds:
            self._measure(now)
            if killed < len(SERVER_KILLS) and now > SERVER_KILLS[killed] * seconds:
                killed += 1
                self._kill_server(killed)
            elif self.federation.started[self.name].poll() is not None:
                # Flower ends a run whose server gets no processor time for its heartbeat.
                self.counts["run ended by Flower"] += 1
                self._resume()
            self.is_over.wait(10)

    def _kill_server(self, number: int) -> None:
        """End the server in one of three ways, and resume its run."""
        federation = self.federation
        if number == 1:
            federation.kill("superlink")  # And with it the server.
        elif number == 2:
            federation.kill_alone("superlink")  # The server is left behind, with its lock.
        else:
            for pid in self._pids("flwr-serverapp"):
                os.kill(pid, signal.SIGKILL)
        if number < 3:
            federation.start_link()
        self._resume()
        self.counts["server killed"] += 1

    def _resume(self) -> None:
        self.federation.kill(self.name)
        self._start_run(resume=True)

    def _start_run(self, *, resume: bool) -> None:
        self.counts["runs"] += 1
        self.name = f"run-{self.counts['runs']}"
        self.federation.start_run(
            self.name,
            resume=resume,
            timeout=self.options.timeout,
            data=str(self.folder / "data.npz"),
            **{"audit-dir": str(self.audit), "min-nodes": NUM_NODES - 2},
        )

    def _start_node(self, number: int) -> None:
        about: dict[str, Any] = {"data": str(self.folder / f"data{number}.npz")}
        if number in HOSTILE:
            first = HOSTILE.index(number) * len(KINDS) // len(HOSTILE)
            notes = str(self.folder / f"notes{number}")
            about |= {"hostile": True, "notes": notes, "first-kind": first}
            about["stall-seconds"] = self.options.timeout + 15
        self.federation.start_node(number, NUM_NODES, **about)

    def _flap(self) -> None:
        """Kill a node and start it again, over and over."""
        while not self.is_over.wait(self.chance.uniform(40, 120)):
            self.federation.kill(f"node{FLAPPING}")
            self.counts["node killed"] += 1
            self.is_over.wait(self.chance.uniform(2, 15))
            self._start_node(FLAPPING)

    def _flood(self) -> None:
        """Open connections that say nothing, or garbage, and hold some of them for a while."""
        stranger = NUM_NODES
        self._start_node_of_a_stranger(stranger)
        held: list[socket.socket] = []
        while not self.is_over.wait(self.chance.uniform(15, 40)):
            for old in held:
                old.close()
            held.clear()
            kind = self.chance.choice(("silent", "half a greeting", "garbage", "closed at once"))
            for _ in range(MOST_LATE):
                try:
                    one = socket.create_connection((HOST, self.federation.port), timeout=2)
                    if kind == "half a greeting":
                        one.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
                    elif kind == "garbage":
                        one.sendall(random.randbytes(2000))
                except OSError:
                    self.counts["connections refused"] += 1
                    continue
                self.counts[f"connections, {kind}"] += 1
                if kind == "closed at once":
                    one.close()
                else:
                    held.append(one)
        for old in held:
            old.close()

    def _start_node_of_a_stranger(self, number: int) -> None:
        """Start a node whose key nobody registered."""
        shutil.copy(self.folder / "data7.npz", self.folder / f"data{number}.npz")
        self._start_node(number)
        self.counts["strangers"] += 1

    def _measure(self, now: float) -> None:
        link = self.federation.started["superlink"].pid
        row = {"minute": round(now / 60, 2), "superlink": _megabytes(link)}
        server = self._pids("flwr-serverapp")
        row["server"] = max(map(_megabytes, server), default=None)
        row["run"] = self.counts["runs"]
        self.memory.append(row)

    def _pids(self, word: str) -> list[int]:
        link = self.federation.started["superlink"].pid
        return [pid for pid in descendants(link) if word in _command(pid)]

    def compare(self) -> None:
        """Write what came of it."""
        rounds = read_audit(self.audit)
        log = find_log(self.audit)
        lines = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
        curve = {
            line["round"]: line["metrics"]["accuracy"] for line in lines if line["kind"] == "server"
        }
        hostile = [self.nodes[number] for number in HOSTILE]
        offences = self._offences(rounds)
        excluded = Counter(
            each.client for line in rounds for each in line.clients if each.standing == "excluded"
        )
        last = max(curve)
        whole = _undisturbed(self.data, last, self.options.seed)
        # One round is noise: the accuracies of the undisturbed run vary by half a point.
        reached, undisturbed = (mean(each[-LAST:]) for each in (list(curve.values()), whole))
        self.result |= {
            "rounds": last,
            "rounds_with_update": sum(line.is_updated for line in rounds),
            "counts": dict(self.counts),
            "standings": {
                who: dict(
                    Counter(
                        each.standing
                        for line in rounds
                        for each in line.clients
                        if (each.client in hostile) == (who == "hostile")
                    )
                )
                for who in ("hostile", "honest")
            },
            "kinds_sent": len({each["kind"] for each in offences}),
            "kinds": len(KINDS),
            "replies_of_hostile_nodes": offences,
            "excluded_rounds": {
                str(number): excluded[node] for number, node in enumerate(self.nodes)
            },
            "accuracies": [curve[number] for number in sorted(curve)],
            "undisturbed_accuracies": whole,
            "accuracy": reached,
            "undisturbed_accuracy": undisturbed,
            "memory_mb": self.memory,
        }
        growth = _growth(self.memory)
        missing = [each for each in offences if each["standing"] is None]
        unnamed = [
            each for each in offences if each["standing"] == "aggregated" and not _is_named(each)
        ]
        self.result["growth_mb"] = growth
        self.result["not_in_the_audit"] = missing
        self.result["not_named"] = unnamed
        self.result["checks"] = {
            "accuracy within 1 point": abs(reached - undisturbed) <= 0.01,
            "no honest node excluded": not set(excluded) - set(hostile),
            "every bad reply in the audit": not missing,
            "server killed three times": self.counts["server killed"] == len(SERVER_KILLS),
            "rounds of all numbers": [line.round for line in rounds] == list(range(1, last + 1)),
            "the stranger stayed out": len(
                {c.client for r in rounds for c in r.clients} - set(self.nodes)
            )
            == 0,
            "only 127.0.0.1": self.result["addresses"] == [HOST],
            "memory flat": all(each < 40 for each in growth.values()),
        }

    def _offences(self, rounds: list[Any]) -> list[dict[str, Any]]:
        """Return what the audit has for every bad reply; a round that was repeated counts once."""
        found = []
        by_round = {line.round: {each.client: each for each in line.clients} for line in rounds}
        for number in HOSTILE:
            notes = self.folder / f"notes{number}"
            sent = dict(line.split(" ", 1) for line in notes.read_text().splitlines())
            for round_, kind in sent.items():
                if int(round_) not in by_round:
                    continue  # The round was cut short by the end.
                one = by_round[int(round_)].get(self.nodes[number])
                about = {"round": int(round_), "node": number, "kind": kind}
                keys = ("standing", "kept", "reason", "norm", "cosine", "distance")
                about |= {key: None if one is None else getattr(one, key) for key in keys}
                found.append(about)
        return sorted(found, key=lambda each: (each["round"], each["node"]))


def _is_named(reply: dict[str, Any]) -> bool:
    """Return whether the audit shows that an aggregated reply is odd: dropped, far or noted."""
    far = reply["distance"] is not None and reply["distance"] > 2
    return not reply["kept"] or bool(reply["reason"]) or far or reply["kind"] in HARMLESS


def _growth(memory: list[dict[str, Any]]) -> dict[str, float]:
    """Return how much memory grew between the first and the last third of each life, at most."""
    found: dict[str, float] = {}
    for name in ("superlink", "server"):
        for run in {row["run"] for row in memory}:
            sizes = [row[name] for row in memory if row["run"] == run and row[name] is not None]
            third = len(sizes) // 3
            if third >= 3:
                grown = median(sizes[-third:]) - median(sizes[third : 2 * third])
                found[name] = max(found.get(name, 0.0), round(grown, 1))
    return found


def _write_data(folder: Path, seed: int) -> list[tuple[Any, Any]]:
    """Write the images of the server and of each node; return all, the server's first."""
    data = load("fashion-mnist-small")
    parts = ov.partition_dirichlet(data.train_labels, num_clients=NUM_NODES, beta=BETA, seed=seed)

    def flat(images: Any) -> Any:
        return images.reshape(len(images), -1).astype(np.float32) / 255

    test = flat(data.test_images), data.test_labels
    np.savez(folder / "data.npz", test_images=test[0], test_labels=test[1])
    owned = [(flat(data.train_images[part]), data.train_labels[part]) for part in parts]
    for number, (images, labels) in enumerate(owned):
        np.savez(folder / f"data{number}.npz", images=images, labels=labels)
    return [test, *owned]


def _undisturbed(data: list[tuple[Any, Any]], rounds: int, seed: int) -> list[float]:
    """Return the accuracy after each of so many rounds in memory, of honest nodes alone."""
    test, *owned = data
    strategy = RobustStrategy("gas(median)", num_byzantine=2, audit_dir=None, seed=seed)
    model = record_of(new_model(test[0].shape[1]))
    found = []
    for number in range(1, rounds + 1):

        def respond(message: Message, round_: int = number) -> Message:
            node = message.metadata.dst_node_id - 100
            sent = arrays_of(message.content["arrays"])
            trained, _ = train(sent, *owned[node], seed=1000 * round_ + node)
            return Message(content_of(trained), reply_to=message)

        grid = HandMadeGrid(range(100, 100 + NUM_NODES), respond)
        arrays, _ = run_round(strategy, grid, model, number)
        model = model if arrays is None else arrays
        found.append(accuracy(arrays_of(model), *test))
    return found


def _megabytes(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
