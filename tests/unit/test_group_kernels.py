"""Kernels for groups of coordinates against plain torch, on a GPU or in the interpreter."""

from collections.abc import Callable
from math import frexp

import pytest
import torch
from torch import Tensor

from outvote.ops import client_kernels, distances, group_kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not group_kernels.can_add(torch.zeros(1, 1, 1, device=DEVICE)),
    reason="needs a GPU, or Triton with TRITON_INTERPRET=1",
)
SCALES = [1.0, 3e38, 1e-38]
SIZES = [(2, 1), (5, 2), (5, 8), (50, 3), (50, 25), (64, 9), (65, 2), (128, 3)]


def _columns(num_clients: int, width: int, scale: float = 1.0, groups: int = 1) -> Tensor:
    """Return two runs in memory with gaps; in both, the last client is a copy of the first."""
    generator = torch.Generator().manual_seed(num_clients * 100 + width)
    padded = torch.randn(2, groups, width, num_clients + 3, generator=generator)
    columns = padded.clamp_(-1, 1).mul_(scale).to(DEVICE)[..., :num_clients]
    columns[..., -1] = columns[..., 0]
    return columns


def _pairs(columns: Tensor) -> Tensor:
    exact = columns.double()
    return (exact.unsqueeze(-1) - exact.unsqueeze(-2)).square().sum(dim=-3)


@needs_kernels
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("num_clients", "width"), SIZES)
def test_differences_of_all_pairs(num_clients: int, width: int, scale: float) -> None:
    columns = _columns(num_clients, width, scale, groups=3)
    found = group_kernels.pairwise_differences(columns)
    torch.testing.assert_close(found, _pairs(columns), rtol=1e-12, atol=0)
    assert torch.equal(found, found.mT)
    assert float(found.diagonal(dim1=-2, dim2=-1).abs().max()) == 0
    assert torch.equal(found[..., 0, :], found[..., -1, :])


SORTED = [(2, 1, 1.0), (5, 2, 3e38), (5, 8, 1e-38), (7, 25, 1.0)]
# Triton's interpreter takes half a minute to sort these.
SORTED_ON_GPU = [(50, 3, 1.0), (50, 25, 3e38), (64, 9, 1.0), (65, 2, 1.0), (128, 8, 1e-38)]


@needs_kernels
@pytest.mark.parametrize(
    ("num_clients", "width", "scale"), SORTED + (SORTED_ON_GPU if DEVICE.type == "cuda" else [])
)
def test_sums_of_the_smallest_differences(num_clients: int, width: int, scale: float) -> None:
    columns = _columns(num_clients, width, scale)
    for num_smallest in {1, num_clients // 2 + 1, num_clients}:
        found = group_kernels.sums_of_smallest(columns, num_smallest)
        ranked = _pairs(columns).sort(dim=-1).values[..., :num_smallest]
        torch.testing.assert_close(found, ranked.sum(dim=-1), rtol=1e-12, atol=0)
        assert torch.equal(found[..., 0], found[..., -1])


FAMILIES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "heavy-tailed": lambda x: x / (x.roll(1, dims=-1).abs() + 1e-3) ** 3,
    "nearly equal": lambda x: x[..., :1] * (1 + 1e-6 * x),
    "of many sizes": lambda x: x * torch.logspace(-12, 3, x.shape[-1], device=x.device),
    "huge": lambda x: x * 1e16,
    "tiny": lambda x: x * 1e-30,
    "subnormal": lambda x: x * 1e-36,
}
RANKED = [(1, 1), (2, 1), (3, 32), (5, 8), (7, 25), (50, 25)]
RANKED_ON_GPU = [(20, 32), (50, 3), (64, 9), (65, 2), (128, 32)]


