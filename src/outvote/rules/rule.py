"""What a rule is: its declarations, what it is given, what it returns, and the kinds of rules.

A rule computes an `Aggregation` from a `ClientMatrix` and a `RoundInfo`. An affine rule weighs the
clients by the distances between them, a coordinate-wise rule reduces every coordinate alone, a
vector rule takes one matrix of rows at a time. A wrapper holds a rule; a mixing is a wrapper that
replaces the clients by averages of them.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from outvote.axes import Columns, Mixture, PerClient, PerCoordinate
from outvote.errors import NAMES_OF_F, an, belongs_to_call, no_argument, warn_notes
from outvote.flat import to_float
from outvote.ops.order import counts_between
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.groups import Split
from outvote.rules.sample_counts import COUNT_CAP, mixed_counts
from outvote.rules.values import StreamedVector
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed
from outvote.signatures import keywords_of, takes_what, with_hints

Part = TypeVar("Part")
# How far weights in half precision may be from a sum of 1.
ROUNDING = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a rule declares about itself; a subclass inherits what it leaves None or empty."""

    uses_num_byzantine: bool = True
    """Whether a call must give the number of Byzantine clients, or a fraction."""
    has_state: bool = False
    """Whether it gets ``info.state`` and returns the next one; runs are computed one by one."""
    needs_reference: bool = False
    """Whether it needs ``info.reference``, a gradient that the server computed on clean data."""
    needs_model: bool = False
    """Whether it needs ``info.model``, the current model as a vector."""
    can_be_wrapped: bool = True
    """Whether gas, nnm, bucketing and clip may hold it."""
    is_batched: bool = True
    """Whether it computes several runs at once; if not, it always gets one run."""
    selects_clients: bool | None = None
    """Whether it keeps some clients as a whole and drops the others."""
    needs_values: bool | None = None
    """Whether it needs the values themselves, not only the distances between the clients."""
    uses_sample_counts: bool | None = None
    """Whether it weighs the clients by ``info.counts`` itself. If not, the clients in an average
    that it returns are weighed, and any other vector cannot be."""
    can_stream: bool | None = None
    """Whether it takes values coordinate by coordinate, and all else from the methods of
    `ClientMatrix`: then files are aggregated without holding whole gradients in memory."""
    needs: str = ""
    """What it needs in words, for `outvote show`."""
    tolerates: str = ""
    """How many Byzantine clients it tolerates, in words."""
    reference: str = ""
    """Where it was published."""

    def inheriting(self, other: "Traits") -> "Traits":
        """Return these traits with what they leave open taken from others."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        taken = {key: getattr(other, key) for key, value in found.items() if value in (None, "")}
        return replace(self, **taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """What a rule computed: a weighted average of the clients, or any other vector.

    `weights` alone means the average of the clients with these weights, which sum to 1.
    Where `vector` is given it is the update, and `weights` are each client's share in it; None if
    that is not known. `scores`: the larger the more suspicious; None if the rule has none.
    """

    weights: PerClient | None = None
    """Each client's share in the update."""
    vector: PerCoordinate | None = None
    """The update, where it is not the average by `weights`."""
    scores: PerClient | None = None
    """How suspicious each client is."""
    state: Any = None
    """What the rule carries to the next round."""
    num_groups: int | None = None
    """How many groups of coordinates were made; None: none."""
    notes: tuple[str, ...] = ()
    """What a caller may not expect."""
    is_rejected: Tensor | None = None
    """Rows that are not finite, ``[runs, clients]`` on the CPU; set by `aggregate`."""
    num_byzantine: tuple[int, ...] = ()
    """The number of Byzantine clients that each run assumed, at most the rule's limit; likewise."""
    states: tuple[Any, ...] = ()
    """The state of each run; likewise."""

    def counted(self, counts: Tensor) -> "Aggregation":
        """Return the average with its clients weighed by ``counts [clients]``."""
        if self.weights is None:
            return self
        weights = self.weights * counts
        total = weights.sum(dim=-1, keepdim=True)
        if not bool((total > 0).all()):
            note = "sample_counts: the clients kept report next to no samples; they count alike"
            return replace(self, notes=(*self.notes, note))
        return replace(self, weights=weights / total)

    def unmixed(self, mixture: Mixture) -> "Aggregation":
        """Return the same in terms of the clients that were mixed."""
        if self.weights is None:
            return replace(self, scores=None)
        weights = (self.weights.unsqueeze(-2).double() @ mixture.double()).squeeze(-2)
        # The shares of a coordinate-wise rule do not sum to 1: one client is in many mixed ones.
        return replace(self, weights=weights.clamp(max=1), scores=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInfo:
    """What a rule is given about the round besides the gradients."""

    num_byzantine: int
    """How many of the clients are assumed to be Byzantine."""
    stream: RandomStream
    """Where randomness comes from: ``stream.fold_in(name)`` is one named stream per run."""
    num_received: int = 0
    """How many clients sent something; those rejected are not in the matrix."""
    clients: tuple[Hashable, ...] = ()
    """The ids of the clients in the matrix, where a single run is computed."""
    round: int | None = None
    """The number of the round, from 1; None: not known."""
    reference: Tensor | None = None
    """The server's own gradient, ``[dim]``."""
    model: Tensor | None = None
    """The current model, ``[dim]``, for rules whose traits ask for it."""
    state: Any = None
    """What the rule returned as state in the round before; None in the first."""
    split: Split | None = None
    """An explicit partition of the coordinates, for gas."""
    layer_sizes: tuple[int, ...] | None = None
    """How many coordinates each layer has; None: not known."""
    counts: Tensor | None = None
    """How much each client counts, relative to the median and capped, ``[clients]`` in float64;
    None: all alike."""
    wants_weights: bool = False
    """Whether weights are wanted where the vector alone is cheaper."""
    to_vector: Callable[[Any], Tensor] = torch.as_tensor
    """Reads what a caller may pass as state (an array, a dict of arrays) as a vector ``[dim]``."""


class _RuleType(ABCMeta):
    if not TYPE_CHECKING:  # Type checkers take the parameters from the fields.

        def __call__(cls, *args: Any, **parameters: Any) -> Any:
            """Make a rule; what other libraries give to the rule belongs to the call here."""
            for name in parameters.keys() & NAMES_OF_F:
                if name not in getattr(cls, "__dataclass_fields__", {name}):
                    inside = ", ".join(repr(arg) for arg in args)
                    call = f"{cls.__name__}({inside})(X, num_byzantine={parameters[name]!r})"
                    raise TypeError(
                        f"{cls.__name__} has no parameter {name!r}: {belongs_to_call(call)}"
                    )
            return super().__call__(*args, **parameters)

        @property
        def __signature__(cls) -> Signature:
            """What a rule is made with, for editors and notebooks."""
            if cls.__init__ is object.__init__:
                return Signature()
            own = signature(cls.__init__)
            return own.replace(parameters=list(own.parameters.values())[1:])


class Rule(metaclass=_RuleType):
    """A robust aggregation rule: many gradients in, one update out."""

    name: ClassVar[str] = ""
    if TYPE_CHECKING:

        @property
        def traits(self) -> Traits:
            """What the rule declares: a class attribute, or a property of its parameters."""
    else:
        traits = Traits(
            selects_clients=True, needs_values=True, uses_sample_counts=False, can_stream=False
        )

    def __init_subclass__(cls) -> None:
        """Name a class without a name after itself, and complete its traits."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__
        declared = vars(cls).get("traits")
        inherited = (vars(base).get("traits") for base in cls.__mro__[1:])
        if isinstance(declared, Traits):
            parent = next(traits for traits in inherited if isinstance(traits, Traits))
            cls.traits = declared.inheriting(parent)  # type: ignore[method-assign, assignment]

    @with_hints
    def inspect(  # noqa: PLR0913  (all that a round may have, by name)
        self,
        gradients: Any,
        *,
        num_byzantine: int | None = None,
        byzantine_fraction: float | None = None,
        when_too_many: str = "raise",
        seed: Seed = None,
        groups: Sequence[Sequence[int]] | None = None,
        clients: Sequence[Hashable] | None = None,
        sample_counts: Sequence[float] | None = None,
        count_cap: float = COUNT_CAP,
        reference: Any = None,
        state: Any = None,
        round: int | None = None,  # noqa: A002
        model: Any = None,
        layer_sizes: Sequence[int] | None = None,
    ) -> Verdict:
        """Aggregate, and return scores, weights, and who was kept, dropped or rejected.

        Args:
            gradients: One row per client: an array, a tensor, or a list of dictionaries of either.
            num_byzantine: How many clients of this round the rule assumes to be Byzantine.
            byzantine_fraction: Or their share, rounded up, where the number is unknown.
            when_too_many: Above what the rule tolerates: "raise", or "lower", with a note.
            seed: An integer or a generator; None: fresh entropy, recorded in the verdict.
            groups: GAS only: the partition of the coordinates, instead of a random one.
            clients: Ids of the clients, instead of row numbers.
            sample_counts: Weigh the clients, none more than `count_cap` times the median count.
            count_cap: See `sample_counts`; infinity: no cap.
            reference: The server's own gradient, for rules that need one (fltrust).
            state: `verdict.state` of the round before, for rules that have state.
            round: The number of the round, from 1, for rules that ask for it.
            model: The current model, for rules that need it.
            layer_sizes: How many coordinates each layer has, for splits by layer; dictionaries
                have them already.
        """
        from outvote.rules.aggregate import one_round  # aggregate needs Rule

        done = one_round(
            self,
            gradients,
            num_byzantine=num_byzantine,
            byzantine_fraction=byzantine_fraction,
            when_too_many=when_too_many,
            seed=seed,
            groups=groups,
            clients=clients,
            sample_counts=sample_counts,
            count_cap=count_cap,
            reference=reference,
            state=state,
            round=round,
            model=model,
            layer_sizes=layer_sizes,
        )
        return done.verdict()

    @takes_what(inspect)
    def __call__(self, gradients: Any, **info: Any) -> Any:
        """Aggregate: the update has the kind, dtype and device of the gradients.

        Takes what `inspect` takes. The notes of the verdict become one warning.
        """
        from outvote.rules.aggregate import one_round  # aggregate needs Rule

        for name in info.keys() - KEYWORDS:
            raise no_argument(self.name, name, KEYWORDS)
        done = one_round(self, gradients, **info, is_full=False)
        if done.notes:
            warn_notes(done.notes, stacklevel=3)
        return done.update

    @abstractmethod
    def max_byzantine(self, num_clients: int) -> int:
        """Return how many of `num_clients` clients may be Byzantine."""

    @abstractmethod
    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregate the clients of a matrix: the finite rows of one run or of several."""

    def __str__(self) -> str:
        """Return the text that `make_rule` turns back into this rule."""
        from outvote.rules.rule_spec import rule_text  # rule_spec needs every rule

        return rule_text(self)


KEYWORDS = frozenset(keywords_of(Rule.inspect)) - {"gradients"}
"""What a call of a rule takes by name."""


class AffineRule(Rule):
    """A rule whose update is a weighted average of the clients."""

    traits = Traits(needs_values=False, can_stream=True, needs="the distances between the clients")

    @abstractmethod
    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Return weights that sum to 1, and scores where the rule has its own."""

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Average with the weights of `weigh`; a single client is the average."""
        if matrix.num_clients == 1:
            ones = torch.ones(*matrix.batch, 1, dtype=torch.float64, device=matrix.device)
            return Aggregation(weights=ones)
        return self.weigh(matrix, info)


class CoordinatewiseRule(Rule):
    """A rule that reduces every coordinate by the values that the clients sent for it alone."""

    traits = Traits(selects_clients=False, can_stream=True, needs="one pass over the coordinates")

    @abstractmethod
    def reduce(self, columns: Columns, num_byzantine: int) -> PerCoordinate:
        """Reduce ``[..., dim, clients]`` to ``[..., dim]``."""

    def bounds(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerCoordinate] | None:
        """Return the smallest and largest value that entered, per coordinate, if that is known."""
        del columns, num_byzantine
        return None

    def reduce_with_counts(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient | None]:
        """Return `reduce`, and in how many coordinates each client's value entered, if known."""
        bounds = self.bounds(columns, num_byzantine)
        counts = None if bounds is None else counts_between(columns, *bounds)
        return self.reduce(columns, num_byzantine), counts

    def reduce_weighted(
        self, columns: Columns, counts: Tensor, num_byzantine: int
    ) -> tuple[PerCoordinate, PerClient | None]:
        """Return `reduce_with_counts` where clients have ``counts [clients]``.

        For rules whose traits have `uses_sample_counts`.
        """
        raise NotImplementedError(f"{self} declares uses_sample_counts; write reduce_weighted.")

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Reduce the coordinates."""
        f, counts = info.num_byzantine, info.counts
        if counts is not None and self.traits.uses_sample_counts:
            vector, shares = matrix.by_coordinate_with_shares(
                lambda columns: self.reduce_weighted(columns, counts, f)
            )
        elif info.wants_weights:
            counted = partial(self.reduce_with_counts, num_byzantine=f)
            vector, shares = matrix.by_coordinate_with_shares(counted)
        else:
            vector = matrix.values.by_coordinate(partial(self.reduce, num_byzantine=f))
            shares = None
        return Aggregation(vector=vector, weights=shares)


def reduction(rule: Rule, num_byzantine: int) -> Callable[[Columns], PerCoordinate] | None:
    """Return what a coordinate-wise rule does to values; None for other rules."""
    if not isinstance(rule, CoordinatewiseRule) or type(rule).compute is not _BY_COORDINATE:
        return None
    return partial(rule.reduce, num_byzantine=num_byzantine)


_BY_COORDINATE = CoordinatewiseRule.compute


class VectorRule(Rule):
    """A rule that works on one matrix of rows at a time: the simplest to write, the slowest."""

    traits = Traits(selects_clients=False, needs="the gradients themselves")

    def __init_subclass__(cls) -> None:
        """Refuse traits that `aggregate` could not use."""
        super().__init_subclass__()
        for name in ("has_state", "needs_model", "needs_reference"):
            if getattr(cls.traits, name, False):
                raise TypeError(
                    f"{cls.__name__} declares {name}, but a VectorRule gets rows and num_byzantine "
                    "alone; use ov.Rule, whose compute gets a RoundInfo."
                )

    @abstractmethod
    def aggregate(self, rows: Tensor, num_byzantine: int) -> Tensor | tuple[Tensor, Tensor | None]:
        """Reduce ``rows [clients, dim]`` to a vector ``[dim]``, or to it and weights ``[clients]``.

        The weights are each client's share in the vector. Without them it is not known who was
        kept.
        """

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregate matrix by matrix."""
        # In float64, so that a plain sum of huge numbers does not overflow.
        rows = matrix.rows.double().reshape(-1, matrix.num_clients, matrix.dim)
        found = [self._aggregate(some, info.num_byzantine) for some in rows]
        vector = torch.stack([one[0] for one in found]).view(*matrix.batch, matrix.dim)
        weights = None
        if any(one[1] is not None for one in found):
            unknown = torch.full_like(rows[0, :, 0], torch.nan)
            shares = [unknown if one[1] is None else one[1] for one in found]
            weights = torch.stack(shares).view(*matrix.batch, matrix.num_clients)
        return Aggregation(vector=to_float(vector, matrix.work_dtype), weights=weights)

    def _aggregate(self, rows: Tensor, num_byzantine: int) -> tuple[Tensor, Tensor | None]:
        """Aggregate one matrix, and check what comes back."""
        found: Any = self.aggregate(rows, num_byzantine)
        what = f"{self}.aggregate"
        if isinstance(found, tuple) and len(found) != 2:
            raise TypeError(
                f"{what} must return a vector or (vector, weights), got a tuple of {len(found)}."
            )
        vector, weights = found if isinstance(found, tuple) else (found, None)
        vector = _as_result(f"{what}: the vector", vector, rows.shape[1:], rows.device)
        if weights is not None:
            weights = _as_result(f"{what}: the weights", weights, rows.shape[:1], rows.device)
            weights = weights.double()
        return vector, weights


@dataclass(frozen=True, slots=True)
class Wrapper(Rule):
    """A rule around a rule."""

    rule: Rule
    """The rule inside."""

    def __post_init__(self) -> None:
        """Check that the inside is a rule that can be wrapped."""
        if not isinstance(self.rule, Rule):
            raise TypeError(
                f"{self.name} wraps a rule such as Median(), got {type(self.rule).__name__}; "
                "build one with make_rule('median')."
            )
        if not self.rule.traits.can_be_wrapped:
            raise TypeError(
                f"{self.rule.name} cannot be wrapped by {self.name}: it needs whole gradients and "
                "its own state or root data; use it alone."
            )

    @property
    def traits(self) -> Traits:
        """Those of the rule inside, which has no state of its own here."""
        return around(self.rule.traits)

    def inside_num_clients(self, num_clients: int) -> int:
        """Return how many clients the rule inside sees."""
        return num_clients

    def inside_num_byzantine(self, num_byzantine: int, num_clients: int) -> int:
        """Return how many Byzantine clients the rule inside assumes, within its limit."""
        limit = self.rule.max_byzantine(self.inside_num_clients(num_clients))
        return min(num_byzantine, limit)

    def compute_inside(self, matrix: ClientMatrix, inside: RoundInfo) -> Aggregation:
        """Let the rule inside aggregate; the result of a rule from outside is checked."""
        found = compute_weighted(self.rule, matrix, inside)
        return found if found.state is None else replace(found, state=None)

    def inside_info(self, info: RoundInfo, num_clients: int) -> RoundInfo:
        """Return the info for the rule inside: random streams of its own, no state."""
        return replace(
            info,
            num_byzantine=self.inside_num_byzantine(info.num_byzantine, num_clients),
            stream=info.stream.fold_in(self.name),
            num_received=self.inside_num_clients(info.num_received),
            state=None,
            split=None,
        )


@cache  # Asked for in every call.
def around(traits: Traits) -> Traits:
    """Return the traits of a wrapper whose rule inside has these, without a state of its own."""
    return replace(
        traits,
        uses_num_byzantine=True,
        has_state=False,
        needs_values=True,
        uses_sample_counts=True,
    )


@dataclass(frozen=True, slots=True)
class Mixing(Wrapper):
    """Replaces the clients by averages of some of them: a matrix, whatever the dimension."""

    @property
    def traits(self) -> Traits:
        """Averages have distances of their own, so the rule inside decides what is needed."""
        return replace(
            self.rule.traits, uses_num_byzantine=True, has_state=False, uses_sample_counts=True
        )

    @abstractmethod
    def mixture(self, matrix: ClientMatrix, info: RoundInfo) -> Mixture:
        """Return the averaging matrix ``[runs, *groups, mixed, clients]``; its rows sum to 1."""

    def compute(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Let the rule inside aggregate the mixed clients."""
        mixture = self.mixture(matrix, info)
        inside = self.inside_info(info, matrix.num_clients)
        if info.counts is not None:
            mixture, counts = mixed_counts(mixture, info.counts, inside.num_byzantine)
            inside = replace(inside, counts=counts)
        return self.compute_inside(matrix.mixed(mixture), inside).unmixed(mixture)


def known(value: Part | None) -> Part:
    """Return a part of an Aggregation that `aggregate` always sets."""
    if value is None:
        raise TypeError("this part is set by outvote.rules.aggregate.aggregate alone.")
    return value


def _as_result(what: str, value: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return a part of a result as a tensor; raise unless it is an array of the shape."""
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value, device=device)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"{what} must be a tensor or an array of the shape {tuple(shape)}, got "
            f"{an(type(value).__name__)}."
        )
    if value.shape != torch.Size(shape):
        raise ValueError(
            f"{what} must have the shape {tuple(shape)}, got {tuple(value.shape)}; correct the "
            "rule."
        )
    return value


