"""Aggregation in bounded memory: gradients are read some coordinates at a time, as often as needed.

One pass finds the norms, which rows are finite and which are copies; one or more the geometry that
the rule asks for; the last one makes the update.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.files.processes import Processes
from outvote.files.safetensors_file import UnusableFile
from outvote.files.sources import Source, open_source
from outvote.ops.process import CPU, mapped, plain_torch
from outvote.ops.rows import inner_products
from outvote.rules.aggregate import (
    Batch,
    OneRound,
    aggregate,
    check_clients,
    resolve_num_byzantine,
    split_of_caller,
)
from outvote.rules.rule import Aggregation, Rule, known
from outvote.rules.rule_spec import make_rule
from outvote.rules.sample_counts import COUNT_CAP, check_cap, check_counts
from outvote.rules.values import SUMMED_VALUES, NeedsWholeRows, Stream, cut, over_tiles, row_facts
from outvote.rules.verdict import Verdict
from outvote.seeding import Seed, seed_from

OnProgress = Callable[[str, int, int], None]
"""Called with what is done, and how many of how many coordinates it is done for."""

# What Python, torch and its threads take before there is any gradient.
PROGRAM_BYTES = 300_000_000
SMALLEST_MEMORY = 400_000_000
SMALLEST_CHUNK, LARGEST_CHUNK = 1 << 12, 1 << 20
# So many bytes are held for every value of a chunk: it, its sorted copy, and what comes of it.
BYTES_PER_VALUE = 40
# So few are not worth a stream: rules have ways of their own for them.
FEW_COORDINATES = 1024


@final
class StreamingAggregator:
    """Aggregates gradients that do not fit into memory together.

    `sources` has one entry per client: a path (.safetensors, .npy, or a state dict of torch), an
    array or memmap or tensor, a dict of them, or a function that returns an iterator of chunks (it
    is called for every pass). All coordinates are one vector; with the same seed the verdict is the
    one that ``rule.inspect`` has for it. A source that cannot be read is rejected, as one that is
    not finite; `reasons` has why. An UnusableFile in place of a source is rejected as well.

    >>> rows = np.array([[1.0, 2.0], [1.5, 1.0], [0.5, 1.5], [2.0, 2.5], [-6.0, 8.0]])
    >>> streaming = StreamingAggregator("multi-krum", list(rows), num_byzantine=1)
    >>> streaming.verdict().kept
    [0, 1, 2, 3]
    >>> [(piece, update.tolist()) for piece, update in streaming.update()]
    [(slice(0, 2, None), [1.25, 1.75])]
    """

    def __init__(  # noqa: PLR0913  (all that a round may have, by name)
        self,
        rule: Rule | str,
        sources: Sequence[Any],
        *,
        num_byzantine: int | None = None,
        byzantine_fraction: float | None = None,
        when_too_many: str = "raise",
        seed: Seed = None,
        groups: Sequence[Sequence[int]] | None = None,
        clients: Sequence[Hashable] | None = None,
        sample_counts: Sequence[float] | None = None,
        count_cap: float = COUNT_CAP,
        max_memory: int | str = "2GB",
        on_progress: OnProgress | None = None,
        layer_sizes: Sequence[int] | None = None,
        rejected_are_byzantine: bool = True,
    ) -> None:
        """Open the sources; nothing is read but headers.

        `rejected_are_byzantine`: whether those rejected count among the Byzantine clients; if not,
        the rule has as many of them among the others.
        """
        self.rule = make_rule(rule) if isinstance(rule, str) else rule
        if not sources:
            raise ValueError("sources must hold at least one client, got none.")
        self.clients = check_clients(clients, len(sources))
        self.max_memory = parse_memory(max_memory)
        self.reasons: dict[Hashable, str] = {}
        """Why clients were rejected."""
        self.copies: dict[Hashable, Hashable] = {}
        """Which clients sent what another sent, to the last bit, and that other."""
        self._found: Aggregation | None = None
        self.norms = np.full(len(sources), np.nan)
        """The norm of every client; NaN where it was rejected. Known after `verdict`."""
        self.cosines = np.full(len(sources), np.nan)
        """The cosine of every client to the update. Known after all of `update` was taken."""
        self.sources: list[Source | None] = [
            self._open(source, k) for k, source in enumerate(sources)
        ]
        self._processes: Processes | None = None
        self._failed: dict[int, str] = {}
        self.dim = self._check_sizes()
        self.seed = seed_from(seed)
        self._sizes = None if layer_sizes is None else tuple(layer_sizes)
        self.num_byzantine = resolve_num_byzantine(
            self.rule, len(sources), num_byzantine, byzantine_fraction, when_too_many
        )
        self._rejected_are_byzantine = rejected_are_byzantine
        check_cap(count_cap)
        self._counts = None if sample_counts is None else check_counts(sample_counts, len(sources))
        self._count_cap = count_cap
        self._split = None if groups is None else split_of_caller(self.rule, groups, self.dim)
        self._on_progress = on_progress
        self.part = slice(0, self.dim)
        """The coordinates that this process reads."""

    @property
    def entries(self) -> tuple[tuple[str, Any], ...]:
        """The named tensors of the sources that have names."""
        return next((s.entries for s in self.sources if s is not None and s.entries), ())

    @property
    def _layer_sizes(self) -> tuple[int, ...] | None:
        return self._sizes or tuple(entry.size for _, entry in self.entries) or None

    def verdict(self) -> Verdict:
        """Read the sources, and return the verdict; its `update` is None."""
        with plain_torch(CPU):
            while self._found is None:
                with suppress(SourceFailed):  # One more client is rejected: start without it.
                    self._found = self._aggregate()
        return OneRound(
            rule=self.rule,
            update=None,
            found=self._found,
            clients=self.clients,
            seed=self.seed,
            notes=self._found.notes,
            counts=self._counts,
            count_cap=self._count_cap,
            rejected_are_byzantine=self._rejected_are_byzantine,
        ).verdict()

    def update(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the sources once more, and yield the update in the order of the coordinates."""
        self.verdict()
        vector = known(known(self._found).vector)
        along = torch.zeros(len(self.sources) + 1, dtype=torch.float64)
        for piece, rows in self._chunks("writing the update"):
            with plain_torch(CPU):
                parts = over_tiles(partial(_part_and_products, vector), piece, rows, SUMMED_VALUES)
            along += torch.stack([products for _, products in parts]).sum(dim=0)
            yield piece, torch.cat([part for part, _ in parts])
        *inner, squared = self._everywhere(along).tolist()
        scale = self.norms * squared**0.5
        self.cosines = np.divide(inner, scale, where=scale > 0, out=np.full_like(scale, np.nan))

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the sources that are not rejected once: slices, and ``[clients, coordinates]``.

        The values last until the next are asked for.
        """
        is_used = torch.tensor([source is not None for source in self.sources])
        for piece, rows in self._chunks("reading"):
            yield piece, rows if bool(is_used.all()) else rows[is_used]

    @property
    def num_chunks(self) -> int:
        """How many pieces `update` yields."""
        return len(self._cuts())

    @property
    def _dtype(self) -> torch.dtype:
        is_wide = any(source.dtype == torch.float64 for source in self.sources if source)
        return torch.float64 if is_wide else torch.float32

    def _open(self, source: Any, k: int) -> Source | None:
        try:
            if isinstance(source, UnusableFile):
                raise source
            return open_source(source)
        except UnusableFile as error:
            self.reasons[self.clients[k]] = str(error)
            return None

    def _check_sizes(self) -> int:
        """Return the number of coordinates that most sources have; reject the others."""
        sizes = [source.size for source in self.sources if source is not None]
        if not sizes:
            return 0
        dim = max(sorted(set(sizes), reverse=True), key=sizes.count)
        if dim == 0:
            raise ValueError("the sources hold no coordinate, so there is no update.")
        for k, source in enumerate(self.sources):
            if source is not None and source.size != dim:
                self.reject(k, f"has {source.size:,} coordinates instead of {dim:,}")
        return dim

    def reject(self, k: int, reason: str) -> None:
        """Leave a client out from now on; the verdict is worked out again."""
        self.sources[k] = None
        self.reasons[self.clients[k]] = reason
        self._found = None

    def fail(self, k: int, reason: str) -> None:
        """Reject a client whose source could not be read on, and start again.

        Among several processes that is done when all of them know, at the next sum.
        """
        if self._processes is None:
            self.reject(k, reason)
            raise SourceFailed
        self._failed.setdefault(k, reason)

    def _everywhere(self, total: Tensor) -> Tensor:
        """Add up what all processes found; raise in all if a source failed in one."""
        if self._processes is None:
            return total
        flags = total.new_tensor([len(self._failed)])
        summed = self._processes.sum(torch.cat([total.flatten(), flags]))
        if summed[-1] != 0:
            self._reject_in_all(self._failed)
            self._failed.clear()
            raise SourceFailed
        return summed[:-1].view(total.shape)

    def _reject_in_all(self, failed: dict[int, str]) -> None:
        """Reject whom this process or another one cannot read."""
        for of_process in known(self._processes).objects(failed):
            for k, reason in of_process.items():
                # One that only others have: what differs is named later.
                if int(k) < len(self.sources) and self.sources[int(k)] is not None:
                    self.reject(int(k), reason)

    def share(self, processes: Processes, part: slice | None = None) -> None:
        """Share the coordinates with other processes, see `ShardedRule`; all do so together.

        This one reads `part` of them; None: as many as the others. All must aggregate the same, and
        get the seed of the first.
        """
        self._processes = processes
        own = self.reasons
        self._reject_in_all({k: own[who] for k, who in enumerate(self.clients) if who in own})
        processes.check_same(
            rule=str(self.rule),
            clients=self.clients,
            num_coordinates=self.dim,
            num_byzantine=self.num_byzantine,
            sample_counts=self._counts,
            count_cap=self._count_cap,
            layer_sizes=self._layer_sizes,
            max_memory=self.max_memory,
            dtypes=[
                source is not None and source.dtype == torch.float64 for source in self.sources
            ],
        )
        (self.seed, *_) = processes.objects(self.seed)
        if self.dim:
            self.part = processes.share(self.dim) if part is None else part

    def _aggregate(self) -> Aggregation:
        num_clients = len(self.sources)
        if not any(self.sources):
            return self._of(torch.full((1, num_clients, 1), torch.nan))
        is_few = self.dim <= max(FEW_COORDINATES, 2 * num_clients)
        if not is_few and self.rule.traits.can_stream:
            stream = Stream(
                partial(self._chunks, "reading"),
                torch.Size([1, self.dim, num_clients]),
                self._dtype,
                everywhere=self._everywhere,
                max_bytes=self._spare_bytes,
            )
            with suppress(NeedsWholeRows):  # It promises too much.
                return replace(self._of(stream), states=(None,))
        return self._of(self._in_memory(is_few=is_few))

    def _of(self, gradients: Tensor | Stream) -> Aggregation:
        """Aggregate; reject who is not finite."""
        facts = row_facts(gradients)
        (norms,), (is_finite,), (originals,) = facts.norms, facts.is_finite, facts.originals
        for k, source in enumerate(self.sources):
            if source is not None and not is_finite[k]:
                self.reject(k, self._why_not_finite(k))
        self.norms = np.where(is_finite, norms, np.nan)
        ids = self.clients
        self.copies = {ids[k]: ids[first] for k, first in enumerate(originals) if first != k}
        batch = Batch(
            gradients=gradients,
            num_byzantine=[self.num_byzantine],
            seeds=[self.seed],
            is_present=None if self._rejected_are_byzantine else torch.tensor([is_finite]),
            clients=[ids],
            sample_counts=None if self._counts is None else [self._counts],
            count_cap=self._count_cap,
            layer_sizes=self._layer_sizes,
            split=self._split,
            facts=facts,
        )
        is_rejected = torch.tensor([[source is None for source in self.sources]])
        return replace(aggregate(self.rule, batch), is_rejected=is_rejected)

    def _in_memory(self, *, is_few: bool) -> Tensor:
        """Let a rule that needs whole gradients have them, if they fit."""
        if self.rule.traits.needs_reference:
            raise ValueError(
                f"{self.rule} cannot be streamed, it compares the clients with the server's own "
                "gradient; call rule.inspect(..., reference=) on gradients in memory."
            )
        num_clients = len(self.sources)
        needed = PROGRAM_BYTES + num_clients * self.dim * 4 * self._dtype.itemsize
        if needed > self.max_memory:
            raise refusal(self.rule, f"that takes {needed / 1e9:.1f} GB")
        if self._processes is not None and not is_few:
            raise refusal(self.rule, "each process has a part of them")
        values = torch.zeros(num_clients, self.dim, dtype=self._dtype)
        for piece, rows in self._chunks("reading"):
            values[:, piece] = rows
        return self._everywhere(values).unsqueeze(0)

    # Reading.

    @property
    def _spare_bytes(self) -> int:
        return (self.max_memory - PROGRAM_BYTES) // 2

    def _chunks(self, what: str) -> Iterator[tuple[slice, Tensor]]:
        """Read all sources once, some coordinates at a time; a row is NaN if it is rejected."""
        cuts = self._cuts()
        widest = max((stop - start for start, stop in cuts), default=0)
        buffer = torch.full((len(self.sources), widest), torch.nan, dtype=self._dtype)
        rows = [k for k, source in enumerate(self.sources) if source is not None]
        for start, stop in cuts:
            values = buffer[:, : stop - start]
            mapped(lambda k: self._read_one(k, start, values[k]), rows)  # noqa: B023
            yield slice(start, stop), values
            if self._on_progress is not None:
                self._on_progress(what, stop - self.part.start, self.part.stop - self.part.start)

    def _cuts(self) -> list[tuple[int, int]]:
        """Cut the coordinates into chunks that fit the memory; none if there is nothing to read."""
        if not any(self.sources):
            return []
        per_coordinate = BYTES_PER_VALUE * len(self.sources) * self._dtype.itemsize // 4
        largest = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, self._spare_bytes // per_coordinate))
        # As wide as one another: the last is not a narrow one.
        first, width = self.part.start, self.part.stop - self.part.start
        num_chunks = -(-width // largest)
        cuts = [first + width * k // num_chunks for k in range(num_chunks + 1)]
        return list(pairwise(cuts))

    def _read_one(self, k: int, start: int, out: Tensor) -> None:
        source = self.sources[k]
        try:
            if source is None:
                raise SourceFailed
            source.read(start, out)
        except UnusableFile as error:
            out.zero_()
            self.fail(k, str(error))

    def _why_not_finite(self, k: int) -> str:
        """Name the tensor that has the first number that is not finite, or too large."""
        source = known(self.sources[k])
        at = self.dim
        try:
            at = source.first_not_finite(self.part)
        except UnusableFile as error:
            self.fail(k, str(error))
        if self._processes is not None:
            at = int(self._processes.gather(torch.tensor(at)).min())
        place = f" {source.place(at)}" if at < self.dim else ""
        return f"NaN, infinity or too large numbers{place}"


def _part_and_products(vector: Any, read: Tensor, index: slice) -> tuple[Tensor, Tensor]:
    """Return some of the update, and its inner products with the rows and with itself."""
    own = cut(vector, read, index)
    squared = own.double().square().sum(dim=-1, keepdim=True)
    return own[0], torch.cat([inner_products(read, own), squared], dim=-1)[0]


def refusal(rule: Rule, why: str) -> ValueError:
    """Return the error for a rule that needs whole gradients."""
    around = "put it inside gas(...), " if rule.traits.can_be_wrapped else ""
    return ValueError(
        f"{rule} cannot be streamed, it needs whole gradients ({why}); raise max_memory, {around}"
        "or call rule.inspect on gradients in memory."
    )


def parse_memory(text: int | str) -> int:
    """Read a number of bytes, such as "2GB" or "1.5 GiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?))?B?\s*", str(text).upper())
    if match is None:
        raise ValueError(f"max_memory must be a number of bytes such as '2GB', got {text!r}.")
    unit = (1024 if match[3] else 1000) ** (" KMGT".index(match[2] or " "))
    # A number beyond all floats is infinite: as much as any machine has.
    num_bytes = int(min(float(match[1]) * unit, 2.0**62))
    if num_bytes < SMALLEST_MEMORY:
        raise ValueError(
            f"max_memory must be at least {SMALLEST_MEMORY // 10**6}MB, which the program itself "
            f"needs, got {text!r}."
        )
    return num_bytes


class SourceFailed(Exception):  # noqa: N818  (named like TooManyByzantine)
    """A source could not be read on; its client is rejected now, and all starts again."""