@needs_kernels
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("num_clients", "width"), RANKED + (RANKED_ON_GPU if DEVICE.type == "cuda" else [])
)
def test_sums_of_the_smallest_differences_in_float32(
    num_clients: int, width: int, family: str
) -> None:
    columns = FAMILIES[family](_columns(num_clients, width))
    columns[..., -1] = columns[..., 0]
    longest = float(columns.double().square().sum(dim=-2).max().sqrt())
    ranked = _pairs(columns).sort(dim=-1).values
    for num_smallest in {1, num_clients // 2 + 1, num_clients}:
        found = group_kernels.sums_of_smallest(columns, num_smallest, longest)
        exact = ranked[..., :num_smallest].sum(dim=-1)
        torch.testing.assert_close(found, exact, rtol=(width + 3) * 6e-8, atol=0)
        assert torch.equal(found[..., 0], found[..., -1])
    # Itself and its copy are at 0, exactly.
    nearest = group_kernels.sums_of_smallest(columns, min(2, num_clients), longest)
    assert nearest[..., 0].tolist() == [[0.0]] * 2


@needs_kernels
def test_sums_are_finite_and_exact_where_clients_are_too_long_for_float32() -> None:
    columns = _columns(5, 8)
    columns *= group_kernels.SAFE_NORM / columns.double().square().sum(dim=-2).max().sqrt()
    exact = _pairs(columns).sum(dim=-1)
    safe = group_kernels.sums_of_smallest(columns, 5, 0.999 * group_kernels.SAFE_NORM)
    torch.testing.assert_close(safe, exact, rtol=11 * 6e-8, atol=0)
    assert not torch.equal(safe, exact)
    torch.testing.assert_close(
        group_kernels.sums_of_smallest(columns, 5, group_kernels.SAFE_NORM),
        exact,
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("norm", [0.0, 1e-45, 1e-10, 1.0, 1.5, 2.0, 1e6, 9.99e17])
def test_scaled_squares_are_as_large_as_is_safe(norm: float) -> None:
    scale = group_kernels.scale_for(norm)
    assert frexp(scale)[0] == 0.5  # A power of two.
    finite = torch.finfo(torch.float32)
    assert finite.tiny < 1 / scale < finite.max / 8
    assert (2 * norm * scale) ** 2 < finite.max / 8
    if norm >= 1e-10:
        assert (2 * norm * scale) ** 2 > finite.max / 1e3


@needs_kernels
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("num_clients", "width"), [*SIZES[:6], (51, 51)])
def test_distances_to_an_average(num_clients: int, width: int, scale: float) -> None:
    columns = _columns(num_clients, width, scale, groups=9)
    weights = torch.rand(2, 9, num_clients, dtype=torch.float64, device=DEVICE)
    weights /= weights.sum(dim=-1, keepdim=True)
    weights[0, 0] = 0
    weights[0, 0, 1] = 1  # The average of one client is that client.
    found = group_kernels.distances_to_average(columns, weights)
    exact = columns.double()
    far = (exact - exact @ weights.unsqueeze(-1)).square().sum(dim=-2)
    # What is 0 but for rounding depends on the order of the sums.
    tiny = 1e-24 * float(exact.square().sum(dim=-2).max())
    torch.testing.assert_close(found, far, rtol=1e-9, atol=tiny)
    assert float(found[0, 0, 1]) == 0
    torch.testing.assert_close(found[..., 0], found[..., -1], rtol=1e-12, atol=tiny)


@needs_kernels
@pytest.mark.parametrize("are_rows", [True, False])
@pytest.mark.parametrize(
    ("num_clients", "dim"),
    [
        (2, 33),
        (5, 1),
        (5, 1504),
        (8, 70),
        (9, 64),
        (13, 90),
        (18, 200),
        (21, 77),
        (50, 1500),
        (61, 64),
    ],
)
def test_products_keep_the_digits_of_float32(num_clients: int, dim: int, are_rows: bool) -> None:
    columns = _columns(num_clients, dim, groups=2)
    if are_rows:
        columns = columns.mT.contiguous().mT
    centre = torch.tensor([1, 0], device=DEVICE)
    assert group_kernels.can_multiply(columns)
    found = group_kernels.products(columns, centre)
    middle = distances.of_client(columns, centre)
    centred = (columns - middle).double()
    norms = centred.square().sum(dim=-2).sqrt()
    error = (found.double() - centred.mT @ centred).abs()
    assert bool((error <= 4e-7 * norms.unsqueeze(-1) * norms.unsqueeze(-2)).all())


@needs_kernels
def test_padding_between_coordinates_is_read_where_it_is_in_memory() -> None:
    values = torch.zeros(2, 3, 10, 16, device=DEVICE)
    layout = group_kernels.layout_of(values[..., :13])
    assert (layout.width, layout.unit, layout.are_rows) == (16, 16, False)
    assert layout.strides == (30, 10, 1, 1)
    short = torch.zeros(values.numel() - 1, device=DEVICE).as_strided(
        (2, 3, 10, 13), values.stride()
    )
    assert group_kernels.layout_of(short).width == 0
    rows = torch.zeros(2, 3, 5, 12, device=DEVICE)
    layout = group_kernels.layout_of(rows.mT)
    assert (layout.width, layout.unit, layout.are_rows) == (0, 4, True)
    assert layout.strides == (45, 15, 1, 3)


@needs_kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Of numpy, in the interpreter.
def test_products_that_overflow_are_seen_by_the_check() -> None:
    columns = _columns(5, 40, 3e38)
    found = group_kernels.products(columns, torch.tensor([1, 1], device=DEVICE))
    far = distances.squared_distances(found, lambda: columns, torch.float32)
    torch.testing.assert_close(far, _pairs(columns), rtol=1e-9, atol=0)


@needs_kernels
def test_many_coordinates_are_multiplied_in_pieces() -> None:
    columns = _columns(3, 3000)
    found = group_kernels.products(columns, torch.tensor([0, 1], device=DEVICE))
    assert found.dtype == torch.float64
    middle = distances.of_client(columns, torch.tensor([0, 1], device=DEVICE))
    centred = (columns - middle).double()
    torch.testing.assert_close(found, centred.mT @ centred, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("num_matrices", [1, 2, 12, 1000, 10_000])
@pytest.mark.parametrize("dim", [1, 33, 1024, 2473, 2_472_266, 100_000_000])
def test_pieces_cover_all_coordinates(num_matrices: int, dim: int) -> None:
    piece = group_kernels.piece_length(num_matrices, dim)
    num_pieces = -(-dim // piece)
    assert piece % 32 == 0
    assert piece <= group_kernels.LONGEST_PIECE
    assert (num_pieces - 1) * piece < dim
    assert num_pieces * num_matrices < 2**31


@needs_kernels
def test_equal_weights_for_the_smallest_scores() -> None:
    scores = torch.tensor([[3.0, 1.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]], device=DEVICE)
    found = group_kernels.average_of_smallest(scores.double(), 3)
    third = 1 / 3
    exact = [[0, third, third, 0, third], [third, third, third, 0, 0]]
    assert found.tolist() == exact


@needs_kernels
@pytest.mark.parametrize(
    ("runs", "num_groups", "num_clients"),
    [(1, 1, 1), (3, 7, 5), (1, 1000, 50), (2, group_kernels.ADDED_GROUPS + 1, 3)],
)
def test_sums_of_roots(runs: int, num_groups: int, num_clients: int) -> None:
    generator = torch.Generator().manual_seed(9)
    shape = (runs, num_groups, num_clients)
    squared = torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE)
    squared[..., -1] = squared[..., 0]
    found = group_kernels.sums_of_roots(squared)
    torch.testing.assert_close(found, squared.clamp(min=0).sqrt().sum(dim=1), rtol=1e-12, atol=0)
    assert torch.equal(found[..., -1], found[..., 0])
    squared[-1, -1, 0] = torch.nan
    is_number = group_kernels.sums_of_roots(squared).isnan().logical_not_()
    assert not bool(is_number[-1, 0])
    assert int(is_number.sum()) == runs * num_clients - 1


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weighted_sum_reads_only_rows_with_a_weight(dtype: torch.dtype) -> None:
    rows = torch.randn(2, 7, 1500, device=DEVICE).to(dtype)
    weights = torch.rand(2, 7, dtype=torch.float64, device=DEVICE)
    exact = (weights.unsqueeze(1) @ rows.double()).squeeze(1)
    found = group_kernels.weighted_sum(rows, weights)
    torch.testing.assert_close(found, exact.float(), rtol=1e-6, atol=1e-6)
    weights[:, 2] = 0
    rows[:, 2] = torch.nan
    assert bool(group_kernels.weighted_sum(rows, weights).isfinite().all())


@needs_kernels
def test_averages_of_the_largest_numbers_do_not_overflow() -> None:
    rows = torch.full((1, 3, 5), torch.finfo(torch.float32).max, device=DEVICE)
    weights = torch.full((1, 3), 1 / 3 + 1e-12, dtype=torch.float64, device=DEVICE)
    assert torch.equal(group_kernels.weighted_sum(rows, weights)[0], rows[0, 0])


@needs_kernels
# Triton's interpreter misreads subnormal numbers of bfloat16.
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 1.0), (torch.float32, 3e38), (torch.float32, 1e-38), (torch.bfloat16, 1.0)],
)
@pytest.mark.parametrize(("num_clients", "dim"), [(1, 1), (5, 9000), (6, 4096), (3, 17_002)])
def test_sums_of_squares(num_clients: int, dim: int, dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(dim)
    rows = torch.randn(2, num_clients, dim + 2, generator=generator).clamp_(-1, 1) * scale
    rows = rows.to(DEVICE, dtype)[..., :dim]
    rows[:, -1] = rows[:, 0]
    minus = rows.float().mean(dim=1)
    for other in (None, minus):
        exact = rows.double() if other is None else rows.double() - other.double().unsqueeze(1)
        found = group_kernels.square_sums(rows, other)
        torch.testing.assert_close(found, exact.square().sum(dim=-1), rtol=1e-12, atol=0)
        assert torch.equal(found[:, 0], found[:, -1])


@needs_kernels
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("num_clients", "width"), [*SIZES, (5, 5000), (13, 100)])
def test_distances_to_a_vector(num_clients: int, width: int, scale: float) -> None:
    columns = _columns(num_clients, width, scale, groups=3)
    vector = columns.median(dim=-1).values
    for some, point in ((columns, vector), (columns[:, 0], vector[:, 0])):
        assert group_kernels.can_measure(some)
        found = group_kernels.squared_distances_to_vector(some, point)
        exact = (some.double() - point.double().unsqueeze(-1)).square().sum(dim=-2)
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=0)
        assert torch.equal(found[..., 0], found[..., -1])