def compute_weighted(rule: Rule, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
    """Let a rule compute; weigh its average by the counts if it does not do so itself."""
    found = rule.compute(matrix, info)
    if not is_ours(rule):
        found = check_result(rule, found, matrix)
    if info.counts is None or rule.traits.uses_sample_counts:
        return found
    if found.vector is not None or found.weights is None:
        raise ValueError(
            f"{rule} cannot weigh by sample_counts: its update is not an average of clients; leave "
            "sample_counts out, or weigh by info.counts and declare uses_sample_counts."
        )
    return found.counted(info.counts)


def is_ours(rule: Rule) -> bool:
    """Return whether a rule is of this library, and keeps to what it declares."""
    return type(rule).__module__.startswith("outvote.")


def check_result(rule: Rule, found: Aggregation, matrix: ClientMatrix) -> Aggregation:
    """Raise if a rule from outside this library returned something wrong; ours do not."""
    if not isinstance(found, Aggregation):
        raise TypeError(
            f"{rule}.compute must return an ov.Aggregation, got {an(type(found).__name__)}."
        )
    if found.state is not None and not rule.traits.has_state:
        raise ValueError(
            f"{rule} returned a state that would be lost; declare "
            "traits = ov.Traits(has_state=True)."
        )
    if found.vector is None and found.weights is None:
        raise ValueError(f"{rule} returned neither weights nor a vector; return one of them.")
    per_client = (*matrix.batch, matrix.num_clients)
    shapes = {"vector": matrix.shape[:-1], "weights": per_client, "scores": per_client}
    parts: dict[str, Any] = {}
    for name, shape in shapes.items():
        if (value := getattr(found, name)) is None:
            continue
        if isinstance(value, StreamedVector):
            parts[name] = value.changed(partial(_finite, rule))
            continue
        value = _as_result(f"{rule}: {name}", value, shape, matrix.device)
        is_finite = value.isfinite()
        if name == "weights" and found.vector is not None and value.numel() > shape[-1]:
            is_finite |= value.isnan().all(dim=-1, keepdim=True)  # Unknown for some runs.
        parts[name] = _finite(rule, value, is_finite)
    if "weights" in parts:
        _check_weights(rule, parts["weights"].double(), is_average=found.vector is None)
    return replace(found, **parts)


def _finite(rule: Rule, value: Tensor, is_finite: Tensor | None = None) -> Tensor:
    """Return a part of a result; raise if it is not finite."""
    if not bool((value.isfinite() if is_finite is None else is_finite).all()):
        raise ValueError(f"{rule} gave NaN or infinity for finite gradients; mend the rule.")
    return value


def _check_weights(rule: Rule, weights: Tensor, *, is_average: bool) -> None:
    """Raise unless weights are from 0 to 1 and, where they are the average, sum to 1."""
    if bool(((weights < -ROUNDING) | (weights > 1 + ROUNDING)).any()):
        low, high = weights.min().item(), weights.max().item()
        raise ValueError(
            f"{rule}: weights must be from 0 to 1, got {low:.4g} to {high:.4g}; return any other "
            "combination of the clients as vector."
        )
    totals = weights.sum(dim=-1)
    if is_average and bool(((totals - 1).abs() > ROUNDING).any()):
        worst = totals.flatten()[(totals - 1).abs().argmax()].item()
        raise ValueError(
            f"{rule}: weights without a vector must sum to 1, got {worst:.4g}; divide by their sum."
        )


def lowered_inside(rule: Rule, num_byzantine: int, num_clients: int) -> tuple[str, ...]:
    """Return a note for every rule inside that assumes fewer Byzantine clients than its wrapper."""
    notes = []
    while isinstance(rule, Wrapper):
        inside = rule.inside_num_clients(num_clients)
        limit = rule.rule.max_byzantine(inside)
        if num_byzantine > limit:
            notes.append(
                f"{rule.name}: {rule.rule} tolerates {limit} Byzantine of {inside} clients; inside "
                f"it assumed {limit} instead of {num_byzantine}"
            )
        num_byzantine = rule.inside_num_byzantine(num_byzantine, num_clients)
        rule, num_clients = rule.rule, inside
    return tuple(notes)


def base_num_byzantine(rule: Rule, num_byzantine: int, num_clients: int) -> int:
    """Return the number that the innermost rule works with (a wrapper may lower it)."""
    while isinstance(rule, Wrapper):
        num_byzantine = rule.inside_num_byzantine(num_byzantine, num_clients)
        num_clients = rule.inside_num_clients(num_clients)
        rule = rule.rule
    return num_byzantine
