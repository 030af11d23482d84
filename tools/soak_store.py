"""A store under random kills, full disks and read-only folders: nothing may be lost or changed.

python tools/soak_store.py --kills 100 --minutes 10 -o FILE.json

A small sweep is executed by `outvote bench`, and disturbed up to five times: SIGKILL at a random
time or at a random system call, a full disk (ENOSPC at a random system call), a limit on the size
of files, a folder that is read-only. Then the same command runs to its end, and the store is
compared with one that was never disturbed: runs that are lost, `outvote verify`, tables, and
metrics to the last bit.

System calls are those of strace, attached to the process; without it these kinds are skipped. A
read-only folder needs `unshare`. A sweep is a fork of this process: importing torch takes longer
than the sweep.
"""

import argparse
import ctypes
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
from benches import metrics, num_rounds, own_suite
from kept_result import new_call, save_result
from outvote.cli import main as outvote

RULES = ("gas(median)", "centered-clipping")
ROUNDS = 5
WORDS = (("--checkpoint-every", "0"), ("--checkpoint-every", "1000"), ("--max-stacked", "1"), ())
"""Options that change when files are written, and not what they hold."""
SYSTEM_CALLS = {"write": 140, "fsync": 120, "rename": 56, "openat": 350, "ftruncate": 3}
"""Where SIGKILL may come, and how many calls of this kind a sweep makes."""
MOST_OFTEN = 5
"""Disturbances of one store."""
LONGEST = 1800.0
"""Seconds of a sweep; one that takes longer hangs, even if many others share the machine."""
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
    """Whether strace disturbed it: then the sweep may still end well."""

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

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        rules: Sequence[str] = RULES,
    ) -> None:
        self.folder, self.chance = folder, chance
        self.num_rounds = 4 * len(rules) * ROUNDS
        self.suite = own_suite(folder, rules, ROUNDS)
        self.whole = folder / "whole"
        # Once here: forks then have all modules. With one thread, torch stays usable in them.
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            outvote(["bench", str(self.suite), "--device", "cpu", "-o", str(folder / "first")])
            outvote(["table", str(folder / "first"), "--json"])
        found = self._finish(self.whole)
        self.metrics, self.table = metrics(self.whole), found["table"]
        self.seconds = found["seconds"]
        if found["code"] or found["verify"] or len(self.metrics) != 4 * len(rules):
            raise RuntimeError(f"the undisturbed store is not sound: {found['text'][-500:]}")

    def disturb(self, kind: str, number: int) -> dict[str, Any]:
        """Disturb a sweep once or several times, let it end, and compare; return what was wrong."""
        store = self.folder / f"store-{number}"
        how_often = self.chance.randint(1, MOST_OFTEN)
        notes, struck = [], 0
        for _ in range(how_often):
            # What is left of it: a sweep that is resumed is shorter.
            self.share = max(0.1, 1 - num_rounds(store) / self.num_rounds)
            self.limit = self.share * self.seconds
            child = self._sweep(store)
            try:
                KINDS[kind](self, child, store)
            finally:
                if not child.poll():
                    self._kill(child)
            struck += child.is_struck or child.code != 0
            text = child.log.read_text(errors="replace")
            notes += [f"traceback: {text[-300:]}"] if "Traceback (most recent" in text else []
            notes += ["hangs"] if child.code == 71 else []
            if child.code == 0:
                break  # All runs are finished: nothing is left to disturb.
        found = self._finish(store)
        notes += self._differences(store, found)
        shutil.rmtree(store, ignore_errors=True)
        return {"struck": struck, "notes": notes}

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

    def _sweep(self, store: Path) -> Child:
        words = ["bench", str(self.suite), "--device", "cpu", "-o", str(store)]
        words += self.chance.choice(WORDS)
        return fork(lambda: outvote(words), self.folder / "sweep.log")

    def _finish(self, store: Path) -> dict[str, Any]:
        """Run the command to its end, verify the store and print its table."""
        words = ["bench", str(self.suite), "--device", "cpu", "-o", str(store)]
        done, facts = self.folder / "finish.log", {}
        begun = time.monotonic()
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
            facts.setdefault("seconds", time.monotonic() - begun)
            text = done.read_text(errors="replace")
            facts["text"] = facts.get("text", "") + text if key == "code" else facts["text"]
            if key == "verify" and child.code:
                facts[key] = text[-500:]
            if key == "table":
                facts[key] = _cells(text)
        return facts

    def _kill(self, child: Child) -> None:
        """End a sweep by SIGKILL."""
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)

    # The kinds of disturbance: each starts the child, and leaves it ended or to be killed.

    def kill_at_a_time(self, child: Child, _store: Path) -> None:
        """SIGKILL after a random time."""
        child.start()
        child.wait(self.chance.uniform(0, self.limit))

    def kill_at_a_system_call(self, child: Child, _store: Path) -> None:
        """SIGKILL at a random system call of a random kind."""
        self._traced(child, *self._call(list(SYSTEM_CALLS)), "signal=SIGKILL")

    def fill_the_disk(self, child: Child, _store: Path) -> None:
        """ENOSPC from a random system call on."""
        call, number = self._call(["write", "fsync", "rename"])
        self._traced(child, call, number, "error=ENOSPC", goes_on=True)

    def limit_files(self, child: Child, _store: Path) -> None:
        """Files cannot grow beyond a random size."""
        most = self.chance.choice((0, 200, 1_000, 4_000, 50_000, 200_000))
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most, most))
        child.start()
        child.wait(LONGEST)

    def make_read_only(self, child: Child, store: Path) -> None:
        """A store that cannot be written, after a part of the sweep."""
        child.start()
        if not child.wait(self.chance.uniform(0.2, max(0.2, self.limit))):
            self._kill(child)
        if not store.exists():
            return
        words = ["bench", str(self.suite), "--device", "cpu", "-o", str(store)]

        def execute() -> int:
            _mount_read_only(store)
            return outvote(words)

        later = fork(execute, child.log)
        later.start()
        later.wait(LONGEST)
        child.code = 71 if later.code is None else later.code
        child.is_struck = True

    def _call(self, calls: list[str]) -> tuple[str, int]:
        """Draw a system call and its number."""
        call = self.chance.choice(calls)
        return call, self.chance.randint(1, max(1, round(SYSTEM_CALLS[call] * self.share)))

    def _traced(
        self, child: Child, call: str, number: int, does: str, *, goes_on: bool = False
    ) -> None:
        """Attach strace, which injects a signal or an error at a system call."""
        pid = child.pid
        when = f"{number}+" if goes_on else str(number)
        inject = f"inject={call}:{does}:when={when}"
        log = self.folder / "strace.log"
        words = ["strace", "-f", "-q", "-o", str(log), "-e", f"trace={call}", "-e", inject]
        tracer = subprocess.Popen(
            [*words, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while _tracer_of(pid) == 0:
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
    parser.add_argument("--kills", type=int, default=20, help="all kinds")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rules", nargs="+", default=list(RULES), help="four runs of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    _one_thread()
    result = new_call("tools/soak_store.py", words)
    result |= {"seed": options.seed, "sweeps": 0, "disturbances": 0, "kinds": {}, "findings": []}
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        _run(options, Path(folder), result)
    sys.stdout.write(summary(result))
    return int(bool(result["findings"]))


def _run(options: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    kinds = [kind for kind in options.kinds if _is_available(kind)]
    result["skipped"] = [kind for kind in options.kinds if kind not in kinds]
    soak = Soak(folder, random.Random(), options.rules)
    last = time.monotonic() + 60 * options.minutes
    while result["disturbances"] < options.kills and time.monotonic() < last:
        _disturb(soak, kinds, result)
        save_result(options.output, result)


def _disturb(soak: Soak, kinds: list[str], result: dict[str, Any]) -> None:
    """Disturb one sweep, and add what was found."""
    number = result["sweeps"]
    # Which is drawn is known again from the number; when a signal arrives never is.
    soak.chance.seed(f"{result['seed']}/{number}")
    kind = soak.chance.choice([kind for kind in kinds for _ in range(4 if kind in OFTEN else 1)])
    found = soak.disturb(kind, number)
    result["sweeps"] += 1
    count = result["kinds"].setdefault(kind, {})
    for key, value in (
        ("sweeps", 1),
        ("disturbances", found["struck"]),
        ("findings", bool(found["notes"])),
    ):
        count[key] = count.get(key, 0) + int(value)
    result["disturbances"] += found["struck"]
    result["findings"] += [{"sweep": number, "kind": kind, "what": note} for note in found["notes"]]


def summary(result: dict[str, Any]) -> str:
    """Return one line for each kind and finding."""
    lines = [
        f"{kind:22} {each['disturbances']:5} in {each['sweeps']:5} sweeps, "
        f"{each['findings']} findings\n"
        for kind, each in result["kinds"].items()
    ]
    lines += [f"skipped: {kind}\n" for kind in result.get("skipped", ())]
    lines += [f"finding: {json.dumps(each)}\n" for each in result["findings"]]
    total = result["disturbances"]
    return "".join([*lines, f"{total} disturbances, {len(result['findings'])} findings\n"])


def _cells(text: str) -> Any:
    """Return a table without where and when it was made."""
    try:
        return {key: value for key, value in json.loads(text).items() if key != "provenance"}
    except ValueError:
        return text


def _mount_read_only(folder: Path) -> None:
    """Let this process, and no other, see a folder as read-only."""
    new_mounts = 0x20000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_mounts):
        raise OSError(ctypes.get_errno(), "unshare")
    for words in (
        ("--make-rprivate", "/"),
        ("--bind", str(folder), str(folder)),
        ("-o", "remount,ro,bind", str(folder)),
    ):
        subprocess.run(["mount", *words], check=True)


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


if __name__ == "__main__":
    sys.exit(main())
