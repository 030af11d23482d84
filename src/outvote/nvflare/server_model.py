"""The model of the server: what a contribution must look like, and the way back to its arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
from torch import Tensor

from outvote.flat import as_tensor, to_float
from outvote.server.replies import Malformed, check_names, names_of_weights, quote


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerModel:
    """A model as weights and statistics.

    The rule aggregates the weights. Statistics (whole numbers, and the running averages of batch
    normalisation) have other units; they are merged by the median instead.
    """

    tensors: Mapping[str, Tensor]
    are_numpy: Mapping[str, bool]
    devices: Mapping[str, torch.device]
    weights: tuple[str, ...]
    statistics: tuple[str, ...]
    vector: Tensor
    """The weights, in float32 or float64."""

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "ServerModel":
        """Read the server's own model; it must be sound."""
        given = {name: as_tensor(value, f"array {quote(name)}") for name, value in values.items()}
        tensors = {name: each.cpu() for name, each in given.items()}
        for name, each in tensors.items():
            if not bool(each.isfinite().all()):
                raise ValueError(
                    f"array {quote(name)} of the model holds NaN or infinity; start from a sound "
                    "model."
                )
        weights = names_of_weights(
            {name: each.numel() for name, each in tensors.items()},
            {name: each.is_floating_point() for name, each in tensors.items()},
        )
        is_wide = any(tensors[name].dtype == torch.float64 for name in weights)
        dtype = torch.float64 if is_wide else torch.float32
        return cls(
            tensors=tensors,
            are_numpy={name: not isinstance(value, Tensor) for name, value in values.items()},
            devices={name: each.device for name, each in given.items()},
            weights=tuple(weights),
            statistics=tuple(name for name in tensors if name not in weights),
            vector=torch.cat([tensors[name].reshape(-1).to(dtype) for name in weights]),
        )

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The number of weights in each array, in the order of the vector."""
        return tuple(prod(self.tensors[name].shape) for name in self.weights)

    def update_of(
        self, sent: Mapping[str, Any], *, is_difference: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the update and the statistics of a contribution, or raise Malformed.

        The update is what was sent minus the model; differences are sent as such.
        """
        check_names(self.tensors, sent)
        arrays = {name: self._checked(name, sent[name]) for name in self.tensors}
        parts = [arrays[name].reshape(-1).to(self.vector.dtype) for name in self.weights]
        row = torch.cat(parts)
        if is_difference:
            moved = (_added(self.tensors[name], arrays[name]) for name in self.statistics)
            return row, tuple(moved)
        return row.sub_(self.vector), tuple(arrays[name] for name in self.statistics)

    def moved(self, step: Tensor, statistics: Sequence[Tensor]) -> dict[str, Tensor] | None:
        """Return the arrays after a step, in their own dtypes; None if they were not finite."""
        vector = self.vector + step
        if not bool(vector.isfinite().all()):
            return None
        parts = zip(self.weights, vector.split(self.layer_sizes), strict=True)
        found = {name: to_float(part, self.tensors[name].dtype) for name, part in parts}
        found |= dict(zip(self.statistics, statistics, strict=True))
        return {name: found[name].view(each.shape) for name, each in self.tensors.items()}

    def restored(self, arrays: Mapping[str, Tensor], *, as_difference: bool) -> dict[str, Any]:
        """Return arrays as the server has them, in numpy or torch; or how the model changes."""
        found = {}
        for name, after in arrays.items():
            value = _subtracted(after, self.tensors[name]) if as_difference else after
            found[name] = value.numpy() if self.are_numpy[name] else value.to(self.devices[name])
        return found

    def _checked(self, name: str, value: Any) -> Tensor:
        which, mine = f"array {quote(name)}", self.tensors[name]
        try:
            tensor = as_tensor(value, which).cpu()
        except (TypeError, ValueError) as error:
            raise Malformed(f"{which} cannot be read: {quote(error)}") from error
        if tensor.dtype != mine.dtype:
            raise Malformed(f"{which} is of {_kind(tensor)}, the model's of {_kind(mine)}")
        if tensor.shape != mine.shape:
            shapes = f"{quote(tuple(tensor.shape))}, the model's {tuple(mine.shape)}"
            raise Malformed(f"{which} has the shape {shapes}")
        return tensor


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Truth values have no difference; `numpy` and this module add them by "or".
def _added(one: Tensor, two: Tensor) -> Tensor:
    return one | two if one.dtype == torch.bool else one + two


def _subtracted(one: Tensor, two: Tensor) -> Tensor:
    return one & ~two if one.dtype == torch.bool else one - two
