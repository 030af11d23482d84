"""What a rule is, and the three kinds of rules.

A rule answers on `ClientMatrix`. An affine rule weighs the clients by the distances between them, a
coordinate-wise rule judges every coordinate alone, and a vector rule (other people's) does what it
likes with the rows. Wrappers are rules that hold a rule.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from outvote.axes import Columns, PerClient, PerCoordinate
from outvote.flat import to_float
from outvote.rules.aggregation import Aggregation
from outvote.rules.client_matrix import ClientMatrix
from outvote.rules.split import Split
from outvote.rules.verdict import Verdict
from outvote.seeding import RandomStream, Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundInfo:
    """What a rule is told about the round besides the gradients."""

    num_byzantine: int
    stream: RandomStream
    num_received: int = 0
    clients: tuple[Hashable, ...] = ()
    reference: Tensor | None = None
    state: Any = None
    split: Split | None = None
    layer_sizes: tuple[int, ...] | None = None
    wants_shares: bool = False

    def inside(self, wrapper: "Rule", num_byzantine: int) -> "RoundInfo":
        """Return the info for the rule inside a wrapper: a part has no memory of its own."""
        stream = self.stream.fold_in(wrapper.name)
        return replace(
            self,
            num_byzantine=num_byzantine,
            stream=stream,
            num_received=wrapper.inside_num_clients(self.num_received),
            state=None,
            split=None,
            wants_shares=self.wants_shares and not wrapper.hides_shares,
        )


class Rule(ABC):
    """A robust aggregation rule: many gradients in, one update out."""

    name: ClassVar[str] = ""
    # What `outvote show` tells of a rule whose docstring does not say it.
    needs: ClassVar[str] = ""
    tolerates: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    uses_num_byzantine: ClassVar[bool] = True
    can_be_wrapped: ClassVar[bool] = True
    is_batched: ClassVar[bool] = True
    # Whether it takes `state` and gives one back, and whether it must have `reference`.
    has_memory: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    hides_shares: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Give a rule without a name the name of its class."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __call__(self, gradients: Any, **info: Any) -> Any:
        """Aggregate: the update has the kind, dtype and device of the gradients.

        Takes what `inspect` takes.
        """
        from outvote.rules.call import inspect  # call needs Rule

        return inspect(self, gradients, **info, is_full=False).update

    def inspect(  # noqa: PLR0913  (the info of a round are many, and all are named)
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
        reference: Any = None,
        state: Any = None,
    ) -> Verdict:
        """Aggregate and tell how: scores, weights, who was kept, dropped or rejected."""
        from outvote.rules.call import inspect  # call needs Rule

        return inspect(
            self,
            gradients,
            num_byzantine=num_byzantine,
            byzantine_fraction=byzantine_fraction,
            when_too_many=when_too_many,
            seed=seed,
            groups=groups,
            clients=clients,
            sample_counts=sample_counts,
            reference=reference,
            state=state,
            is_full=True,
        )

    @abstractmethod
    def max_byzantine(self, num_clients: int) -> int:
        """Return how many of `num_clients` clients may lie."""

    @abstractmethod
    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregation on a batch of matrix."""

    def must_be_told(self) -> bool:
        """Tell whether the rule cannot do without the number of Byzantine clients."""
        return self.uses_num_byzantine

    def guess(self, rows: Tensor) -> Tensor | None:
        """Return the update if all rows are finite, where that is cheaper than looking first.

        Not finite: at least one row is not. None: there is no such short way.
        """
        del rows
        return None

    def is_selecting(self) -> bool:
        """Tell whether the rule believes some clients as a whole, and others not."""
        return True

    def inside_num_clients(self, num_clients: int) -> int:
        """Return how many clients a rule inside this one sees."""
        return num_clients

    def needs_values(self) -> bool:
        """Tell whether the rule looks at the values themselves, not only at distances."""
        return True

    def prepare(self, matrix: ClientMatrix, info: RoundInfo) -> RoundInfo:
        """Draw what can be drawn before the values were looked at."""
        del matrix
        return info

    def base_num_byzantine(self, num_byzantine: int, num_clients: int) -> int:
        """Return the number that the innermost rule works with (a wrapper may lower it)."""
        del num_clients
        return num_byzantine

    def read_state(self, state: Any, to_vector: Callable[[Any], Tensor]) -> Any:
        """Read the memory that an earlier verdict gave back; most rules have none."""
        del to_vector
        if state is not None:
            raise ValueError(f"{self.name} has no memory, state must be None.")

    def __str__(self) -> str:
        """Return the text that `make_rule` turns back into this rule."""
        from outvote.rules.spec import rule_text  # spec needs every rule

        return rule_text(self)


class AffineRule(Rule):
    """A rule that answers with a weighted average of the clients."""

    needs = "the distances between the clients"

    def needs_values(self) -> bool:
        """Tell that distances are enough."""
        return False

    @abstractmethod
    def weigh(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Return weights that sum to 1, and scores where the rule has its own."""

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregation with the average of a single client, or as `weigh` says."""
        if matrix.num_clients == 1:
            ones = torch.ones(*matrix.batch, 1, dtype=torch.float64, device=matrix.device)
            return Aggregation(weights=ones)
        return self.weigh(matrix, info)


class CoordinatewiseRule(Rule):
    """A rule that judges every coordinate by the values that the clients sent for it alone."""

    needs = "one pass over the coordinates"

    @abstractmethod
    def reduce(self, columns: Columns, num_byzantine: int) -> PerCoordinate:
        """Reduce ``[..., dim, clients]`` to ``[..., dim]``."""

    def bounds(
        self, columns: Columns, num_byzantine: int
    ) -> tuple[PerCoordinate, PerCoordinate] | None:
        """Return the smallest and largest value that entered, per coordinate, if that is known."""
        del columns, num_byzantine
        return None

    def shares(self, columns: Columns, num_byzantine: int) -> PerClient:
        """Return the share of coordinates where each client's value entered the answer."""
        from outvote.rules.order import shares_between  # order needs no Rule

        bounds = self.bounds(columns, num_byzantine)
        if bounds is None:
            return torch.ones(
                *columns.shape[:-2], columns.shape[-1], dtype=torch.float64, device=columns.device
            )
        return shares_between(columns, *bounds)

    def is_selecting(self) -> bool:
        """Tell that nobody is believed as a whole."""
        return False

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregation with the vector of the reduced coordinates."""
        vector = self.reduce(matrix.columns, info.num_byzantine)
        shares = self.shares(matrix.columns, info.num_byzantine) if info.wants_shares else None
        return Aggregation(vector=vector, weights=shares)


class VectorRule(Rule):
    """A rule that works on one matrix of rows at a time: the simplest to write, the slowest."""

    needs = "the gradients themselves"

    @abstractmethod
    def aggregate(self, rows: Tensor, num_byzantine: int) -> Tensor:
        """Reduce ``rows [clients, dim]`` to a vector ``[dim]``."""

    def is_selecting(self) -> bool:
        """Tell that nothing is known about it."""
        return False

    def answer(self, matrix: ClientMatrix, info: RoundInfo) -> Aggregation:
        """Aggregation matrix by matrix."""
        # In float64, so that a plain sum of huge numbers does not overflow.
        rows = matrix.columns.mT.double().reshape(-1, matrix.num_clients, matrix.dim)
        vectors = [self.aggregate(matrix, info.num_byzantine) for matrix in rows]
        vector = torch.stack(vectors).view(*matrix.batch, matrix.dim)
        return Aggregation(vector=to_float(vector, matrix.work_dtype))
