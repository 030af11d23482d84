"""Rounds that other processes play, read from the store while they write it."""

from collections.abc import Iterable
from time import monotonic
from typing import final

import msgspec

from outvote.experiment.job import Job
from outvote.experiment.listener import Listener, Played
from outvote.results.schema import Round


@final
class Follower:
    """Tells a listener of the rounds that appeared since it looked the last time."""

    def __init__(self, listener: Listener, jobs: Iterable[Job]) -> None:
        """Take where the runs stand now as known."""
        self.listener = listener
        self._jobs = {job.hash: job for job in jobs}
        self._known = {name: self._size(job) for name, job in self._jobs.items()}
        self._looked = monotonic()

    def look(self) -> None:
        """Tell of what is new."""
        now = monotonic()
        found = [(job, line) for job in self._jobs.values() for line in self._new(job)]
        seconds = (now - self._looked) / max(len(found), 1)
        for job, line in found:
            self.listener.played(
                Played(
                    round=line.round,
                    num_rounds=job.spec.rounds,
                    num_runs=1,
                    accuracies=() if line.accuracy is None else (line.accuracy,),
                    images=line.num_samples or 0,
                    seconds=seconds,
                )
            )
        if found:
            self._looked = now

    def forget(self, job: Job) -> None:
        """Look no more at a run that is over."""
        self._jobs.pop(job.hash, None)

    def _new(self, job: Job) -> list[Round]:
        """Return the whole lines behind those that are known."""
        size, known = self._size(job), self._known[job.hash]
        if size <= known:  # Cut back, if it goes on from a checkpoint.
            self._known[job.hash] = size
            return []
        try:
            with (job.folder.path / "metrics.jsonl").open("rb") as file:
                file.seek(known)
                text = file.read(size - known)
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._known[job.hash] += len(whole)
        try:
            return [msgspec.json.decode(line, type=Round) for line in whole.splitlines()]
        except msgspec.DecodeError:  # Cut back and longer again since the last look.
            return []

    def _size(self, job: Job) -> int:
        try:
            return (job.folder.path / "metrics.jsonl").stat().st_size
        except OSError:
            return 0
