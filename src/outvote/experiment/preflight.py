"""Settings that no run can be played with are refused before anything is played."""

from collections.abc import Sequence

import torch

from outvote.experiment.build import RunBuilder
from outvote.experiment.checking import check_assumed
from outvote.experiment.dataset_cache import wanted
from outvote.experiment.spec import Spec
from outvote.training.batch_norm import check_batch_size


def check_playable(specs: Sequence[Spec], builder: RunBuilder) -> None:
    """Load the data and try the networks on one picture each; a fault is a ValueError."""
    seen = set()
    for spec in specs:
        _check_precision(spec, builder.device)
        if spec.data.partition == "by-group":
            builder.datasets.groups(spec.data)
        check_assumed(spec.federation, builder.num_sampled(spec))
        tried = (wanted(spec.data), spec.model.name, spec.training.batch_size)
        if tried not in seen:
            seen.add(tried)
            _try_network(spec, builder)


def _check_precision(spec: Spec, device: torch.device) -> None:
    if spec.precision == "bfloat16" and device.type == "cpu":
        raise ValueError(
            "precision must be 'float32' or 'tf32' on a CPU, got 'bfloat16'; change it, or take "
            "--device cuda."
        )


def _try_network(spec: Spec, builder: RunBuilder) -> None:
    height, width, channels = builder.datasets.dataset(spec.data).shape
    try:
        network = builder.network(spec).eval()
        with torch.no_grad():
            network(torch.zeros(1, channels, height, width))
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"model.name: {spec.model.name} cannot take the {height} x {width} pictures of "
            f"{spec.data.name} ({str(error).splitlines()[0].rstrip('.')}); choose another network "
            "or dataset."
        ) from error
    check_batch_size(network, spec.training)
