"""Results that cannot be trusted, counted while the device works on."""

import torch
from torch import Tensor


class Doubts:
    """How many results were doubtful; who asks waits for the device."""

    def __init__(self, device: torch.device) -> None:
        """Start with none."""
        self.count = torch.zeros(1, dtype=torch.int32, device=device)

    def add(self, doubtful: Tensor) -> None:
        """Take note of a mask."""
        self.count += doubtful.any()

    def are_any(self) -> bool:
        """Tell whether anything was doubtful."""
        return bool(self.count)
