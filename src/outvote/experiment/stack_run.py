"""Runs that train together: recorded round by round, saved as checkpoints."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor

from outvote.engine.run_stack import Run, State
from outvote.engine.simulation import Step, first_state, simulate
from outvote.experiment.builder import RunBuilder
from outvote.experiment.environment import describe_environment
from outvote.experiment.plan import Job, RunEnd
from outvote.experiment.progress import Listener, RoundProgress
from outvote.results.audit_log import audit_arrays, to_npz
from outvote.results.checkpoint import BOTH, Checkpoint, drop
from outvote.results.folder import Writer
from outvote.results.round import Round
from outvote.results.run import KeptRun
from outvote.results.schema import Outcome, Status, Timing
from outvote.server.step import STATE_NAMES
from outvote.state_format import pack_state, unpack_state

REASONS = {
    "diverged": "the loss or the weights were no longer finite in round {}",
    "interrupted": "stopped after round {}; run the same command again to resume",
}
OWNERS = ("attack", "rule", "client", "selection")
"""Whose state is carried from round to round: `attack_states` of the engine's state, and so on."""


@final
@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose folder is locked, and the checkpoint that it resumes from."""

    job: Job
    writer: Writer | KeptRun
    run: Run
    checkpoint: Checkpoint | None

    @property
    def round(self) -> int:
        """The last round that is done."""
        return 0 if self.checkpoint is None else self.checkpoint.round


@final
class StackRun:
    """Trains runs that stand at the same round, until they are over or it is asked to stop."""

    def __init__(
        self, open_runs: Sequence[OpenRun], builder: RunBuilder, *, keep_weights: bool = True
    ) -> None:
        """Build the stack and its state; nothing is written."""
        self.open_runs, self.builder, self.keep_weights = open_runs, builder, keep_weights
        self.spec = open_runs[0].job.spec
        runs, found, networks = [], [], []
        for each in open_runs:
            runs.append(each.run)
            if each.checkpoint is not None:
                found.append(each.checkpoint)
            else:
                networks.append(builder.network(each.job.spec))
        self.stack = builder.stack(self.spec, runs)
        if found:
            self.state = state_of(found, runs, builder.device)
        else:
            self.state = first_state(networks, builder.samples(self.spec.data)[0])
        self.rows = dict(enumerate(range(len(open_runs))))
        """The runs that are not over, and their rows in the state."""
        self._data = builder.datasets.used(self.spec.data)
        self._saved, self._saved_at = self.state.round, monotonic()

    def begin(self, listener: Listener) -> None:
        """Write that the runs are being trained; end those whose checkpoint has diverged."""
        trainer = self.stack.trainer
        how = f"{trainer.name}: {trainer.reason}" if trainer.reason else trainer.name
        if trainer.reason and self.state.round == 0:
            listener.on_message(f"clients train by the trainer {how}.")
        environment = describe_environment(
            self.builder.device, self.spec.precision, self._data, how
        )
        for each in self.open_runs:
            each.writer.begin(self.state.round, each.job.with_code(environment))
            each.writer.write_status(self._status("running"))
        for number, each in enumerate(self.open_runs):
            if each.checkpoint is not None and each.checkpoint.notes["outcome"] == "diverged":
                self.end(number, "diverged", listener)  # Killed before its status was written.

    def train(
        self, listener: Listener, should_stop: Callable[[], bool], checkpoint_every: float
    ) -> bool:
        """Train and record all rounds; return whether all runs are over."""
        going = list(self.rows)
        if not going:
            return True
        here = self.state if len(going) == len(self.open_runs) else self.state.only(going)
        rounds, every = self.spec.rounds, self.spec.evaluate_every
        start, first = monotonic(), self.state.round + 1
        steps = simulate(
            self.stack,
            here,
            rounds,
            evaluate_every=every,
            numbers=going,
            report=listener.on_message,
        )
        for step in steps:
            listener.on_round(self._record(step, monotonic() - start, listener))
            if self.state.round == first and self.open_runs[0].job.kept is None:
                self._try_to_pack()
            for number in step.over:
                self.end(number, "diverged", listener)
            if self.state.round < rounds and self.rows:
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
        """Save a checkpoint of all runs that are not over."""
        status = self._status(outcome)
        for number in self.rows:
            writer = self.open_runs[number].writer
            if self._saved == self.state.round:
                writer.write_status(status)
            else:
                writer.save(self._checkpoint(number, outcome), status)
        self._saved, self._saved_at = self.state.round, monotonic()

    def end(self, number: int, outcome: Outcome, listener: Listener) -> None:
        """Write that a run is over."""
        each, status = self.open_runs[number], self._status(outcome)
        writer = each.writer
        if isinstance(writer, KeptRun):
            writer.write_status(status)
        else:
            writer.save(self._checkpoint(number, outcome), self._status("running"))
            rounds = writer.folder.rounds()
            writer.end(status, make_audit(self.builder, each.job, each.run, rounds))
            if not self.keep_weights:
                drop(writer.path, *BOTH)
        del self.rows[number]
        listener.on_end(RunEnd(job=each.job, outcome=outcome, reason=status.reason))

    def _checkpoint(self, number: int, outcome: Outcome) -> Checkpoint:
        state, row = self.state, self.rows[number]
        stacked = {"weights": state.weights, "buffers": state.buffers, **state.server_state}
        arrays: dict[str, NDArray[Any]] = {
            name: values[row].cpu().numpy() for name, values in stacked.items()
        }
        notes: dict[str, Any] = {"outcome": outcome, "data": self._data.checksum}
        for owner in OWNERS:
            notes[f"{owner}_state"] = self._packed(owner, row, arrays)
        writer = self.open_runs[number].writer
        config, notes["metrics"] = writer.checksum, writer.metrics_sum
        return Checkpoint(round=state.round, config=config, arrays=arrays, notes=notes)

    def _packed(self, owner: str, row: int, arrays: dict[str, NDArray[Any]]) -> Any:
        carried = getattr(self.state, f"{owner}_states")
        return pack_state(carried[row] if carried else None, f"{owner}_state", arrays)

    def _try_to_pack(self) -> None:
        """Raise now, and not hours later at a checkpoint, if a state cannot be saved."""
        for row in self.rows.values():
            for owner in ("attack", "rule"):  # Those of clients are tensors, and large.
                self._packed(owner, row, {})

    def _record(self, step: Step, seconds: float, listener: Listener) -> RoundProgress:
        self.state = step.state
        self.rows = dict(zip(step.numbers, range(len(step.numbers)), strict=True))
        number, num_runs = step.state.round, len(step.numbers)
        num_samples = sum(map(attrgetter("num_samples"), step.records))
        accuracies = []
        timing = Timing(round=number, seconds=seconds, num_runs=num_runs, images=num_samples)
        for each, record in zip(step.numbers, step.records, strict=True):
            self.open_runs[each].writer.add(record, timing)
            listener.on_record(self.open_runs[each].job, record)
            if record.accuracy is not None:
                accuracies.append(record.accuracy)
        return RoundProgress(
            round=number,
            num_rounds=self.spec.rounds,
            num_runs=num_runs,
            accuracies=tuple(accuracies),
            num_samples=num_samples,
            seconds=seconds,
        )

    def _status(self, outcome: Outcome) -> Status:
        done, reason = self.state.round, REASONS.get(outcome, "")
        total = self.spec.rounds
        return Status(outcome=outcome, round=done, num_rounds=total, reason=reason.format(done))


def make_audit(builder: RunBuilder, job: Job, run: Run, rounds: Sequence[Round]) -> bytes:
    """Return the audit.npz of a run."""
    return to_npz(
        audit_arrays(
            rounds,
            is_byzantine=run.federation.is_byzantine,
            label_counts=builder.label_counts(job.spec, run.federation),
        )
    )


def state_of(found: Sequence[Checkpoint], runs: Sequence[Run], device: torch.device) -> State:
    """Return the stacked state of runs that stand at the same round."""

    def stacked(name: str) -> Tensor:
        rows = [torch.from_numpy(each.arrays[name].copy()) for each in found]
        return torch.stack(rows).to(device)

    def carried(owner: str) -> tuple[Any, ...]:
        states = []
        for each, run in zip(found, runs, strict=True):
            node = each.notes[f"{owner}_state"]
            states.append(unpack_state(node, each.arrays, getattr(run, owner, run), device))
        return () if all(each is None for each in states) else tuple(states)

    return State(
        round=found[0].round,
        weights=stacked("weights"),
        buffers=stacked("buffers"),
        server_state={name: stacked(name) for name in STATE_NAMES if name in found[0].arrays},
        **{f"{owner}_states": carried(owner) for owner in OWNERS},
    )
