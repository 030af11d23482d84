"""What is added up over the coordinates of files: norms, distances and inner products."""

from math import inf

import numpy as np
import torch
from torch import Tensor

from outvote.ops import distances
from outvote.ops.threads import mapped
from outvote.receive import LARGEST
from outvote.rules.column_stream import SUMMED_VALUES, tile_cuts
from outvote.rules.streamed_matrix import StreamedMatrix

MULTIPLIED_AT_ONCE = 1 << 16


class Scan:
    """The squared norms of the clients, added up."""

    def __init__(self, num_clients: int) -> None:
        """Start at 0."""
        self.squared = [0.0] * num_clients
        self.sample = torch.empty(num_clients, 0)
        """Some of the values of each: only clients alike in them can be copies."""

    def add(self, rows: Tensor) -> None:
        """Add the squares of some coordinates."""
        if not self.sample.numel():
            step = max(1, rows.shape[1] // distances.NUM_COMPARED)
            self.sample = rows[:, ::step].clone()
        found = mapped(lambda k: sum_of_squares(rows[k]), range(len(rows)))
        self.squared = [a + b for a, b in zip(self.squared, found, strict=True)]

    @property
    def norms(self) -> list[float]:
        """The norms; what is not finite was not, or was too large."""
        return [each**0.5 for each in self.squared]


def sum_of_squares(row: Tensor) -> float:
    """Return the squared norm; infinity if a number is not finite, or too large."""
    parts = [float(torch.dot(part, part)) for part in row.split(1 << 16)]
    total = sum(parts)
    # Short numbers underflow in float32, long ones overflow.
    if row.dtype == torch.float32 and not 1e-30 < total < 1e30:
        total = float(row.double().square().sum())
    if total > LARGEST and not bool((row.abs() <= LARGEST).all()):
        return inf
    return total


class ProductSum:
    """The inner products of the clients relative to the central one, added up."""

    def __init__(self, matrix: StreamedMatrix) -> None:
        """Start at 0."""
        self.centre = matrix.centre
        num_clients = matrix.num_clients
        self.own = torch.zeros(1, num_clients, num_clients, dtype=torch.float64)

    def add(self, piece: slice, rows: Tensor) -> None:
        """Add the products of some coordinates."""
        del piece

        def multiply(cut: tuple[int, int]) -> Tensor:
            values = rows[:, cut[0] : cut[1]].mT.unsqueeze(0)
            middle = distances.of_client(values, self.centre)
            return distances.with_itself(values - middle).double()

        self.own += torch.stack(mapped(multiply, tile_cuts(rows, SUMMED_VALUES))).sum(dim=0)


def squared_distances(rows: Tensor, vector: Tensor) -> Tensor:
    """Return the squared distances of the rows to a vector, float64."""
    far = [_far(rows[:, a:b], vector[a:b]) for a, b in tile_cuts(rows)]
    return torch.stack(far).sum(dim=0)


def _far(rows: Tensor, vector: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(rows - vector.to(rows.dtype), dim=-1, dtype=torch.float64)
    if not bool(norms.isfinite().all()):
        norms = torch.linalg.vector_norm(rows.double() - vector, dim=-1)
    squared: Tensor = norms.square()
    return squared


def inner_products(rows: Tensor, vector: Tensor) -> np.ndarray:
    """Return the inner products of the rows with a vector, and last of it with itself, float64."""
    vector = vector.to(rows.dtype)

    def multiply(start: int) -> Tensor:
        own = vector[start : start + MULTIPLIED_AT_ONCE]
        along = rows[:, start : start + MULTIPLIED_AT_ONCE] @ own
        return torch.cat([along, torch.dot(own, own).unsqueeze(0)]).double()

    parts = mapped(multiply, range(0, len(vector), MULTIPLIED_AT_ONCE))
    total: np.ndarray = torch.stack(parts).sum(dim=0).numpy()
    if np.isfinite(total).all() or rows.dtype == torch.float64:
        return total
    return inner_products(rows.double(), vector)
