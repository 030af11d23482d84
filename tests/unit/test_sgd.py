"""A step of SGD for many models against torch's own optimiser and its clipping."""

import pytest
import torch
from torch import nn

from outvote.ops.sgd import take_step
from outvote.training.local_sgd import LocalSGD


@pytest.mark.parametrize("max_norm", [None, 2.0, 1e6])
@pytest.mark.parametrize("copied", [None, torch.bfloat16])
def test_steps_are_those_of_torch(max_norm, copied, device):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 300, generator=generator)
    runs = torch.tensor([1, 0, 1])
    gradients = torch.randn(3, 3, 300, generator=generator)
    settings = LocalSGD(momentum=0.5, weight_decay=1e-3, max_norm=max_norm)

    wanted = [nn.Parameter(start[run].double()) for run in runs]
    for one, own in zip(wanted, gradients.unbind(dim=1), strict=True):
        optimiser = torch.optim.SGD([one], lr=0.1, momentum=0.5, weight_decay=1e-3)
        for gradient in own:
            one.grad = gradient.double()
            if max_norm is not None:
                nn.utils.clip_grad_norm_([one], max_norm)
            optimiser.step()

    # What is not set yet must not be read.
    weights, velocities = (torch.full((3, 300), torch.nan, device=device) for _ in range(2))
    copy = None if copied is None else weights.to(copied)
    for number, step in enumerate(gradients):
        is_first = number == 0
        take_step(
            weights,
            step.clone().to(device),
            velocities,
            copy,
            settings,
            0.1,
            is_first=is_first,
            start=(start.to(device), runs.to(device)) if is_first else None,
            num_going=0 if number == len(gradients) - 1 else 3,
        )
        if copy is not None and number < len(gradients) - 1:
            torch.testing.assert_close(copy, weights.to(copied))
    torch.testing.assert_close(weights.cpu().double(), torch.stack(wanted), rtol=1e-5, atol=1e-5)