@needs_kernels
def test_distances_to_the_update_of_every_run() -> None:
    rows = torch.randn(3, 4, 1000, device=DEVICE)
    updates = rows.mean(dim=1)
    far = distances.distances_to_update(rows, updates)
    plain = torch.linalg.vector_norm(rows.double() - updates.double().unsqueeze(1), dim=-1)
    torch.testing.assert_close(far, plain, rtol=1e-12, atol=0)
    own = torch.linalg.vector_norm(rows.double(), dim=-1)
    torch.testing.assert_close(distances.norms(rows.mT), own, rtol=1e-12, atol=0)


@needs_kernels
def test_every_group_may_have_a_centre_of_its_own() -> None:
    columns = torch.randn(2, 3, 40, 6, device=DEVICE)
    centre = torch.tensor([[0, 5, 2], [1, 1, 3]], device=DEVICE)
    found = group_kernels.products(columns, centre)
    middle = columns.gather(-1, centre[:, :, None, None].expand(2, 3, 40, 1))
    exact = (columns - middle).double()
    torch.testing.assert_close(found.double(), exact.mT @ exact, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize(("num_clients", "num_smallest"), [(2, 1), (5, 3), (7, 7)])
@pytest.mark.parametrize("has_copies", [False, True])
def test_sums_of_the_smallest_distances_are_those_of_all_distances(
    num_clients: int, num_smallest: int, has_copies: bool
) -> None:
    columns = _columns(num_clients, 90, groups=3)
    if not has_copies:
        columns[..., -1] *= 2
    originals = torch.arange(num_clients, device=DEVICE).repeat(2, 1)
    originals[:, -1] = 0
    products = group_kernels.products(columns, torch.tensor([1, 0], device=DEVICE))
    given = (torch.float32, originals if has_copies else None)
    checks = [distances.CancellationCheck(DEVICE) for _ in range(2)]
    found = distances.sums_of_smallest(products, num_smallest, *given, checks[0])
    far = distances.squared_distances(products, lambda: columns, *given, checks[1])
    assert found is not None
    ranked = far.sort(dim=-1).values[..., :num_smallest]
    torch.testing.assert_close(found, ranked.sum(dim=-1), rtol=1e-12, atol=0)
    assert int(checks[0].count) == int(checks[1].count) == 0
    if has_copies:
        assert torch.equal(found[..., 0], found[..., -1])


@needs_kernels
def test_sums_of_the_smallest_distances_count_what_is_inexact() -> None:
    columns = _columns(5, 90, groups=3)  # Copies that are not known as such.
    products = group_kernels.products(columns, torch.tensor([1, 1], device=DEVICE))
    check = distances.CancellationCheck(DEVICE)
    distances.sums_of_smallest(products, 3, torch.float32, None, check)
    assert int(check.count) == 6
    assert distances.sums_of_smallest(products, 3, torch.float32, None, None) is None


@needs_kernels
def test_parts_of_a_float_have_8_bits_and_nothing_is_lost() -> None:
    from outvote.ops.triton import gram as gram_triton

    x = torch.randn(256, generator=torch.Generator().manual_seed(0)).mul(10).to(DEVICE)
    # One client at 0 and the centre, another with one coordinate: a product of its parts.
    columns = torch.zeros(1, 256, 1, 9, device=DEVICE)
    columns[0, :, 0, 3] = x
    columns[0, :, 0, 5] = 1
    found = group_kernels.products(columns, torch.zeros(1, dtype=torch.int64, device=DEVICE))
    assert torch.equal(found[0, :, 3, 5], x), "all 24 bits enter a product with 1"
    squares = x.double().square()
    # Tensor cores round sums down: 2^-22.6 was seen on an H200.
    torch.testing.assert_close(found[0, :, 3, 3].double(), squares, rtol=2**-22, atol=0)
    assert gram_triton.FEW < 9


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_equal_rows_have_equal_norms_wherever_they_begin(offset: int, dtype: torch.dtype) -> None:
    dim = 4099  # Rows begin at all multiples of 4 bytes.
    row = torch.randn(dim, generator=torch.Generator().manual_seed(1))
    memory = torch.zeros(9 * dim + offset, dtype=dtype, device=DEVICE)
    rows = memory[offset:].view(9, dim).copy_(row.expand(9, dim))
    norms = distances.row_norms(rows)
    plain = torch.linalg.vector_norm(rows.double(), dim=-1)
    torch.testing.assert_close(norms.double(), plain, rtol=1e-6, atol=0)
    if group_kernels.can_add(rows.unsqueeze(0)):
        assert len(set(norms.tolist())) == 1


def _pieces(num_clients: int, num_pieces: int) -> Tensor:
    generator = torch.Generator().manual_seed(num_clients + num_pieces)
    return torch.rand(num_pieces, num_clients, generator=generator, dtype=torch.float64).to(DEVICE)


@needs_kernels
@pytest.mark.parametrize("num_pieces", [1, 3, 300, 700])
@pytest.mark.parametrize("num_clients", [1, 2, 7, 50, 64])
def test_lengths_and_a_client_of_median_length(num_clients: int, num_pieces: int) -> None:
    pieces = _pieces(num_clients, num_pieces)
    found, centre = group_kernels.lengths(pieces, 1e-10, 1e18)
    plain = pieces.sum(dim=0).sqrt()
    torch.testing.assert_close(found[:num_clients], plain, rtol=1e-14, atol=0)
    assert found[num_clients] == 0
    assert found[-1] == 0
    assert found[-1:].data_ptr() % 16 == 0
    assert centre.tolist() == [distances.central_client(found[:num_clients].tolist())]


UNUSUAL = {
    "not a number": (3, torch.nan),
    "infinite": (3, torch.inf),
    "long": (3, 1e36),
    "as long as another": (3, None),
    "not a number, the first": (0, torch.nan),
    "none is a number": (slice(None), torch.nan),
    "all are tiny": (slice(None), 1e-22),
    "all are zero": (slice(None), 0.0),
}


@needs_kernels
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_lengths_are_counted_and_the_centre_is_a_client(kind: str) -> None:
    pieces = _pieces(9, 3)
    where, value = UNUSUAL[kind]
    pieces[:, where] = pieces[:, 5] if value is None else value
    found, centre = group_kernels.lengths(pieces, 1e-10, 1e18)
    assert found[9] > 0
    assert found[-1] == 0
    assert 0 <= centre.item() < 9


@needs_kernels
def test_a_short_client_that_is_not_the_median_is_usual() -> None:
    pieces = _pieces(9, 3)
    pieces[:, 4] = 0
    found, _ = group_kernels.lengths(pieces, 1e-10, 1e18)
    assert found[9] == 0


@pytest.mark.parametrize(
    ("num_clients", "expected"),
    [(1, 8), (5, 8), (18, 24), (27, 32), (50, 64), (100, 104), (128, 128)],
)
def test_copied_coordinates_are_whole_lines_where_these_are_hardly_longer(
    num_clients: int, expected: int
):
    assert client_kernels.padded_clients(num_clients) == expected
