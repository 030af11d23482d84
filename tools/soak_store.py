"""A store under random kills, full disks and read-only folders: nothing may be lost or changed.

python tools/soak_store.py --kills 100 --minutes 10 -o FILE.json

A small sweep is executed by `outvote bench`, by one process or two (-j 2), and disturbed: SIGKILL
at a random time or at a random system call, a full disk (ENOSPC at a random system call), a limit
on the size of files, a folder that is read-only. Then the same command runs to its end, and the
store is compared with one that was never disturbed: runs that are lost, `outvote verify`, tables,
and metrics to the last bit. The next call with the same file continues.

System calls are those of strace, attached to the process; without it these kinds are skipped. A
read-only folder needs `unshare`. A sweep is a fork of this process: importing torch takes longer
than the sweep.
"""

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from benches import children, is_running, metrics, own_suite
from kept_result import load_result, new_call, save_result
from outvote.cli import main as outvote

RULES = ("gas(median)", "centered-clipping")
ROUNDS = 5
WORDS = (("--checkpoint-every", "0"), ("--checkpoint-every", "1000"), ("--max-stacked", "1"), ())
"""Options that change when files are written, and not what they hold."""
SYSTEM_CALLS = {"write": 150, "fsync": 90, "rename": 60, "openat": 400, "ftruncate": 4}
"""Where SIGKILL may come, and up to which call of its kind."""
LONGEST = 300.0
"""Seconds of a sweep; one that takes longer hangs."""
Do = Callable[[], int]


class Skipped(Exception):  # noqa: N818  (an event)
    """A kind of disturbance is not available here."""


@dataclass(slots=True)
class Child:
    """A fork of this process that executes a command."""

    pid: int
    go: int
    """It starts when this pipe is closed."""
    log: Path
    code: int | None = None
    """Its exit code; -9 after SIGKILL."""
    is_struck: bool = False
    """Whether strace disturbed it, or a process of -j: then the sweep may still end well."""

    def poll(self) -> bool:
        """Return whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so long at most; return whether it has ended."""
        last = time.monotonic() + seconds
        while not self.poll():
            if time.monotonic() > last:
                return False
            time.sleep(0.005)
        return True

    def start(self) -> None:
        """Let it begin."""
        os.close(self.go)


def fork(do: Do, log: Path) -> Child:
    """Fork a process that waits for `Child.start`, then does some work; its texts go to a file."""
    waits, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(waits)
        return Child(pid, go, log)
    code = 70
    try:
        os.close(go)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.read(waits, 1)
        code = do()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  (a fork must not return into the caller)
        traceback.print_exc()
    finally:
        os._exit(code)


