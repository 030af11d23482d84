"""Runs that are played together, and written down round by round."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import final

import msgspec

from outvote.engine.run_stack import RunStack, State
from outvote.engine.simulation import Step, simulate
from outvote.experiment.build import RunBuilder
from outvote.experiment.job import Ended, Job
from outvote.experiment.listener import Listener, Played
from outvote.experiment.saving import checkpoint_of
from outvote.metrics.round_record import Record
from outvote.results.audit import audit_arrays, to_npz
from outvote.results.checkpoint import Checkpoint, drop_all
from outvote.results.folder import Writer
from outvote.results.schema import Outcome, Round, Status, Timing

REASONS = {
    "diverged": "the loss or the weights were no longer finite in round {}",
    "interrupted": "stopped after round {}; run the same command again to go on",
}


@final
class StackRun:
    """Plays its runs to the end, or until it is told to stop."""

    def __init__(
        self,
        jobs: Sequence[Job],
        writers: Sequence[Writer],
        stack: RunStack,
        state: State,
        builder: RunBuilder,
        *,
        keep_weights: bool = True,
    ) -> None:
        """Take runs that stand at the same round."""
        self.jobs, self.writers, self.stack = jobs, writers, stack
        self.builder, self.keep_weights = builder, keep_weights
        self.state = state
        self.rows = {number: number for number in range(len(jobs))}
        """The runs that still go on, and their rows in the state."""
        self._data = builder.datasets.used(jobs[0].spec.data).checksum
        self._saved = state.round
        self._saved_at = monotonic()

    def play(
        self, listener: Listener, should_stop: Callable[[], bool], checkpoint_every: float
    ) -> bool:
        """Play; return whether all runs are over."""
        spec = self.jobs[0].spec
        going = list(self.rows)
        if not going:
            return True
        here = self.state if len(going) == len(self.jobs) else self.state.only(going)
        start = monotonic()
        for step in simulate(
            self.stack, here, spec.rounds, evaluate_every=spec.evaluate_every, numbers=going
        ):
            listener.played(self._record(step, monotonic() - start))
            for number in step.over:
                self.end(number, "diverged", listener)
            if self.state.round < spec.rounds and self.rows:
                if should_stop():
                    self.save("interrupted")
                    return False
                if monotonic() - self._saved_at >= checkpoint_every:
                    self.save()
            start = monotonic()
        for number in list(self.rows):
            self.end(number, "finished", listener)
        return True

    def save(self, outcome: Outcome = "running") -> None:
        """Keep where all runs stand."""
        for number, row in self.rows.items():
            writer, status = self.writers[number], self._status(number, outcome)
            if self._saved == self.state.round:
                writer.tell(status)
            else:
                writer.save(self._checkpoint(row, writer, outcome), status)
        self._saved, self._saved_at = self.state.round, monotonic()

    def end(self, number: int, outcome: Outcome, listener: Listener) -> None:
        """Write down that a run is over."""
        job, writer, run = self.jobs[number], self.writers[number], self.stack.runs[number]
        checkpoint = self._checkpoint(self.rows[number], writer, outcome)
        writer.save(checkpoint, self._status(number, "running"))
        arrays = audit_arrays(
            writer.folder.rounds(),
            is_byzantine=run.federation.is_byzantine,
            label_counts=self.builder.label_counts(job.spec, run.federation),
        )
        status = self._status(number, outcome)
        writer.end(status, to_npz(arrays))
        if not self.keep_weights:
            drop_all(writer.path)
        del self.rows[number]
        listener.ended(Ended(job=job, outcome=outcome, reason=status.reason))

    def _checkpoint(self, row: int, writer: Writer, outcome: Outcome) -> Checkpoint:
        return checkpoint_of(self.state, row, writer.checksum, outcome, self._data)

    def _record(self, step: Step, seconds: float) -> Played:
        self.state = step.state
        self.rows = {number: row for row, number in enumerate(step.numbers)}
        images = sum(record.num_samples for record in step.records)
        timing = Timing(
            round=step.state.round, seconds=seconds, num_runs=len(step.numbers), images=images
        )
        for number, record in zip(step.numbers, step.records, strict=True):
            self.writers[number].add(as_round(record), timing)
        return Played(
            round=step.state.round,
            num_rounds=self.jobs[0].spec.rounds,
            num_runs=len(step.numbers),
            accuracies=tuple(r.accuracy for r in step.records if r.accuracy is not None),
            images=images,
            seconds=seconds,
        )

    def _status(self, number: int, outcome: Outcome) -> Status:
        return Status(
            outcome=outcome,
            round=self.state.round,
            num_rounds=self.jobs[number].spec.rounds,
            reason=REASONS.get(outcome, "").format(self.state.round),
        )


def as_round(record: Record) -> Round:
    """Return the line that is kept of a record."""
    return msgspec.convert(record, Round, from_attributes=True)
