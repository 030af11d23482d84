"""Cases of the operations of rules: one for each operation, with families of shapes and layouts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from ops_case import Case
from outvote.ops import eigen, groups, order, pairs, rows
from outvote.ops.groups import KeyedOrder
from outvote.seeding import RandomStream

Make = Callable[[Generator, torch.dtype], tuple[Any, ...]]
# Of sums in float32 or of three parts of 8 bits; values of 16 bits are worked on in float32.
SUMS = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), 3e-6) | {torch.float64: 1e-12}
# Of means of a few values that are rounded once.
MEANS = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), 2e-7) | {torch.float64: 1e-12}
EXACT = {torch.float64: 1e-12}


def random_rows(
    runs: int, clients: int, dim: int, generator: Generator, dtype: torch.dtype, offset: float = 0
) -> Tensor:
    """Draw rows of different lengths, none of them 0, around a common point."""
    values = torch.randn(runs, clients, dim, generator=generator)
    lengths = torch.linspace(0.5, 2, clients).view(-1, 1)
    return (values * lengths + offset * torch.linspace(0.5, 1, dim)).to(dtype)


def signs(runs: int, clients: int, dim: int, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw numbers that are equal for many clients."""
    return torch.randint(-1, 2, (runs, clients, dim), generator=generator).to(dtype)


def side_by_side(values: Tensor) -> Tensor:
    """Put the clients of ``rows [..., clients, dim]`` side by side, as columns."""
    return values.mT.contiguous()


