"""Inner products of a few long rows: a GPU is busy only if they are cut into many pieces.

Asked for the products of 18 rows of millions, its own library gives each matrix to one or a few of
132 processors, which takes a hundred times as long as reading the rows.
"""

from math import ceil, prod

import torch
from torch import Tensor

# So many blocks of work keep every processor of a GPU busy to the end.
ENOUGH_BLOCKS = 1024
# Rows of a block, and coordinates below which a piece is not worth a block of its own.
BLOCK_ROWS, SHORTEST = 64, 2048
# More matrices than this keep a GPU busy by themselves.
MANY_MATRICES = 32


def long_products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right.mT``, ``[..., rows, dim]`` each, with sums of pieces in float64."""
    num_matrices = prod(left.shape[:-2])
    num_blocks = num_matrices * prod(ceil(x.shape[-2] / BLOCK_ROWS) for x in (left, right))
    if left.device.type == "cpu" or num_blocks == 0 or num_matrices > MANY_MATRICES:
        return torch.matmul(left, right.mT)
    num_pieces = min(left.shape[-1] // SHORTEST, ENOUGH_BLOCKS // num_blocks)
    if num_pieces < 2:
        return torch.matmul(left, right.mT)
    return in_pieces(left, right, num_pieces)


def in_pieces(left: Tensor, right: Tensor, num_pieces: int) -> Tensor:
    """Return ``left @ right.mT`` from the products of about so many pieces of the rows."""
    *batch, num_left, dim = left.shape
    width = dim // num_pieces // 16 * 16 or dim
    right = right.expand(*batch, *right.shape[-2:])
    found = [
        _matrix_in_pieces(one, other, width)
        for one, other in zip(_matrices(left), _matrices(right), strict=True)
    ]
    return torch.stack(found).to(left.dtype).view(*batch, num_left, right.shape[-2])


def _matrices(rows: Tensor) -> Tensor:
    return rows.reshape(-1, *rows.shape[-2:])


def _matrix_in_pieces(left: Tensor, right: Tensor, width: int) -> Tensor:
    num_pieces = left.shape[-1] // width
    whole = num_pieces * width

    def cut(rows: Tensor) -> Tensor:
        pieces: Tensor = rows[:, :whole].unflatten(-1, (num_pieces, width))
        return pieces.transpose(0, 1)

    total = torch.bmm(cut(left), cut(right).mT).sum(dim=0, dtype=torch.float64)
    if whole < left.shape[-1]:
        total += torch.matmul(left[:, whole:], right[:, whole:].mT)
    return total