class Soak:
    """A suite, and the store that it gives if nothing happens."""

    def __init__(self, folder: Path, chance: random.Random, rules: Sequence[str] = RULES) -> None:
        self.folder, self.chance = folder, chance
        self.suite = own_suite(folder, rules, ROUNDS)
        self.whole = folder / "whole"
        # Once here: forks then have all modules. With one thread, torch stays usable in them.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            outvote(["bench", str(self.suite), "--device", "cpu", "-o", str(folder / "first")])
            outvote(["table", str(folder / "first"), "--json"])
        begun = time.monotonic()
        found = self._finish(self.whole)
        self.seconds = time.monotonic() - begun
        self.metrics, self.table = metrics(self.whole), found["table"]
        self.seconds_of_two = 4 + 2 * self.seconds
        if found["code"] or found["verify"] or len(self.metrics) != 4 * len(rules):
            raise RuntimeError(f"the undisturbed store is not sound: {found['text'][-500:]}")

    def disturb(self, kind: str, number: int) -> dict[str, Any]:
        """Disturb a sweep one to three times, let it end, and compare; return what was wrong."""
        store = self.folder / f"store-{number}"
        how_often = self.chance.choice((1, 1, 1, 2, 3))
        by_two = self.chance.random() < 0.3
        notes, struck = [], 0
        for _ in range(how_often):
            child = self._sweep(store, by_two=by_two)
            try:
                KINDS[kind](self, child, store)
            finally:
                if not child.poll():
                    self._kill(child)
            struck += child.is_struck or child.code != 0
            text = child.log.read_text(errors="replace")
            notes += [f"traceback: {text[-300:]}"] if "Traceback (most recent" in text else []
            notes += ["hangs"] if child.code == 71 else []
        found = self._finish(store)
        notes += self._differences(store, found)
        shutil.rmtree(store, ignore_errors=True)
        return {"struck": struck, "by_two": by_two, "notes": notes}

    def _differences(self, store: Path, found: dict[str, Any]) -> list[str]:
        """Return how a store differs from the undisturbed one."""
        now = metrics(store)
        lost = [name for name in self.metrics if name not in now]
        other = [name for name, text in self.metrics.items() if now.get(name, text) != text]
        notes = [f"exit code {found['code']}: {found['text'][-300:]}"] if found["code"] else []
        notes += [f"runs lost: {', '.join(lost)}"] if lost else []
        notes += [f"runs too many: {len(now)}"] if len(now) > len(self.metrics) else []
        notes += [f"other metrics: {', '.join(other)}"] if other else []
        notes += [f"verify: {found['verify']}"] if found["verify"] else []
        notes += ["another table"] if found["table"] != self.table else []
        left = [str(path.name) for path in store.rglob(".*.tmp")]
        return notes + ([f"files left: {', '.join(left)}"] if left else [])

    def _sweep(self, store: Path, *, by_two: bool) -> Child:
        words = ["bench", str(self.suite), "--device", "cpu", "-o", str(store)]
        words += [*self.chance.choice(WORDS), *(("-j", "2") if by_two else ())]
        child = fork(lambda: outvote(words), self.folder / "sweep.log")
        self.limit = self.seconds_of_two if by_two else self.seconds
        return child

    def _finish(self, store: Path) -> dict[str, Any]:
        """Run the command to its end, verify the store and print its table."""
        words = ["bench", str(self.suite), "--device", "cpu", "-o", str(store)]
        done, facts = self.folder / "finish.log", {}
        for key, command in (
            ("code", words),
            ("verify", ["verify", str(store)]),
            ("table", ["table", str(store), "--json"]),
        ):
            child = fork(lambda command=command: outvote(command), done)
            child.start()
            if not child.wait(LONGEST):
                os.kill(child.pid, signal.SIGKILL)
                child.wait(10)
            facts[key] = child.code
            text = done.read_text(errors="replace")
            facts["text"] = facts.get("text", "") + text if key == "code" else facts["text"]
            if key == "verify" and child.code:
                facts[key] = text[-500:]
            if key == "table":
                facts[key] = _cells(text)
        return facts

    def _kill(self, child: Child) -> None:
        """End a sweep by SIGKILL, and see that the processes that it started end too."""
        found = _descendants(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
        last = time.monotonic() + 60
        while any(map(is_running, found)):
            if time.monotonic() > last:
                for pid in filter(is_running, found):
                    os.kill(pid, signal.SIGKILL)
                child.code = 71
                return
            time.sleep(0.01)

    # The kinds of disturbance: each starts the child, and leaves it ended or to be killed.

    def kill_at_a_time(self, child: Child, _store: Path) -> None:
        """SIGKILL after a random time."""
        child.start()
        child.wait(self.chance.uniform(0, self.limit))

    def kill_at_a_system_call(self, child: Child, _store: Path) -> None:
        """SIGKILL at a random system call of a random kind."""
        call = self.chance.choice(list(SYSTEM_CALLS))
        self._traced(child, call, "signal=SIGKILL", self.chance.randint(1, SYSTEM_CALLS[call]))

    def fill_the_disk(self, child: Child, _store: Path) -> None:
        """ENOSPC from a random system call on."""
        call = self.chance.choice(("write", "fsync", "rename"))
        number = self.chance.randint(1, SYSTEM_CALLS[call])
        self._traced(child, call, "error=ENOSPC", number, goes_on=True)

    def limit_files(self, child: Child, _store: Path) -> None:
        """Files cannot grow beyond a random size."""
        most = self.chance.choice((0, 200, 1_000, 4_000, 50_000, 200_000))
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most, most))
        child.start()
        child.wait(LONGEST)

    def make_read_only(self, child: Child, store: Path) -> None:
        """A store that cannot be written, after a part of the sweep."""
        child.start()
        child.wait(self.chance.uniform(0.2, self.limit))
        self._kill(child)
        if not store.exists():
            return
        bound = f"mount --bind '{store}' '{store}' && mount -o remount,ro,bind '{store}'"
        program = "import sys; from outvote.cli import main; sys.exit(main())"
        words = [sys.executable, "-c", program, "bench", str(self.suite), "--device", "cpu"]
        command = ["unshare", "-m", "sh", "-c", f'{bound} && exec "$@"', "sh", *words]
        with child.log.open("wb") as log:
            done = subprocess.run(
                [*command, "-o", str(store)], stdout=log, stderr=log, check=False, timeout=LONGEST
            )
        child.code = done.returncode

    def _traced(
        self, child: Child, call: str, does: str, number: int, *, goes_on: bool = False
    ) -> None:
        """Attach strace, which injects a signal or an error at a system call."""
        when = f"{number}+" if goes_on else str(number)
        inject = f"inject={call}:{does}:when={when}"
        log = self.folder / "strace.log"
        words = ["strace", "-f", "-q", "-o", str(log), "-e", f"trace={call}", "-e", inject]
        tracer = subprocess.Popen(
            [*words, "-p", str(child.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while _tracer_of(child.pid) == 0:
                if tracer.poll() is not None:
                    raise Skipped("strace cannot be attached")
                time.sleep(0.002)
            child.start()
            child.wait(LONGEST)
        finally:
            if not child.poll():
                self._kill(child)
                child.code = 71
            if tracer.poll() is None:
                try:
                    tracer.wait(30)  # It goes on with the processes of -j until they end.
                except subprocess.TimeoutExpired:
                    tracer.terminate()
                    tracer.wait(10)
            text = log.read_text(errors="replace") if log.exists() else ""
            child.is_struck = "killed by SIGKILL" in text or "(INJECTED)" in text
            log.unlink(missing_ok=True)


KINDS: dict[str, Callable[[Soak, Child, Path], None]] = {
    "kill at a time": Soak.kill_at_a_time,
    "kill at a system call": Soak.kill_at_a_system_call,
    "full disk": Soak.fill_the_disk,
    "limit on files": Soak.limit_files,
    "read-only": Soak.make_read_only,
}
NEEDS = {
    "kill at a system call": ["strace", "-V"],
    "full disk": ["strace", "-V"],
    "read-only": ["unshare", "-m", "true"],
}
OFTEN = ("kill at a time", "kill at a system call")


def main(words: list[str] | None = None) -> int:
    """Disturb sweeps until there were enough, or the time is over; 1 if there are findings."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="of this call, all kinds")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), help="four runs of each")
    parser.add_argument("--seed", type=int, default=0, help="of a new result")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    _one_thread()
    result = load_result(options.output, seed=options.seed, sweeps=0, kinds={}, findings=[])
    result["calls"].append(new_call("tools/soak_store.py", words) | {"disturbances": 0})
    with tempfile.TemporaryDirectory() as folder:
        _run(options, Path(folder), result)
    sys.stdout.write(summary(result))
    return int(bool(result["findings"]))


def _run(options: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    last = time.monotonic() + 60 * options.minutes
    kinds = [kind for kind in options.kinds if _is_available(kind)]
    result["skipped"] = [kind for kind in options.kinds if kind not in kinds]
    pool = [kind for kind in kinds for _ in range(4 if kind in OFTEN else 1)]
    soak = Soak(folder, random.Random(), options.rules)
    call = result["calls"][-1]
    while call["disturbances"] < options.kills and time.monotonic() < last:
        number = result["sweeps"]
        # Which is drawn is known again from the number; when a signal arrives never is.
        soak.chance.seed(f"{result['seed']}/{number}")
        kind = soak.chance.choice(pool)
        found = soak.disturb(kind, number)
        result["sweeps"] += 1
        count = result["kinds"].setdefault(
            kind, {"sweeps": 0, "disturbances": 0, "of two processes": 0, "findings": 0}
        )
        count["sweeps"] += 1
        count["disturbances"] += found["struck"]
        count["of two processes"] += found["by_two"] * found["struck"]
        count["findings"] += bool(found["notes"])
        call["disturbances"] += found["struck"]
        result["findings"] += [
            {"sweep": number, "kind": kind, "by_two": found["by_two"], "what": note}
            for note in found["notes"]
        ]
        save_result(options.output, result)


def summary(result: dict[str, Any]) -> str:
    """Return one line for each kind and finding."""
    lines = [
        f"{kind:22} {each['disturbances']:5} in {each['sweeps']:5} sweeps, "
        f"{each['of two processes']:4} with -j 2, {each['findings']} findings\n"
        for kind, each in result["kinds"].items()
    ]
    lines += [f"skipped: {kind}\n" for kind in result.get("skipped", ())]
    lines += [f"finding: {json.dumps(each)}\n" for each in result["findings"]]
    total = sum(each["disturbances"] for each in result["kinds"].values())
    return "".join([*lines, f"{total} disturbances, {len(result['findings'])} findings\n"])


def _cells(text: str) -> Any:
    """Return a table without where and when it was made."""
    try:
        return {key: value for key, value in json.loads(text).items() if key != "provenance"}
    except ValueError:
        return text


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _is_available(kind: str) -> bool:
    command = NEEDS.get(kind)
    if command is None:
        return True
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _tracer_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("TracerPid:")[2].split()[0])


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""

    @dataclass
    class One:
        pid: int

    own = children(One(pid))
    return [*own, *(each for child in own for each in _descendants(child))]


if __name__ == "__main__":
    sys.exit(main())
