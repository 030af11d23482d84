"""Products of rows with weights, whose gradients go straight to where the optimiser wants them."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Product(Function):
    """``rows @ weight + bias`` for many models; the weights' gradients are written, not returned.

    Returned ones would be allocated anew in every step and copied once more.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        to_weight: Tensor,
        to_bias: Tensor | None,
        anchor: Tensor,
    ) -> Tensor:
        """Multiply ``rows [models, num, inputs]`` with ``weight [models, inputs, outputs]``.

        `anchor` only has to require a gradient: without one, torch would not come back here.
        """
        del anchor
        ctx.save_for_backward(rows, weight)
        ctx.to_weight, ctx.to_bias = to_weight, to_bias
        return multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        """Write the gradients of the weights, return that of the rows."""
        (gradient,) = outer
        rows, weight = ctx.saved_tensors
        torch.bmm(rows.mT, gradient, out=ctx.to_weight)
        if ctx.to_bias is not None:
            torch.sum(gradient, dim=1, out=ctx.to_bias)
        inner = torch.bmm(gradient, weight.mT) if ctx.needs_input_grad[0] else None
        return inner, None, None, None, None, None


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``rows @ weight + bias``."""
    if bias is None:
        return torch.bmm(rows, weight)
    return torch.baddbmm(bias.unsqueeze(1), rows, weight)