def padded(values: Tensor, num_groups: int) -> Tensor:
    """Cut rows into groups whose coordinates have gaps in memory, ``[runs, groups, width, n]``."""
    runs, clients, dim = values.shape
    memory = values.new_full((runs, dim, -(-clients // 16) * 16), 7)
    memory[..., :clients] = values.mT
    return memory[..., :clients].unflatten(1, (num_groups, -1))


def all_columns(offset: float = 0, sizes: tuple[int, ...] = (5, 12, 50, 70)) -> dict[str, Make]:
    """Return columns of every layout, for a few numbers of clients."""

    def rows_of(clients: int, generator: Generator, dtype: torch.dtype) -> Tensor:
        return random_rows(2, clients, 168, generator, dtype, offset)

    found: dict[str, Make] = {}
    for clients in sizes:
        make = partial(rows_of, clients)
        found |= {
            f"{clients} rows": lambda g, t, make=make: (make(g, t).mT,),
            f"{clients} side by side": lambda g, t, make=make: (side_by_side(make(g, t)),),
            f"{clients} odd": lambda g, t, make=make: (make(g, t)[:1, :, 1:164].mT,),
            f"{clients} groups": lambda g, t, make=make: (padded(make(g, t), 7),),
            f"{clients} groups of rows": lambda g, t, make=make: (
                make(g, t).unflatten(-1, (7, 24)).transpose(1, 2).mT,
            ),
            f"{clients} every other": lambda g, t, make=make: (make(g, t).mT[:, ::2],),
        }
    return found


def with_more(families: dict[str, Make], more: Callable[..., tuple[Any, ...]]) -> dict[str, Make]:
    """Add what ``more(values, generator)`` returns to the arguments of every family."""

    def extended(make: Make) -> Make:
        def made(generator: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
            given = make(generator, dtype)
            return (*given, *more(given[0], generator))

        return made

    return {name: extended(make) for name, make in families.items()}


def weights_of(values: Tensor, generator: Generator) -> tuple[Tensor]:
    """Draw weights of the clients of columns; half of them are 0."""
    shape = (*values.shape[:-2], values.shape[-1])
    weights = torch.rand(shape, generator=generator, dtype=torch.float64)
    weights[..., ::2] = 0
    return (weights / weights.sum(dim=-1, keepdim=True),)


def a_vector(values: Tensor, generator: Generator) -> tuple[Tensor]:
    """Draw a vector for each run and group of columns."""
    vector = torch.randn(values.shape[:-1], generator=generator)
    return (vector.to(values.dtype).to(torch.promote_types(values.dtype, torch.float32)),)


def a_centre(values: Tensor, generator: Generator) -> tuple[Tensor]:
    """Draw a client for each run."""
    return (torch.randint(values.shape[-1], values.shape[:1], generator=generator),)


def centres_of_groups(values: Tensor, generator: Generator) -> tuple[Tensor]:
    """Draw a client for each run, or for each group if there are groups."""
    return (torch.randint(values.shape[-1], values.shape[:-2], generator=generator),)


def products(
    copies: bool, shape: tuple[int, ...], generator: Generator, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Return inner products, among them of clients that are close, and who copies whom."""
    values = torch.randn(*shape[:-1], 40, shape[-1], generator=generator, dtype=torch.float64)
    values[..., 3] = values[..., 1] + 1e-9
    if not copies:
        return (values.mT @ values).to(dtype), None
    originals = torch.arange(shape[-1]).repeat(shape[0], 1)
    originals[:, 4] = 2
    values[..., 4] = values[..., 2]
    return (values.mT @ values).to(dtype), originals


def all_products() -> dict[str, Make]:
    """Return products of matrices and of groups, with copies and without."""
    return {
        f"{shape} {'copies' * copies}": partial(products, copies, shape)
        for shape in ((2, 6), (2, 3, 6), (2, 3, 12), (2, 50), (1, 100))
        for copies in (False, True)
    }


def few_columns() -> dict[str, Make]:
    """Return columns of few coordinates."""

    def make(
        shape: tuple[int, int, int], generator: Generator, dtype: torch.dtype
    ) -> tuple[Tensor]:
        clients, groups_, width = shape
        return (padded(random_rows(2, clients, groups_ * width, generator, dtype), groups_),)

    shapes = ((5, 9, 1), (12, 4, 8), (50, 2, 30), (70, 1, 3), (100, 1, 100))
    return {str(shape): partial(make, shape) for shape in shapes}


def scores(
    clients: int, are_tied: bool, generator: Generator, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Draw scores, some of them equal or equal but for rounding."""
    found = torch.rand(2, 2, clients, generator=generator, dtype=torch.float64)
    if are_tied:
        found = torch.randint(1, 4, (2, 2, clients), generator=generator) / 3.0
        found = found.double() * (1 + 1e-14 * torch.randn(clients, generator=generator).double())
        found[0, :, 1], found[0, :, 0] = 1e76, 1e60
    return (found.to(dtype) if not are_tied else found.clamp(max=1e30).to(dtype),)


def all_scores() -> dict[str, Make]:
    """Return scores with ties and without."""
    return {
        f"{clients} {'tied' * are_tied}": partial(scores, clients, are_tied)
        for clients in (2, 7, 50)
        for are_tied in (False, True)
    }


def squared_distances(
    clients: int, are_tied: bool, generator: Generator, dtype: torch.dtype
) -> tuple[Any, ...]:
    """Return squared distances, and how many to select for which number of Byzantine clients."""
    make = signs if are_tied else random_rows
    values = make(2, clients, 30, generator, torch.float64)
    far = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").square()
    num_byzantine = max(1, (clients - 3) // 4)
    return (far.round() if are_tied else far).to(dtype), clients - 2 * num_byzantine, num_byzantine


def matrices(clients: int, kind: str, generator: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return centred inner products relative to the largest, a scale, and random streams."""
    draw = signs if kind == "signs" else random_rows
    values = draw(4, clients, 3 * clients, generator, torch.float64).unflatten(0, (2, 2))
    if kind == "zero":
        values *= 0
    values = values - values.mean(dim=-2, keepdim=True)
    found = values @ values.mT
    largest = found.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-290)
    return (found / largest).to(dtype), largest.squeeze(-1), RandomStream((3, 4))


SIZES = ((0, 1, 5, 60), (7, 43, 0, 0), (7, 22, 7, 21), (2, 130, 1, 41))


def split_rows(
    clients: int,
    sizes: tuple[int, int, int, int],
    generator: Generator,
    dtype: torch.dtype,
    num_orders: int = 2,
) -> tuple[Any, ...]:
    """Return rows, random orders of their coordinates, and the sizes of groups."""
    dim = sizes[0] * sizes[1] + sizes[2] * sizes[3]
    orders = [KeyedOrder(dim, seed) for seed in range(num_orders)]
    return random_rows(2, clients, dim, generator, dtype), orders, sizes


def all_splits(clients: tuple[int, ...]) -> dict[str, Make]:
    """Return rows and splits of all shapes, with an order for each run or one for all."""
    return {
        f"{number} {sizes} {num_orders}": partial(split_rows, number, sizes, num_orders=num_orders)
        for number in clients
        for sizes in SIZES
        for num_orders in (1, 2)
    }


def ranks_of(values: Tensor, generator: Generator) -> tuple[int, int]:
    """Trim a quarter of the clients."""
    clients = values.shape[-1]
    return clients // 4, clients - clients // 4


def nearest_of(values: Tensor, generator: Generator) -> tuple[int, str, None]:
    """Take two thirds of the clients."""
    return max(1, 2 * values.shape[-1] // 3), "mean", None


def nearest_among(values: Tensor, generator: Generator) -> tuple[int, str, order.Among]:
    """Take half of three quarters of the clients."""
    clients = values.shape[-1]
    shape = (*values.shape[:-2], clients)
    num = max(1, 3 * clients // 4)
    chosen = torch.rand(shape, generator=generator).argsort(dim=-1)[..., :num]
    is_among = torch.zeros(shape, dtype=torch.bool).scatter_(-1, chosen, value=True)
    return max(1, num // 2), "lower", order.Among(is_among, num)


def tied_columns() -> dict[str, Make]:
    """Return columns in which many values are equal."""
    return {
        f"{clients} signs": lambda g, t, clients=clients: (signs(2, clients, 90, g, t).mT,)
        for clients in (5, 12, 50)
    }


def whole(families: dict[str, Make]) -> dict[str, Make]:
    """Leave out groups."""
    return {name: make for name, make in families.items() if "groups" not in name}


def nearest_mean(values: Tensor, num: int, even: str, among: Any) -> Tensor:
    """Return the mean and the bounds of the values nearest to the median."""
    mean = order.mean_nearest_median(values, num, even, among)
    return mean, *order.bounds_nearest_median(values, num, even, among)


def ranks_mean(values: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
    """Return the mean and the bounds of some ranks."""
    return order.mean_of_ranks(values, first, last), *order.values_at_ranks(values, first, last)


ORDERED = all_columns(sizes=(2, 5, 21, 70)) | tied_columns()
NEAREST = {f"{name} all": make for name, make in with_more(ORDERED, nearest_of).items()} | {
    f"{name} among": make for name, make in with_more(ORDERED, nearest_among).items()
}

CASES = {
    "row_norms": Case(lambda values: rows.row_norms(values.mT), whole(all_columns(offset=3)), SUMS),
    "weighted_sum": Case(
        lambda values, weights: rows.weighted_sum(values.mT, weights),
        with_more(all_columns(offset=3), weights_of),
        SUMS,
    ),
    "squared_distances_to_vector": Case(
        rows.squared_distances_to_vector, with_more(all_columns(offset=3), a_vector), SUMS
    ),
    "sums_of_roots": Case(
        rows.sums_of_roots,
        {
            str(shape): lambda g, t, shape=shape: (
                torch.randn(shape, generator=g, dtype=t).square() - 0.01,
            )
            for shape in ((1, 1, 3), (2, 70, 5), (1, 5000, 50))
        },
        EXACT,
    ),
    "gram": Case(
        pairs.gram, with_more(whole(all_columns(offset=3, sizes=(5, 12, 33, 60))), a_centre), SUMS
    ),
    "gram_of_groups": Case(
        lambda values, centre: pairs.gram(values, centre[: len(centre)]),
        with_more(
            {
                name: make
                for name, make in all_columns(offset=3, sizes=(5, 12, 33, 60)).items()
                if "groups" in name
            },
            centres_of_groups,
        ),
        SUMS,
    ),
    "squared_distances": Case(
        lambda given, originals: pairs.squared_distances(given, torch.float32, originals),
        all_products(),
        SUMS,
    ),
    "sums_of_smallest_distances": Case(
        lambda given, originals: pairs.sums_of_smallest_distances(
            given, 4, torch.float32, originals
        ),
        all_products(),
        SUMS,
    ),
    "squared_distances_to_average": Case(
        lambda given, originals, weights: pairs.squared_distances_to_average(
            given, weights, torch.float32, originals
        ),
        with_more(all_products(), weights_of),
        SUMS,
    ),
    "pairwise_differences": Case(pairs.pairwise_differences, few_columns(), SUMS),
    "sums_of_smallest_differences": Case(
        pairs.sums_of_smallest_differences,
        {
            f"{name} {longest}": make
            for longest in (1e3, float("inf"))
            for name, make in with_more(
                few_columns(), lambda _, __, longest=longest: (4, longest)
            ).items()
        },
        SUMS,
    ),
    "differences_to_average": Case(
        pairs.differences_to_average, with_more(few_columns(), weights_of), SUMS
    ),
    "sum_of_smallest": Case(
        order.sum_of_smallest,
        with_more(all_scores(), lambda values, _: (max(1, values.shape[-1] // 2),)),
        {torch.float32: 2e-7} | EXACT,
    ),
    "ranks": Case(ranks_mean, with_more(ORDERED, ranks_of), MEANS),
    "ranks_and_counts": Case(
        order.mean_of_ranks_and_counts, with_more(whole(ORDERED), ranks_of), MEANS
    ),
    "nearest": Case(nearest_mean, NEAREST, MEANS),
    "nearest_and_counts": Case(order.mean_nearest_median_and_counts, whole(NEAREST), MEANS),
    "smallest": Case(
        order.smallest, with_more(all_scores(), lambda v, _: (max(1, v.shape[-1] // 2),)), {}
    ),
    "average_of_smallest": Case(
        order.average_of_smallest,
        with_more(all_scores(), lambda v, _: (max(1, v.shape[-1] // 3),)),
        {},
    ),
    "select_one_by_one": Case(
        order.select_one_by_one,
        {
            f"{clients} {are_tied}": partial(squared_distances, clients, are_tied)
            for clients in (3, 7, 12, 50, 130)
            for are_tied in (False, True)
        },
        {},
    ),
    "leading_projections": Case(
        eigen.leading_projections,
        {
            f"{clients} {kind}": partial(matrices, clients, kind)
            for clients in (2, 5, 12, 70)
            for kind in ("random", "signs", "zero")
        },
        {torch.float64: 1e-10},
    ),
    "in_order": Case(
        lambda values, orders, _: groups.in_order(values, orders).clone(), all_splits((8, 12, 50))
    ),
    "pair_sums": Case(groups.pair_sums, all_splits((2, 5, 9)), EXACT),
}
