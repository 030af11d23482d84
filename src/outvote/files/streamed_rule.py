"""How rules work on files: which can, and how one computes on some coordinates at a time."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from outvote.rules.clip import Clip
from outvote.rules.column_stream import Sum
from outvote.rules.gas import GAS
from outvote.rules.norm_filter import NormFilter
from outvote.rules.rule import (
    AffineRule,
    Aggregation,
    CoordinatewiseRule,
    Mixing,
    RoundInfo,
    Rule,
    Wrapper,
    compute_weighted,
    is_ours,
    known,
)
from outvote.rules.sample_counts import mixed_counts
from outvote.rules.streamed_matrix import StreamedMatrix, TileMatrix


def can_stream(rule: Rule) -> bool:
    """Return whether a rule works on some coordinates at a time."""
    if isinstance(rule, GAS):
        return True  # The rule inside gets whole groups.
    if isinstance(rule, Clip):
        is_known = is_ours(rule.rule) or isinstance(rule.rule, CoordinatewiseRule)
        return is_known and can_stream(rule.rule)
    if isinstance(rule, Mixing):
        return type(rule).compute is Mixing.compute and can_stream(rule.rule)
    if isinstance(rule, NormFilter):
        return can_stream(rule.rule)
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
        return compute_weighted(rule, tile, info), same
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


def same(shares: Tensor) -> Tensor:
    """Return the shares: they are the weights."""
    return shares


def merged_shares(
    shares: list[tuple[int, Tensor | None]], dim: int, everywhere: Sum
) -> Tensor | None:
    """Return the shares in all coordinates, from those in pieces of them."""
    first = shares[0][1]
    if first is None:
        return None
    parts = torch.stack([known(own).double() * width for width, own in shares])
    # Shares of coordinates are counts: whole numbers, divided once. Those by samples are not.
    whole = parts.round()
    parts = whole if torch.allclose(parts, whole, rtol=0, atol=1e-6) else parts
    is_unequal = any(own is None or not torch.equal(own, first) for _, own in shares)
    sums = everywhere(torch.cat([parts.sum(dim=0), parts.new_full((1, 1), is_unequal)], dim=-1))
    total = sums[..., :-1] / dim
    # Equal in all pieces: to the last bit what the rule gave.
    is_first = not sums[..., -1:].any() and torch.allclose(total, first.double(), rtol=1e-12)
    return first.double() if is_first else total


def refusal(rule: Rule, why: str) -> ValueError:
    """Return the error for a rule that needs whole gradients."""
    around = "put it inside gas(...), " if rule.traits.can_be_wrapped else ""
    return ValueError(
        f"{rule} cannot be streamed, it needs whole gradients ({why}); raise max_memory, {around}"
        "or call rule.inspect on gradients in memory."
    )
