"""Aggregates the files of many clients with a rule, and writes the new update or model."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.files.adapters import WEIGHTS, most_common_config, write_config
from outvote.files.client_files import (
    Client,
    FilesError,
    Named,
    check_base,
    check_output,
    find_files,
    open_clients,
)
from outvote.files.processes import Processes
from outvote.files.safetensors_file import Entry, UnusableFile
from outvote.files.sources import SafetensorsSource, overlaps
from outvote.files.streaming import SourceFailed, StreamingAggregator
from outvote.files.tensor_writer import TensorWriter, writing
from outvote.flat import FLOATS
from outvote.results.disk import StoreError
from outvote.rules.aggregate import num_from_fraction, resolve_num_byzantine
from outvote.rules.majority import too_many
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.rules.verdict import Verdict
from outvote.scores import robust_z
from outvote.server.replies import applied_nevertheless, why_too_few

PathLike = str | os.PathLike[str]


def aggregate_files(  # noqa: PLR0913  (all that a round may have, by name)
    updates: PathLike | Sequence[PathLike],
    *,
    rule: Rule | str,
    num_byzantine: int | None = None,
    byzantine_fraction: float | None = None,
    base: PathLike | None = None,
    seed: int | None = None,
    when_too_many: str = "raise",
    sample_counts: Mapping[str, float] | None = None,
    output: PathLike | None = None,
    max_memory: int | str = "2GB",
) -> Verdict:
    """Aggregate the safetensors files of many clients; return the verdict.

    `updates` are files, folders or patterns such as "updates/*.safetensors". Without `base` the
    files are updates (gradients or differences), and so is the `output`. With `base` they are whole
    models: updates are their differences to the base, and the output is the new model. A file that
    is unreadable, not finite, or unlike the base (or unlike most files) is rejected, which lowers
    nothing: if the rule does not tolerate so many Byzantine clients among the others, that is an
    error, unless `when_too_many` is "lower". Integer tensors become the maximum over the kept
    clients. `sample_counts` weigh the clients, named as in the verdict; none counts more than three
    times the median. The output is written in full or not at all. LoRA adapters of PEFT are such
    files: they are named by their folders, their adapter_config.json must agree, and an output with
    the name adapter_model.safetensors gets one, too.

    Files are read some coordinates at a time: with `max_memory` for that, and for the update that
    is returned.
    """
    return aggregate_clients(
        updates,
        rule=rule,
        num_byzantine=num_byzantine,
        byzantine_fraction=byzantine_fraction,
        base=base,
        seed=seed,
        when_too_many=when_too_many,
        sample_counts=sample_counts,
        output=output,
        max_memory=max_memory,
    ).verdict


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FilesResult:
    """A verdict on files, and the record of each client."""

    verdict: Verdict
    counters: list[str]
    """The tensors of integers, which are the maximum over the kept clients."""
    clients: list[dict[str, Any]]
    """In the order of the files: client, path, status, score, z, share, norm, cosine, reason."""


def aggregate_clients(
    updates: PathLike | Sequence[PathLike],
    *,
    rule: Rule | str,
    base: PathLike | None = None,
    output: PathLike | None = None,
    sample_counts: Mapping[str, float] | None = None,
    with_update: bool = True,
    processes: Processes | None = None,
    **options: Any,
) -> FilesResult:
    """Do the work of `aggregate_files`, and return the record of each client too.

    `with_update`: whether the verdict has the update, which may be large. `processes` share the
    coordinates; the first of them writes.
    """
    rule = make_rule(rule) if isinstance(rule, str) else rule
    is_written = output is not None and (processes is None or processes.rank == 0)
    target = Path(output) if output is not None and is_written else None
    with _together(processes):
        clients, start = _open(updates, base, target)
        num_byzantine, is_lowered = _resolved(rule, len(clients), options)
        aggregator = StreamingAggregator(
            rule,
            [client.source(start) for client in clients],
            clients=[client.name for client in clients],
            num_byzantine=num_byzantine,
            when_too_many="lower",
            sample_counts=None if sample_counts is None else _counts(sample_counts, clients),
            rejected_are_byzantine=False,
            **options,
        )
    if processes is not None:
        aggregator.share(processes)
    job = _Job(aggregator, clients, start, num_byzantine, is_lowered, processes)
    while True:
        with suppress(SourceFailed):  # All starts again without one more.
            return job.run(target, with_update=with_update)


def _together(processes: Processes | None) -> AbstractContextManager[None]:
    return nullcontext() if processes is None else processes.together()


def _resolved(rule: Rule, num_clients: int, options: dict[str, Any]) -> tuple[int, bool]:
    """Take f and what to do where it is too large out of the options; check both."""
    names = ("num_byzantine", "byzantine_fraction", "when_too_many")
    num_byzantine, fraction, when_too_many = (options.pop(name, None) for name in names)
    when_too_many = when_too_many or "raise"
    resolve_num_byzantine(rule, num_clients, num_byzantine, fraction, when_too_many)
    if fraction is not None:
        num_byzantine = num_from_fraction(fraction, num_clients)
    return int(num_byzantine or 0), when_too_many == "lower"


def _open(
    updates: PathLike | Sequence[PathLike], base: PathLike | None, output: Path | None
) -> tuple[list[Client], SafetensorsSource | None]:
    """Find and open the files; raise if the output cannot be written."""
    words = [updates] if isinstance(updates, str | os.PathLike) else updates
    base_path = None if base is None else Path(base)
    try:
        paths = find_files([str(word) for word in words])
        if base_path is not None:
            check_base(base_path, paths)
        if output is not None:
            check_output(output, paths if base_path is None else [*paths, base_path])
    except OSError as error:  # A name that is too long, say.
        raise ValueError(
            f"{error.filename} cannot be used: {error.strerror}; choose another path"
        ) from error
    clients, start = open_clients(paths, base_path)
    usable = [client.file for client in clients if client.file is not None]
    if not usable:
        raise _nothing_usable(clients)
    if not usable[0].size:
        raise FilesError("the files hold no floating-point tensor, so there is no update")
    return clients, start


def _counts(counts: Mapping[str, float], clients: Sequence[Client]) -> list[float]:
    """Return the counts in the order of the clients; each must have one."""
    missing = [client.name for client in clients if client.name not in counts]
    if missing:
        raise ValueError(
            f"sample_counts must have every client, got none for {missing[0]!r}; add it, or leave "
            "sample_counts out."
        )
    return [counts[client.name] for client in clients]


def _nothing_usable(clients: Sequence[Client]) -> FilesError:
    reasons = [f"{client.path}: {client.reason}" for client in clients[:3]]
    more = f"; and {len(clients) - 3} more" if len(clients) > 3 else ""
    return FilesError(
        f"none of the {len(clients)} files can be used, nothing was written; "
        f"{'; '.join(reasons)}{more}"
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """The files of one round, opened."""

    aggregator: StreamingAggregator
    clients: list[Client]
    base: SafetensorsSource | None
    num_byzantine: int
    is_lowered: bool
    """Whether to continue where the rule does not tolerate so many among the usable files."""
    processes: Processes | None

    def run(self, output: Path | None, *, with_update: bool) -> FilesResult:
        self._check()
        verdict = self.aggregator.verdict()
        note = self._check()
        counters = self._counters(verdict)
        update: Named | None = None
        if with_update:
            entries = self._entries.items()
            update = {name: torch.empty(entry.shape, dtype=entry.dtype) for name, entry in entries}
        # At the end the file is there for all processes, or for none.
        with _together(self.processes):
            self._make(output, counters, update)
        if note:
            note = f"{note}; {applied_nevertheless(verdict.base_num_byzantine)}"
            verdict = replace(verdict, notes=(*verdict.notes, note))
        return FilesResult(
            verdict=replace(verdict, update=update),
            counters=list(counters),
            clients=self._records(verdict),
        )

    def _check(self) -> str:
        """Raise if too few files are left; return why they are too few where that is allowed."""
        for client in self.clients:
            client.reason = self.aggregator.reasons.get(client.name, client.reason)
        bad = [client for client in self.clients if client.reason]
        if len(bad) == len(self.clients):
            raise _nothing_usable(self.clients)
        rule = self.aggregator.rule
        fault = too_many(rule, self.num_byzantine, len(self.clients) - len(bad))
        if fault is not None and not self.is_lowered:
            if not bad:
                raise fault
            raise ValueError(
                f"{len(bad)} of {len(self.clients)} files are bad, and with the others {rule} "
                f"tolerates at most {fault.limit} Byzantine clients, not {fault.got}; nothing was "
                f"written ({bad[0].path}: {bad[0].reason}); add good files, lower num_byzantine, "
                "or pass when_too_many='lower'"
            )
        return "" if fault is None else why_too_few(fault, "clients")

    def _make(self, output: Path | None, counters: Named, update: Named | None) -> None:
        """Take the update piece by piece, those of all processes in the first, and write it."""
        pieces = self.aggregator.update()
        if self.processes is not None:
            pieces = self.processes.collected(pieces, self.aggregator.num_chunks)
        try:
            with self._opened(output, counters) as writer:
                for piece, vector in pieces:
                    if update is not None:
                        self._keep(update, piece, vector)
                    if writer is not None:
                        self._write(writer, piece, vector)
        except (StoreError, FilesError):
            for _ in pieces if self.processes is not None else ():
                pass  # The others send theirs until the end.
            raise
        if output is not None and output.name == WEIGHTS:
            used = [client.config for client in self.clients if not client.reason]
            if (config := most_common_config(used)) is not None:
                write_config(output, config)

    @property
    def _entries(self) -> dict[str, Entry]:
        """The tensors of the update: as they were sent, or in the precision of the work.

        With a base, differences need that; without one, an average of eight-bit numbers.
        """
        work, as_sent = self._first.dtype, FLOATS if self.base is None else ()
        return {
            name: entry if entry.dtype in as_sent else Entry(entry.shape, work)
            for name, entry in self._first.entries
        }

    @property
    def _first(self) -> SafetensorsSource:
        return next(client.file for client in self.clients if client.file is not None)

    @contextmanager
    def _opened(self, output: Path | None, counters: Named) -> Iterator[TensorWriter | None]:
        """Open the output, if there is one, and write the tensors of integers."""
        if output is None:
            yield None
            return
        entries = self._entries if self.base is None else dict(self._first.entries)
        entries |= {name: Entry(tuple(t.shape), t.dtype) for name, t in counters.items()}
        metadata = {"format": "pt"} if self.base is None else self.base.header.metadata
        with writing(output, entries, metadata) as writer:
            for name, value in counters.items():
                writer.write(name, 0, value)
            yield writer

    def _keep(self, update: Named, piece: slice, vector: Tensor) -> None:
        for name, _, own, there in overlaps(self._first.entries, piece):
            update[name].view(-1)[own] = _narrowed(vector[there], update[name].dtype)

    def _write(self, writer: TensorWriter, piece: slice, vector: Tensor) -> None:
        if self.base is not None:
            start = torch.empty_like(vector)
            try:
                self.base.read(piece.start, start)
            except UnusableFile as error:
                path = self.base.path
                raise FilesError(f"the base {path} {error}, nothing was written") from error
            vector = start + vector
        for name, _, own, there in overlaps(self._first.entries, piece):
            writer.write(name, own.start, _narrowed(vector[there], writer.entries[name].dtype))

    def _counters(self, verdict: Verdict) -> Named:
        """Return the maximum over the kept clients of every tensor of integers."""
        kept = set(verdict.kept or verdict.clients)
        found: dict[str, np.ndarray] = {}
        for k, client in enumerate(self.clients):
            if client.file is None or client.reason or client.name not in kept:
                continue
            try:
                for name in client.file.counters:
                    own = client.file.counter(name).numpy()
                    found[name] = own if name not in found else np.maximum(found[name], own)
            except UnusableFile as error:
                self.aggregator.fail(k, str(error))
        return {name: torch.from_numpy(np.asarray(value)) for name, value in found.items()}

    def _records(self, verdict: Verdict) -> list[dict[str, Any]]:
        shares = verdict.weights
        deviations = robust_z(verdict.scores)
        copies = self.aggregator.copies
        records = []
        for k, client in enumerate(self.clients):
            record: dict[str, Any] = dict.fromkeys(("score", "z", "share", "norm", "cosine"))
            record |= {"client": client.name, "path": str(client.path), "status": "rejected"}
            if not client.reason:
                share = None if shares is None else float(shares[k])
                cosine = float(self.aggregator.cosines[k])
                record |= {
                    "status": "used" if share is None else "kept" if share > 0 else "dropped",
                    "score": float(verdict.scores[k]),
                    "z": deviations[k],
                    "share": share,
                    "norm": float(self.aggregator.norms[k]),
                    "cosine": None if np.isnan(cosine) else cosine,
                }
            same = f"the same update as {copies[client.name]}" if client.name in copies else ""
            records.append(record | {"reason": client.reason or same})
        return records


def _narrowed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to another float: what is too large becomes the largest finite number."""
    if dtype.itemsize >= values.dtype.itemsize:
        return values.to(dtype)
    largest = torch.finfo(dtype).max
    return values.clamp(min=-largest, max=largest).to(dtype)
