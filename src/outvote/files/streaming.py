"""Aggregation in bounded memory: gradients are read some coordinates at a time, in two passes.

The first pass adds up what the rule needs to decide (norms, and inner products or sums of squares
of every group), the second makes the update. Some rules take more passes, see `StreamedMatrix`.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf, isclose, isfinite
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.files.processes import Processes
from outvote.files.safetensors_file import UnusableFile
from outvote.files.sources import Source, open_source
from outvote.files.streamed_rule import (
    Finish,
    can_stream,
    compute_tile,
    is_affine,
    merged_shares,
    refusal,
    same,
)
from outvote.files.sums import ProductSum, Scan, inner_products, squared_distances
from outvote.ops import distances
from outvote.ops.precision import plain_torch
from outvote.ops.threads import CPU, mapped
from outvote.receive import LARGEST
from outvote.rules.aggregate import check_clients, resolve_num_byzantine
from outvote.rules.bulyan import Bulyan
from outvote.rules.column_stream import ColumnStream, NeedsWholeRows
from outvote.rules.dnc import DnC
from outvote.rules.gas import GAS
from outvote.rules.mean import Mean
from outvote.rules.nnm import NNM
from outvote.rules.norm_filter import NormFilter, beyond
from outvote.rules.row_facts import SMALLEST_NORM
from outvote.rules.rule import (
    AffineRule,
    Aggregation,
    RoundInfo,
    Rule,
    base_num_byzantine,
    compute_weighted,
    known,
    lowered_inside,
    reduction,
)
from outvote.rules.rule_spec import make_rule
from outvote.rules.sample_counts import (
    COUNT_CAP,
    capped_counts,
    capped_note,
    check_cap,
    check_counts,
)
from outvote.rules.split import Split, explicit_split
from outvote.rules.streamed_matrix import StreamedMatrix
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from
from outvote.text import shortened

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
NUM_SAMPLED = 1 << 16
# A client much longer than the median is no centre: distances would lose digits.
LONG_CENTRE = 4.0
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


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
    ) -> None:
        """Open the sources; nothing is read but headers."""
        self.rule = make_rule(rule) if isinstance(rule, str) else rule
        if not sources:
            raise ValueError("sources must hold at least one client, got none.")
        self.clients = check_clients(clients, len(sources))
        self.max_memory = parse_memory(max_memory)
        self.reasons: dict[Hashable, str] = {}
        """Why clients were rejected."""
        self.copies: dict[Hashable, Hashable] = {}
        """Which clients sent what another sent, to the last bit, and that other."""
        self._round: _Round | None = None
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
        check_cap(count_cap)
        self._counts = None if sample_counts is None else check_counts(sample_counts, len(sources))
        self._count_cap = count_cap
        self._groups, self._split = groups, self._explicit(groups)
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
            while self._round is None:
                try:
                    self._round = self._aggregate()
                except SourceFailed:
                    continue  # One more client is rejected: start again without it.
        return self._as_verdict(self._round)

    def update(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the sources once more, and yield the update in the order of the coordinates."""
        self.verdict()
        done = known(self._round)
        along = np.zeros(len(done.rows) + 1)
        for piece, rows, vector in self._updates(done, "writing the update"):
            along += inner_products(rows, vector)
            yield piece, vector
        along = self._everywhere(torch.from_numpy(along)).numpy()
        scale = self.norms[done.rows] * along[-1] ** 0.5
        self.cosines[done.rows] = np.divide(along[:-1], scale, where=scale > 0, out=scale * np.nan)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the sources that are not rejected once: slices, and ``[clients, coordinates]``.

        The values last until the next are asked for.
        """
        rows = [k for k, source in enumerate(self.sources) if source is not None]
        return self._chunks(rows, self._dtype(rows))

    @property
    def num_chunks(self) -> int:
        """How many pieces `update` yields."""
        rows = known(self._round).rows
        return len(self._cuts(len(rows), self._work_dtype(known(self._round)))) if rows else 0

    def _dtype(self, rows: list[int]) -> torch.dtype:
        is_wide = any(known(self.sources[k]).dtype == torch.float64 for k in rows)
        return torch.float64 if is_wide else torch.float32

    def _explicit(self, groups: Sequence[Sequence[int]] | None) -> Split | None:
        if groups is not None and not isinstance(self.rule, GAS):
            raise ValueError(f"groups= is for gas alone, got it for {self.rule}.")
        return None if groups is None else explicit_split(groups, self.dim, CPU)

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
        self.norms[k] = np.nan
        self._round = None

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
            for failed in self._processes.objects(self._failed):
                for k, reason in failed.items():
                    self.reject(int(k), reason)
            self._failed.clear()
            raise SourceFailed
        return summed[:-1].view(total.shape)

    def share(self, processes: Processes, part: slice | None = None) -> None:
        """Share the coordinates with other processes, see `ShardedRule`; all do so together.

        This one reads `part` of them; None: as many as the others. All must aggregate the same, and
        get the seed of the first.
        """
        self._processes = processes
        reasons = {
            k: self.reasons[client]
            for k, client in enumerate(self.clients)
            if client in self.reasons
        }
        for of_process in processes.objects(reasons):
            for k, reason in of_process.items():
                # One that only others have: what differs is named below.
                if int(k) < len(self.sources) and self.sources[int(k)] is not None:
                    self.reject(int(k), reason)
        wide = [source is not None and source.dtype == torch.float64 for source in self.sources]
        processes.check_same(
            rule=str(self.rule),
            clients=self.clients,
            num_coordinates=self.dim,
            num_byzantine=self.num_byzantine,
            sample_counts=self._counts,
            count_cap=self._count_cap,
            layer_sizes=self._layer_sizes,
            max_memory=self.max_memory,
            dtypes=wide,
        )
        (self.seed, *_) = processes.objects(self.seed)
        if self.dim:
            self.part = processes.share(self.dim) if part is None else part

    # The first pass.

    def _aggregate(self) -> "_Round":
        rows = [k for k, source in enumerate(self.sources) if source is not None]
        if not rows:
            return _Round([])
        if self.dim <= max(FEW_COORDINATES, 2 * len(rows)) or not can_stream(self.rule):
            return self._in_memory(rows)
        dtype = self._dtype(rows)
        centre = self._sampled_centre(rows, dtype)
        while True:
            matrix = self._matrix(rows, dtype, centre)
            rule, info = self._inside_filter(self._info(rows), len(rows))
            scan = self._scan(rule, matrix, info)
            left = [k for k, norm in zip(rows, scan.norms, strict=True) if isfinite(norm)]
            norms = [norm for norm in scan.norms if isfinite(norm)]
            for k in sorted(set(rows) - set(left)):
                self.reject(k, self._why_not_finite(k))
            if not left:
                return _Round([])
            middle = distances.central_client(norms)
            is_short = norms[middle] < SMALLEST_NORM and dtype != torch.float64
            is_off = left == rows and norms[centre] > LONG_CENTRE * norms[middle]
            if left == rows and not is_short and not is_off:
                break
            rows, centre = left, middle
            dtype = torch.float64 if is_short else dtype
        self.norms[rows] = norms
        matrix.originals = self._originals(matrix, norms, scan.sample, info.clients)
        done = _Round(rows, rule=rule, matrix=matrix, info=info, whole=matrix)
        if isinstance(self.rule, NormFilter):
            done = self._filtered(done, self.rule, norms)
        return self._decide(done)

    def _inside_filter(self, info: RoundInfo, num_clients: int) -> tuple[Rule, RoundInfo]:
        """Return the rule that computes if a filter drops nobody, and what it is given."""
        if not isinstance(self.rule, NormFilter):
            return self.rule, info
        return self.rule.rule, self.rule.inside_info(info, num_clients)

    def _filtered(self, done: "_Round", rule: NormFilter, norms: list[float]) -> "_Round":
        """Leave out clients that are too long, as `NormFilter` does, and read the others again."""
        outer = self._info(done.rows)
        is_kept, excess = rule.kept(torch.tensor([norms], dtype=torch.float64), outer.num_byzantine)
        if bool(is_kept.all()):
            return done
        index = is_kept[0].nonzero().flatten()
        whole = known(done.whole)
        stream = whole.stream.changed(lambda rows: rows[index], len(index))
        centre = distances.central_client([norms[k] for k in index.tolist()])
        matrix = StreamedMatrix(stream, centre=torch.tensor([centre]), max_bytes=whole.max_bytes)
        if whole.originals is not None:
            # Copies are as long as one another: their originals are left too.
            firsts = whole.originals[0, index]
            matrix.originals = torch.searchsorted(index, firsts).unsqueeze(0)
        info = rule.inside_info(rule.left_info(outer, 0, is_kept[0]), len(index))
        self._scan(done.inner_rule, matrix, info)
        return replace(done, matrix=matrix, info=info, index=index, excess=excess[0])

    def _decide(self, done: "_Round") -> "_Round":
        """Let the rule compute on what was added up."""
        matrix, rule = known(done.matrix), done.inner_rule
        norms = torch.from_numpy(self.norms[done.rows])
        seen = norms if done.index is None else norms[done.index]
        matrix.__dict__["norms"] = seen.unsqueeze(0)
        largest = torch.finfo(matrix.work_dtype).max
        matrix.sums_are_finite = float(seen.max()) < largest / (2 * len(seen))
        try:
            if is_affine(rule):
                found = compute_weighted(rule, matrix, known(done.info))
                done = replace(done, found=found)
                return done if found.scores is not None else self._with_scores(done)
            return self._by_coordinate(done)
        except NeedsWholeRows as error:
            raise refusal(self.rule, str(error)) from error

    def _with_scores(self, done: "_Round") -> "_Round":
        """Score the clients by their distance to the update."""
        far = torch.zeros(len(done.rows), dtype=torch.float64)
        for _, rows, vector in self._updates(done, "scoring"):
            far += squared_distances(rows, vector)
        return replace(done, far=self._everywhere(far).sqrt())

    def _by_coordinate(self, done: "_Round") -> "_Round":
        """Let the rule work on tile after tile: shares are averaged, distances added up."""
        matrix, info = known(done.matrix), known(done.info)
        far = torch.zeros(len(done.rows), dtype=torch.float64)
        shares: list[tuple[int, Tensor | None]] = []
        notes: dict[str, None] = {}
        found = Aggregation()
        finish: Finish = same
        for piece, rows in self._read(known(done.whole), "aggregating"):
            tile = matrix.tile(done.seen(rows))
            found, finish = compute_tile(done.inner_rule, tile, matrix, info)
            vector = self._clamped(known(found.vector)[0], done)
            far += squared_distances(rows, vector)
            shares.append((piece.stop - piece.start, found.weights))
            notes |= dict.fromkeys(found.notes)
        weights = merged_shares(shares, self.dim, matrix.stream.everywhere)
        far = self._everywhere(far).sqrt()
        result = Aggregation(
            weights=None if weights is None else finish(weights),
            scores=found.scores,
            num_groups=found.num_groups,
            notes=tuple(notes),
        )
        return replace(done, found=result, far=far)

    def _in_memory(self, rows: list[int]) -> "_Round":
        """Let a rule that needs whole gradients have them, if they fit."""
        if self.rule.traits.needs_reference:
            raise ValueError(
                f"{self.rule} cannot be streamed, it compares the clients with the server's own "
                "gradient; call rule.inspect(..., reference=) on gradients in memory."
            )
        needed = PROGRAM_BYTES + len(rows) * self.dim * 4 * self._dtype(rows).itemsize
        if needed > self.max_memory:
            raise refusal(self.rule, f"that takes {needed / 1e9:.1f} GB")
        if self._processes is not None and not can_stream(self.rule):
            raise refusal(self.rule, "each process has a part of them")
        values = torch.zeros(len(self.sources), self.dim, dtype=self._dtype(rows))
        for k in rows:
            self._read_one(k, self.part.start, values[k, self.part])
        values = self._everywhere(values)
        values[[k for k in range(len(values)) if k not in rows]] = torch.nan
        f = self.num_byzantine
        verdict = self.rule.inspect(
            values,
            num_byzantine=f,
            seed=self.seed,
            clients=self.clients,
            groups=self._groups,
            sample_counts=self._counts,
            count_cap=self._count_cap,
            layer_sizes=self._layer_sizes,
        )
        for k, client in enumerate(self.clients):
            if client in verdict.rejected and k in rows:
                self.reject(k, self._why_not_finite(k))
        rows = [k for k in rows if self.sources[k] is not None]
        norms = torch.linalg.vector_norm(values[rows], dim=-1, dtype=torch.float64)
        self.norms[rows] = norms.numpy()
        ids = self.clients
        for b, k in enumerate(rows):
            same = [a for a in rows[:b] if torch.equal(values[a], values[k])]
            if same:
                self.copies[ids[k]] = ids[same[0]]
        return _Round(rows, Aggregation(vector=verdict.update), verdict=verdict)

    def _info(self, rows: list[int]) -> RoundInfo:
        num_received = len(self.sources)
        left = max(0, self.num_byzantine - (num_received - len(rows)))
        counts = None
        if self._counts is not None:
            counts = capped_counts([self._counts[k] for k in rows], left, self._count_cap)
        return RoundInfo(
            num_byzantine=left,
            counts=None if counts is None else torch.from_numpy(counts),
            stream=RandomStream((self.seed,)),
            num_received=num_received,
            clients=tuple(self.clients[k] for k in rows),
            split=self._split,
            layer_sizes=self._layer_sizes,
            wants_weights=True,
        )

    # Reading.

    def _matrix(self, rows: list[int], dtype: torch.dtype, centre: int) -> StreamedMatrix:
        shape = torch.Size([1, self.dim, len(rows)])
        chunks = partial(self._chunks, rows, dtype)
        stream = ColumnStream(chunks, shape, dtype, self._everywhere)
        spare = (self.max_memory - PROGRAM_BYTES) // 2
        return StreamedMatrix(stream, centre=torch.tensor([centre]), max_bytes=spare)

    def _chunks(self, rows: list[int], dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once, some coordinates at a time."""
        cuts = self._cuts(len(rows), dtype)
        widest = max(stop - start for start, stop in cuts)
        buffer = torch.empty(len(rows), widest, dtype=dtype)
        for start, stop in cuts:
            values = buffer[:, : stop - start]
            mapped(lambda k: self._read_one(rows[k], start, values[k]), range(len(rows)))  # noqa: B023
            yield slice(start, stop), values

    def _cuts(self, num_rows: int, dtype: torch.dtype) -> list[tuple[int, int]]:
        """Cut the coordinates into chunks that fit the memory."""
        budget = (self.max_memory - PROGRAM_BYTES) // 2
        per_coordinate = BYTES_PER_VALUE * num_rows * (2 if dtype == torch.float64 else 1)
        largest = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, budget // per_coordinate))
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

    def _read(self, matrix: StreamedMatrix, what: str) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once, and report how far that is."""
        for piece, rows in matrix.stream.chunks():
            yield piece, rows
            if self._on_progress is not None:
                done = piece.stop - self.part.start
                self._on_progress(what, done, self.part.stop - self.part.start)

    def _sampled_centre(self, rows: list[int], dtype: torch.dtype) -> int:
        """Return a client of median norm in the first coordinates."""
        start, stop = self._cuts(len(rows), dtype)[0]
        width = min(stop - start, NUM_SAMPLED)
        values = torch.empty(len(rows), width, dtype=dtype)
        for k, row in enumerate(rows):
            self._read_one(row, self.part.start, values[k])
        squared = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64).square()
        squared = self._everywhere(squared)
        return distances.central_client(squared.nan_to_num(nan=inf).tolist())

    def _scan(self, rule: Rule, matrix: StreamedMatrix, info: RoundInfo) -> Scan:
        """Find the norms, and add up what the rule is known to need, in one pass."""
        scan = Scan(matrix.num_clients)
        add = self._what_to_add(rule, matrix, info)
        for piece, rows in self._read(matrix, "reading"):
            scan.add(rows)
            if all(map(isfinite, scan.squared)):
                for each in add:
                    each(piece, rows)
        squared = torch.tensor(scan.squared, dtype=torch.float64)
        scan.squared = self._everywhere(squared).tolist()
        return scan

    def _what_to_add(
        self, rule: Rule, matrix: StreamedMatrix, info: RoundInfo
    ) -> list[Callable[[slice, Tensor], None]]:
        if isinstance(rule, GAS) and matrix.num_clients > 1:
            groups = matrix.split(rule.split, rule.num_groups, info)
            inside = rule.inside_info(info, matrix.num_clients)
            reduce = reduction(rule.rule, inside.num_byzantine)
            sums = groups.sums(needs_values=rule.rule.traits.needs_values, reduce=reduce)
            return [] if sums is None else [sums.add]
        is_needed = isinstance(rule, AffineRule | Bulyan | NNM) and not isinstance(rule, Mean | DnC)
        if is_needed and self.dim > max(matrix.num_clients, distances.FEW_COORDINATES):
            products = ProductSum(matrix)
            matrix.set_products(lambda: self._everywhere(products.own))
            return [products.add]
        return []

    def _originals(
        self, matrix: StreamedMatrix, norms: list[float], sample: Tensor, ids: tuple[Hashable, ...]
    ) -> Tensor | None:
        """Return the first client equal to each, if there are copies."""
        numbers = range(len(norms))
        alike = [
            (a, b)
            for b in numbers
            for a in range(b)
            # Rounded in another way where another row starts in memory.
            if isclose(norms[a], norms[b], rel_tol=1e-6)
        ]
        alike = self._equal_everywhere(alike, [sample])
        alike = self._equal_everywhere(alike, (rows for _, rows in self._read(matrix, "comparing")))
        if not alike:
            return None
        first = list(numbers)
        for a, b in alike:
            first[b] = min(first[b], a)
        self.copies = {ids[b]: ids[a] for b, a in enumerate(first) if a != b}
        return None if first == list(numbers) else torch.tensor([first])

    def _equal_everywhere(
        self, pairs: list[tuple[int, int]], parts: Iterable[Tensor]
    ) -> list[tuple[int, int]]:
        """Return the pairs of rows that are equal in all parts of the values."""
        if not pairs:
            return []
        is_unequal = torch.zeros(len(pairs), dtype=torch.float64)
        for rows in parts:
            for number, (a, b) in enumerate(pairs):
                if not is_unequal[number]:
                    is_unequal[number] = float(not torch.equal(rows[a], rows[b]))
        counts = self._everywhere(is_unequal).tolist()
        return [pair for pair, count in zip(pairs, counts, strict=True) if not count]

    def _why_not_finite(self, k: int) -> str:
        """Name the tensor that has the first number that is not finite, or too large."""
        source = known(self.sources[k])
        at = self._first_not_finite(k)
        if at == self.dim:
            return "NaN, infinity or too large numbers"
        for name, entry in source.entries:
            if at < entry.size:
                return f"NaN, infinity or too large numbers in {shortened(name)!r}"
            at -= entry.size
        return f"NaN, infinity or too large numbers at coordinate {at}"

    def _first_not_finite(self, k: int) -> int:
        """Return the first coordinate of a client that is not finite, or too large."""
        step, found = 1 << 20, self.dim
        for start in range(self.part.start, self.part.stop, step):
            values = torch.empty(min(step, self.part.stop - start), dtype=torch.float64)
            self._read_one(k, start, values)
            is_bad = ~(values.abs() <= LARGEST)
            if bool(is_bad.any()):
                found = start + int(is_bad.nonzero()[0])
                break
        if self._processes is None:
            return found
        return int(self._processes.gather(torch.tensor(found)).min())

    # The second pass.

    def _updates(self, done: "_Round", what: str) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the coordinates, the rows there, and the update."""
        if done.matrix is None or done.whole is None:
            vector = done.found.vector
            dtype = self._work_dtype(done)
            for piece, rows in self._chunks(done.rows, dtype) if done.rows else ():
                yield piece, rows, known(vector)[piece]
            return
        with plain_torch(CPU):
            for piece, rows in self._read(done.whole, what):
                tile = done.matrix.tile(done.seen(rows))
                if is_affine(done.inner_rule):
                    vector = tile.vector(done.found)
                else:
                    found, _ = compute_tile(done.inner_rule, tile, done.matrix, known(done.info))
                    vector = known(found.vector)
                yield piece, rows, self._clamped(vector[0], done)

    @staticmethod
    def _work_dtype(done: "_Round") -> torch.dtype:
        if done.whole is not None:
            return done.whole.work_dtype
        vector = done.found.vector
        return torch.float32 if vector is None else vector.dtype

    def _clamped(self, vector: Tensor, done: "_Round") -> Tensor:
        largest = torch.finfo(vector.dtype).max
        if float(self.norms[done.rows].max()) > largest / 8:
            return vector.clamp(min=-largest, max=largest)
        return vector

    def _as_verdict(self, done: "_Round") -> Verdict:
        if done.verdict is not None:
            return replace(done.verdict, update=None)
        num = len(self.sources)
        scores, weights = np.full(num, np.inf), np.zeros(num)
        found = done.found
        if found.scores is not None:
            own = found.scores[0].double()
            # Those that a filter dropped are more suspicious than all who are left.
            others = own if done.excess is None else beyond(own, done.excess)
            scores[done.rows] = done.of_all(own, others).numpy()
        elif done.far is not None:
            scores[done.rows] = done.far.numpy()
        is_unknown = bool(done.rows) and found.weights is None
        if found.weights is not None:
            nobody = torch.zeros(len(done.rows), dtype=torch.float64)
            weights[done.rows] = done.of_all(found.weights[0].double(), nobody).numpy()
        num_left = len(done.rows)
        left = max(0, self.num_byzantine - (num - num_left))
        return Verdict(
            update=None,
            scores=scores,
            weights=None if is_unknown else weights,
            clients=self.clients,
            rejected=[client for k, client in enumerate(self.clients) if k not in done.rows],
            num_byzantine=self.num_byzantine,
            base_num_byzantine=base_num_byzantine(self.rule, left, max(1, num_left)),
            num_groups=found.num_groups,
            seed=self.seed,
            notes=found.notes
            + lowered_inside(self.rule, left, max(1, num_left))
            + self._capped_note(done.rows, left),
        )

    def _capped_note(self, rows: list[int], num_byzantine: int) -> tuple[str, ...]:
        if self._counts is None or not rows:
            return ()
        clients, counts = [self.clients[k] for k in rows], [self._counts[k] for k in rows]
        return capped_note(clients, counts, num_byzantine, self._count_cap)


