"""Are the gradients of stacked models those of torch? Asked once on every GPU, before training.

Kernels depend on the GPU, the driver and the versions of Triton and torch. A wrong gradient raises
no error, it trains badly. So one batch is also computed by torch alone, and compared parameter by
parameter. Rounding to bfloat16 changes the direction of a gradient a little; a wrong one points
anywhere.
"""

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outvote.ops.precision import exact_layers

if TYPE_CHECKING:
    from outvote.training.samples import Samples
    from outvote.training.stacked_model import StackedModel

# The cosine of the angle between two gradients of a parameter that is small enough.
LEAST_COSINE = 0.5
# Gradients shorter than this share of the longest are noise, and are not compared.
SHORTEST = 0.01
MOST_SAMPLES = 32


def reference_gradients(
    module: nn.Module, weights: Tensor, buffers: Tensor, images: Tensor, labels: Tensor
) -> list[Tensor]:
    """Return the gradients of all parameters by torch alone, in float32 or better.

    `weights` and `buffers` are vectors of one model, images ``[batch, height, width, channels]``.
    """
    own = deepcopy(module).to(images.device, torch.promote_types(weights.dtype, torch.float32))
    # Copied: kernels of torch need parameters at aligned addresses, which parts of a vector lack.
    _copy_parts(weights, [parameter.detach() for parameter in own.parameters()])
    _copy_parts(buffers, list(own.buffers()))
    own.train()
    is_image = images.dim() == 4
    inputs = images.to(next(own.parameters()).dtype)
    with torch.enable_grad(), exact_layers(images.device):
        logits = own(inputs.movedim(-1, 1) if is_image else inputs)
        loss = F.cross_entropy(logits, labels)
        return list(torch.autograd.grad(loss, list(own.parameters())))


def _copy_parts(vector: Tensor, targets: list[Tensor]) -> None:
    """Copy the parts of a vector to tensors, one after the other."""
    parts = vector.split([values.numel() for values in targets])
    for values, part in zip(targets, parts, strict=True):
        values.copy_(part.view(values.shape))


def wrong_parameters(names: list[str], found: list[Tensor], wanted: list[Tensor]) -> list[str]:
    """Return the parameters whose gradients point elsewhere, or are not finite.

    >>> one, two = torch.ones(3), torch.tensor([1.0, -1.0, 0.0])
    >>> wrong_parameters(["a", "b"], [one, two], [one, one])
    ['b']
    """
    lengths = [float(values.double().norm()) for values in wanted]
    if not all(torch.isfinite(values).all() for values in wanted):
        return []  # The model has diverged: there is nothing to compare with.
    least = SHORTEST * max(lengths, default=0.0)
    wrong = []
    for name, own, theirs, length in zip(names, found, wanted, lengths, strict=True):
        product = float((own.double().flatten() * theirs.double().flatten()).sum())
        is_close = product >= LEAST_COSINE * length * float(own.double().norm())
        is_long = float(own.double().norm()) >= LEAST_COSINE * length
        if length > least and not (is_close and is_long):
            wrong.append(name)
    return wrong


def check_gradients(
    module: nn.Module,
    model: "StackedModel",
    samples: "Samples",
    weights: Tensor,
    buffers: Tensor,
    index: Tensor,
    gradients: Tensor,
) -> None:
    """Raise if ``gradients [dim]`` of one model on some samples are not those of torch."""
    images, labels = samples.batch(index), samples.targets[index]
    wanted = reference_gradients(module, weights, buffers, images, labels)
    found = list(gradients.split([slot.size for slot in model.slots]))
    names = [name for name, _ in module.named_parameters()]
    wrong = wrong_parameters(names, found, wanted)
    if wrong:
        raise RuntimeError(
            f"the kernels of this GPU compute wrong gradients for {', '.join(wrong[:5])}"
            f"{' and others' if len(wrong) > 5 else ''} of {type(module).__name__}: they are not "
            "those of torch. Train with trainer='vmap' or 'sequential', and report it with the "
            "versions that `outvote doctor` prints."
        )
