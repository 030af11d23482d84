"""Aggregation in bounded memory: gradients are read some coordinates at a time, in two passes.

The first pass adds up what the rule needs to decide (norms, and inner products or sums of squares
of every group), the second makes the update. Some rules take more passes, see `StreamedMatrix`.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf, isclose, isfinite
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outvote.files.safetensors_file import UnusableFile
from outvote.files.sources import Source, open_source
from outvote.precision import plain_torch
from outvote.receive import LARGEST
from outvote.rules import distances
from outvote.rules.aggregate import SMALLEST_NORM, resolve_num_byzantine
from outvote.rules.bulyan import Bulyan
from outvote.rules.clip import Clip
from outvote.rules.dnc import DnC
from outvote.rules.gas import GAS
from outvote.rules.mean import Mean
from outvote.rules.nnm import NNM
from outvote.rules.rule import (
    AffineRule,
    Aggregation,
    CoordinatewiseRule,
    Mixing,
    RoundInfo,
    Rule,
    Wrapper,
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
    mixed_counts,
)
from outvote.rules.split import explicit_split
from outvote.rules.streamed_matrix import (
    SUMMED_VALUES,
    ColumnStream,
    NeedsWholeRows,
    StreamedMatrix,
    TileMatrix,
    tile_cuts,
)
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed, seed_from
from outvote.text import shortened
from outvote.threads import CPU, mapped

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
    ) -> None:
        """Open the sources; nothing is read but headers."""
        self.rule = make_rule(rule) if isinstance(rule, str) else rule
        self.clients = tuple(range(len(sources))) if clients is None else tuple(clients)
        if len(self.clients) != len(sources) or len(set(self.clients)) != len(sources):
            raise ValueError(
                f"clients must be {len(sources)} different ids, one per source, got "
                f"{len(self.clients)}, {len(set(self.clients))} different."
            )
        if not sources:
            raise ValueError("sources must hold at least one client, got none.")
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
        self.dim = self._check_sizes()
        self.seed = seed_from(seed)
        self.num_byzantine = resolve_num_byzantine(
            self.rule, len(sources), num_byzantine, byzantine_fraction, when_too_many
        )
        if groups is not None and not isinstance(self.rule, GAS):
            raise ValueError(f"groups= is for gas alone, got it for {self.rule}.")
        check_cap(count_cap)
        self._counts = None if sample_counts is None else check_counts(sample_counts, len(sources))
        self._count_cap = count_cap
        self._groups = groups
        self._split = None if groups is None else explicit_split(groups, self.dim, CPU)
        self._on_progress = on_progress

    @property
    def entries(self) -> tuple[tuple[str, Any], ...]:
        """The named tensors of the sources that have names."""
        return next((s.entries for s in self.sources if s is not None and s.entries), ())

    @property
    def _layer_sizes(self) -> tuple[int, ...] | None:
        return tuple(entry.size for _, entry in self.entries) or None

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
        dots, squared = np.zeros(len(done.rows)), 0.0
        for piece, rows, vector in self._updates(done, "writing the update"):
            along = _inner_products(rows, vector)
            dots += along[:-1]
            squared += float(along[-1])
            yield piece, vector
        scale = self.norms[done.rows] * squared**0.5
        self.cosines[done.rows] = np.divide(dots, scale, where=scale > 0, out=scale * np.nan)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Read the sources that are not rejected once: slices, and ``[clients, coordinates]``.

        The values last until the next are asked for.
        """
        rows = [k for k, source in enumerate(self.sources) if source is not None]
        return self._chunks(rows, self._dtype(rows))

    def _dtype(self, rows: list[int]) -> torch.dtype:
        is_wide = any(known(self.sources[k]).dtype == torch.float64 for k in rows)
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
        self.norms[k] = np.nan
        self._round = None

    # The first pass.

    def _aggregate(self) -> "_Round":
        rows = [k for k, source in enumerate(self.sources) if source is not None]
        if not rows:
            return _Round([], Aggregation(), None, None)
        if self.dim <= max(FEW_COORDINATES, 2 * len(rows)) or not can_stream(self.rule):
            return self._in_memory(rows)
        dtype = self._dtype(rows)
        centre = self._sampled_centre(rows, dtype)
        while True:
            matrix = self._matrix(rows, dtype, centre)
            info = self._info(rows)
            scan = self._scan(matrix, info)
            left = [k for k, norm in zip(rows, scan.norms, strict=True) if isfinite(norm)]
            norms = [norm for norm in scan.norms if isfinite(norm)]
            for k in set(rows) - set(left):
                self.reject(k, self._why_not_finite(k))
            if not left:
                return _Round([], Aggregation(), None, None)
            middle = distances.central_client(norms)
            is_short = norms[middle] < SMALLEST_NORM and dtype != torch.float64
            is_off = left == rows and norms[centre] > LONG_CENTRE * norms[middle]
            if left == rows and not is_short and not is_off:
                break
            rows, centre = left, middle
            dtype = torch.float64 if is_short else dtype
        return self._decide(rows, matrix, info, norms, scan.sample)

    def _decide(
        self,
        rows: list[int],
        matrix: StreamedMatrix,
        info: RoundInfo,
        norms: list[float],
        sample: Tensor,
    ) -> "_Round":
        """Let the rule compute on what was added up."""
        self.norms[rows] = norms
        matrix.__dict__["norms"] = torch.tensor(norms, dtype=torch.float64).unsqueeze(0)
        matrix.originals = self._originals(matrix, norms, sample, info.clients)
        largest = torch.finfo(matrix.work_dtype).max
        matrix.sums_are_finite = max(norms) < largest / (2 * len(rows))
        try:
            if is_affine(self.rule):
                found = compute_weighted(self.rule, matrix, info)
                done = _Round(rows, found, matrix, info)
                return done if found.scores is not None else self._with_scores(done)
            return self._by_coordinate(_Round(rows, Aggregation(), matrix, info))
        except NeedsWholeRows as error:
            raise _refusal(self.rule, str(error)) from error

    def _with_scores(self, done: "_Round") -> "_Round":
        """Score the clients by their distance to the update."""
        far = torch.zeros(len(done.rows), dtype=torch.float64)
        for _, rows, vector in self._updates(done, "scoring"):
            far += _squared_distances(rows, vector)
        return replace_found(done, scores=far.sqrt().unsqueeze(0))

    def _by_coordinate(self, done: "_Round") -> "_Round":
        """Let the rule work on tile after tile: shares are averaged, distances added up."""
        matrix, info = known(done.matrix), known(done.info)
        far = torch.zeros(len(done.rows), dtype=torch.float64)
        shares: list[tuple[int, Tensor | None]] = []
        notes: dict[str, None] = {}
        found = Aggregation()
        finish: Finish = _same
        for piece, rows in self._read(matrix, "aggregating"):
            found, finish = compute_tile(self.rule, matrix.tile(rows), matrix, info)
            vector = self._clamped(known(found.vector)[0], done)
            far += _squared_distances(rows, vector)
            shares.append((piece.stop - piece.start, found.weights))
            notes |= dict.fromkeys(found.notes)
        weights = _merged_shares(shares, self.dim)
        scores = found.scores if found.scores is not None else far.sqrt().unsqueeze(0)
        result = Aggregation(
            weights=None if weights is None else finish(weights),
            scores=scores,
            num_groups=found.num_groups,
            notes=tuple(notes),
        )
        return _Round(done.rows, result, matrix, info)

    def _in_memory(self, rows: list[int]) -> "_Round":
        """Let a rule that needs whole gradients have them, if they fit."""
        needed = PROGRAM_BYTES + len(rows) * self.dim * 4 * 4
        if needed > self.max_memory:
            raise _refusal(self.rule, f"that takes {needed / 1e9:.1f} GB")
        values = torch.empty(len(self.sources), self.dim, dtype=self._dtype(rows)).fill_(torch.nan)
        for k in rows:
            self._read_one(k, 0, values[k])
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
        return _Round(rows, Aggregation(vector=verdict.update), None, None, verdict)

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
        stream = ColumnStream(partial(self._chunks, rows, dtype), shape, dtype)
        spare = (self.max_memory - PROGRAM_BYTES) // 2
        return StreamedMatrix(stream, centre=torch.tensor([centre]), max_bytes=spare)

    def _chunks(self, rows: list[int], dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once, some coordinates at a time."""
        budget = (self.max_memory - PROGRAM_BYTES) // 2
        per_coordinate = BYTES_PER_VALUE * len(rows) * (2 if dtype == torch.float64 else 1)
        largest = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, budget // per_coordinate))
        # As wide as one another: the last is not a narrow one.
        num_chunks = -(-self.dim // largest)
        cuts = [self.dim * k // num_chunks for k in range(num_chunks + 1)]
        buffer = torch.empty(len(rows), -(-self.dim // num_chunks), dtype=dtype)
        for start, stop in pairwise(cuts):
            values = buffer[:, : stop - start]
            mapped(lambda k: self._read_one(rows[k], start, values[k]), range(len(rows)))  # noqa: B023
            yield slice(start, stop), values

    def _read_one(self, k: int, start: int, out: Tensor) -> None:
        source = self.sources[k]
        try:
            if source is None:
                raise SourceFailed
            source.read(start, out)
        except UnusableFile as error:
            self.reject(k, str(error))
            raise SourceFailed from error

    def _read(self, matrix: StreamedMatrix, what: str) -> Iterator[tuple[slice, Tensor]]:
        """Read all rows once, and report how far that is."""
        for piece, rows in matrix.stream.chunks():
            yield piece, rows
            if self._on_progress is not None:
                self._on_progress(what, piece.stop, self.dim)

    def _sampled_centre(self, rows: list[int], dtype: torch.dtype) -> int:
        """Return a client of median norm in the first coordinates."""
        values = torch.empty(len(rows), min(self.dim, NUM_SAMPLED), dtype=dtype)
        for k, row in enumerate(rows):
            self._read_one(row, 0, values[k])
        norms = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
        return distances.central_client(norms.nan_to_num(nan=inf).tolist())

    def _scan(self, matrix: StreamedMatrix, info: RoundInfo) -> "_Scan":
        """Find the norms, and add up what the rule is known to need, in one pass."""
        scan = _Scan(matrix.num_clients)
        add = self._what_to_add(matrix, info)
        for piece, rows in self._read(matrix, "reading"):
            scan.add(rows)
            if all(map(isfinite, scan.squared)):
                for each in add:
                    each(piece, rows)
        return scan

    def _what_to_add(
        self, matrix: StreamedMatrix, info: RoundInfo
    ) -> list[Callable[[slice, Tensor], None]]:
        rule = self.rule
        if isinstance(rule, GAS) and matrix.num_clients > 1:
            groups = matrix.split(rule.split, rule.num_groups, info)
            inside = rule.inside_info(info, matrix.num_clients)
            reduce = reduction(rule.rule, inside.num_byzantine)
            sums = groups.sums(needs_values=rule.rule.traits.needs_values, reduce=reduce)
            return [] if sums is None else [sums.add]
        is_needed = isinstance(rule, AffineRule | Bulyan | NNM) and not isinstance(rule, Mean | DnC)
        if is_needed and self.dim > max(matrix.num_clients, distances.FEW_COORDINATES):
            products = _Products(matrix)
            matrix.set_products(lambda: products.total)
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
            if isclose(norms[a], norms[b], rel_tol=1e-6) and torch.equal(sample[a], sample[b])
        ]
        if not alike:
            return None
        is_equal = dict.fromkeys(alike, True)
        for _, rows in self._read(matrix, "comparing"):
            for a, b in alike:
                is_equal[a, b] = is_equal[a, b] and bool((rows[a] == rows[b]).all())
        first = [next((a for a in range(b) if is_equal.get((a, b))), b) for b in numbers]
        self.copies = {ids[b]: ids[a] for b, a in enumerate(first) if a != b}
        return None if first == list(numbers) else torch.tensor([first])

    def _why_not_finite(self, k: int) -> str:
        """Name the tensor that has the first number that is not finite, or too large."""
        source = known(self.sources[k])
        step = 1 << 20
        for start in range(0, self.dim, step):
            values = torch.empty(min(step, self.dim - start), dtype=torch.float64)
            source.read(start, values)
            is_bad = ~(values.abs() <= LARGEST)
            if bool(is_bad.any()):
                at = start + int(is_bad.nonzero()[0])
                break
        else:
            return "NaN, infinity or too large numbers"
        for name, entry in source.entries:
            if at < entry.size:
                return f"NaN, infinity or too large numbers in {shortened(name)!r}"
            at -= entry.size
        return f"NaN, infinity or too large numbers at coordinate {at}"

    # The second pass.

    def _updates(self, done: "_Round", what: str) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the coordinates, the rows there, and the update."""
        if done.matrix is None:
            vector = done.found.vector
            dtype = torch.float32 if vector is None else vector.dtype
            for piece, rows in self._chunks(done.rows, dtype) if done.rows else ():
                yield piece, rows, known(vector)[piece]
            return
        with plain_torch(CPU):
            for piece, rows in self._read(done.matrix, what):
                tile = done.matrix.tile(rows)
                if is_affine(self.rule):
                    vector = tile.vector(done.found)
                else:
                    found, _ = compute_tile(self.rule, tile, done.matrix, known(done.info))
                    vector = known(found.vector)
                yield piece, rows, self._clamped(vector[0], done)

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
            scores[done.rows] = found.scores[0].double().numpy()
        is_unknown = bool(done.rows) and found.weights is None
        if found.weights is not None:
            weights[done.rows] = found.weights[0].double().numpy()
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
    num_bytes = int(float(match[1]) * UNITS[match[2].upper()])
    if num_bytes < SMALLEST_MEMORY:
        raise ValueError(
            f"max_memory must be at least {SMALLEST_MEMORY // 10**6}MB, which the program itself "
            f"needs, got {text!r}."
        )
    return num_bytes


def can_stream(rule: Rule) -> bool:
    """Return whether a rule works on some coordinates at a time."""
    if isinstance(rule, GAS):
        return True  # The rule inside gets whole groups.
    if isinstance(rule, Clip):
        is_known = type(rule.rule).__module__.startswith("outvote.")
        return can_stream(rule.rule) and (is_known or isinstance(rule.rule, CoordinatewiseRule))
    if isinstance(rule, Mixing):
        return type(rule).compute is Mixing.compute and can_stream(rule.rule)
    for kind in (AffineRule, CoordinatewiseRule):
        if isinstance(rule, kind):
            return type(rule).compute is kind.compute
    return not isinstance(rule, Wrapper) and bool(rule.traits.can_stream)


def is_affine(rule: Rule) -> bool:
    """Return whether the update is an average of the clients, whose weights say all."""
    if isinstance(rule, Mixing):
        return is_affine(rule.rule)
    return isinstance(rule, AffineRule | GAS)


Finish = Callable[[Tensor], Tensor]


def compute_tile(
    rule: Rule, tile: TileMatrix, whole: StreamedMatrix, info: RoundInfo
) -> tuple[Aggregation, Finish]:
    """Let a rule aggregate some coordinates; what comes second turns shares into the weights."""
    if isinstance(rule, Clip) and not is_affine(rule.rule):
        factors = rule.factors(whole.norms, info.num_byzantine)
        inside = rule.inside_info(info, whole.num_clients)
        return compute_tile(rule.rule, tile.scaled(factors), whole.scaled(factors), inside)
    if not isinstance(rule, Mixing):
        return compute_weighted(rule, tile, info), _same
    mixture = rule.mixture(whole, info)
    inside = rule.inside_info(info, whole.num_clients)
    if info.counts is not None:
        mixture, counts = mixed_counts(mixture, info.counts, inside.num_byzantine)
        inside = replace(inside, counts=counts)
    found, finish = compute_tile(rule.rule, tile.mixed(mixture), whole.mixed(mixture), inside)

    def unmixed(shares: Tensor) -> Tensor:
        weights = Aggregation(weights=finish(shares)).unmixed(mixture).weights
        return known(weights)

    return replace(found, scores=None), unmixed


def _same(shares: Tensor) -> Tensor:
    return shares


def replace_found(done: "_Round", **changes: Any) -> "_Round":
    """Return a round whose result has some parts changed."""
    return _Round(done.rows, replace(done.found, **changes), done.matrix, done.info)


def _merged_shares(shares: list[tuple[int, Tensor | None]], dim: int) -> Tensor | None:
    """Return the shares in all coordinates, from those in pieces of them."""
    first = shares[0][1]
    if first is None or all(own is not None and torch.equal(own, first) for _, own in shares):
        return None if first is None else first.double()
    parts = torch.stack([known(own).double() * width for width, own in shares])
    # Shares of coordinates are counts: whole numbers, divided once. Those by samples are not.
    whole = parts.round()
    return (whole if torch.allclose(parts, whole, rtol=0, atol=1e-6) else parts).sum(dim=0) / dim


def _squared_distances(rows: Tensor, vector: Tensor) -> Tensor:
    far = [_far(rows[:, a:b], vector[a:b]) for a, b in tile_cuts(rows)]
    return torch.stack(far).sum(dim=0)


def _far(rows: Tensor, vector: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(rows - vector.to(rows.dtype), dim=-1, dtype=torch.float64)
    if not bool(norms.isfinite().all()):
        norms = torch.linalg.vector_norm(rows.double() - vector, dim=-1)
    squared: Tensor = norms.square()
    return squared


def _inner_products(rows: Tensor, vector: Tensor) -> np.ndarray:
    """Return the inner products of the rows with a vector, and last of it with itself, float64."""
    vector = vector.to(rows.dtype)

    def multiply(start: int) -> Tensor:
        own = vector[start : start + NUM_SAMPLED]
        along = rows[:, start : start + NUM_SAMPLED] @ own
        return torch.cat([along, torch.dot(own, own).unsqueeze(0)]).double()

    parts = mapped(multiply, range(0, len(vector), NUM_SAMPLED))
    total: np.ndarray = torch.stack(parts).sum(dim=0).numpy()
    if np.isfinite(total).all() or rows.dtype == torch.float64:
        return total
    return _inner_products(rows.double(), vector)


def _refusal(rule: Rule, why: str) -> ValueError:
    return ValueError(
        f"{rule} cannot be streamed, it needs whole gradients ({why}); raise max_memory, put it "
        "inside gas(...), or call rule.inspect on gradients in memory."
    )


class SourceFailed(Exception):  # noqa: N818  (named like TooManyByzantine)
    """A source could not be read on; its client is rejected now, and all starts again."""


class _Round:
    """What came of the first pass: the rows that are left, and the result of the rule."""

    def __init__(
        self,
        rows: list[int],
        found: Aggregation,
        matrix: StreamedMatrix | None,
        info: RoundInfo | None,
        verdict: Verdict | None = None,
    ) -> None:
        self.rows, self.found, self.matrix, self.info = rows, found, matrix, info
        self.verdict = verdict


class _Scan:
    """The squared norms of the clients, added up."""

    def __init__(self, num_clients: int) -> None:
        self.squared = [0.0] * num_clients
        self.sample = torch.empty(num_clients, 0)
        """Some of the values of each: only clients alike in them can be copies."""

    def add(self, rows: Tensor) -> None:
        """Add the squares of some coordinates."""
        if not self.sample.numel():
            step = max(1, rows.shape[1] // distances.NUM_COMPARED)
            self.sample = rows[:, ::step].clone()
        found = mapped(lambda k: _sum_of_squares(rows[k]), range(len(rows)))
        self.squared = [a + b for a, b in zip(self.squared, found, strict=True)]

    @property
    def norms(self) -> list[float]:
        """The norms; what is not finite was not, or was too large."""
        return [each**0.5 for each in self.squared]


def _sum_of_squares(row: Tensor) -> float:
    parts = [float(torch.dot(part, part)) for part in row.split(1 << 16)]
    total = sum(parts)
    # Short numbers underflow in float32, long ones overflow.
    if row.dtype == torch.float32 and not 1e-30 < total < 1e30:
        total = float(row.double().square().sum())
    if total > LARGEST and not bool((row.abs() <= LARGEST).all()):
        return inf
    return total


class _Products:
    """The inner products of the clients relative to the central one, added up."""

    def __init__(self, matrix: StreamedMatrix) -> None:
        self.centre = matrix.centre
        num_clients = matrix.num_clients
        self.total = torch.zeros(1, num_clients, num_clients, dtype=torch.float64)

    def add(self, piece: slice, rows: Tensor) -> None:
        """Add the products of some coordinates."""
        del piece

        def multiply(cut: tuple[int, int]) -> Tensor:
            values = rows[:, cut[0] : cut[1]].mT.unsqueeze(0)
            middle = distances.of_client(values, self.centre)
            return distances.with_itself(values - middle).double()

        self.total += torch.stack(mapped(multiply, tile_cuts(rows, SUMMED_VALUES))).sum(dim=0)