def parse_memory(text: int | str) -> int:
    """Read a number of bytes, such as "2GB" or "1.5 GiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"max_memory must be a number of bytes such as '2GB', got {text!r}.")
    # A number beyond all floats is infinite: as much as any machine has.
    num_bytes = int(min(float(match[1]) * UNITS[match[2].upper()], 2.0**62))
    if num_bytes < SMALLEST_MEMORY:
        raise ValueError(
            f"max_memory must be at least {SMALLEST_MEMORY // 10**6}MB, which the program itself "
            f"needs, got {text!r}."
        )
    return num_bytes


class SourceFailed(Exception):  # noqa: N818  (named like TooManyByzantine)
    """A source could not be read on; its client is rejected now, and all starts again."""


@dataclass(frozen=True, slots=True)
class _Round:
    """What came of the first pass: the rows that are left, and the result of the rule."""

    rows: list[int]
    found: Aggregation = field(default_factory=Aggregation)
    rule: Rule | None = None
    """The rule that computes: that inside a filter."""
    matrix: StreamedMatrix | None = None
    """What it computes on; None: all was in memory."""
    info: RoundInfo | None = None
    whole: StreamedMatrix | None = None
    """All rows; those that a filter dropped are not in `matrix`."""
    index: Tensor | None = None
    """Which of the rows are in `matrix`; None: all."""
    excess: Tensor | None = None
    """How much longer than allowed the rows are, where a filter dropped some."""
    far: Tensor | None = None
    """The distances of the rows to the update, if they are the scores."""
    verdict: Verdict | None = None

    @property
    def inner_rule(self) -> Rule:
        """The rule that computes."""
        return known(self.rule)

    def seen(self, rows: Tensor) -> Tensor:
        """Return those of some rows that the rule sees."""
        return rows if self.index is None else rows[self.index]

    def of_all(self, values: Tensor, others: Tensor) -> Tensor:
        """Return what belongs to the rows in `matrix`, and for the other rows `others`."""
        return values if self.index is None else others.index_copy(0, self.index, values)
