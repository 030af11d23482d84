"""Small federations for tests of the engine: random images, a few clients, no files."""

import numpy as np
import torch
from torch import nn

import outvote as ov
from outvote.engine.federation import make_federation
from outvote.engine.run_stack import Run
from outvote.training.local_sgd import LocalSGD
from outvote.training.samples import ByteImages

TRAINING = LocalSGD(num_epochs=2, batch_size=16, learning_rate=0.05)
CPU = torch.device("cpu")


def samples(num: int, dtype: torch.dtype = torch.float64, shape=(6, 6, 1)) -> ByteImages:
    random = np.random.default_rng(num)
    images = random.integers(0, 256, (num, *shape), dtype=np.uint8)
    labels = random.integers(0, 4, num)
    return ByteImages(images, labels, mean=[0.5], std=[0.3], device=CPU, dtype=dtype)


def make_runs(pairs, seed: int = 0) -> list[Run]:
    runs = []
    for k, (rule, attack) in enumerate(pairs, seed):
        parts = np.array_split(np.random.default_rng(k).permutation(120), 8)
        runs.append(
            Run(
                federation=make_federation(parts, fraction=0.25, seed=k),
                attack=ov.make_attack(attack),
                rule=ov.make_rule(rule),
                seed=k,
                num_sampled=6,
            )
        )
    return runs


def networks(runs, name: str = "mlp", dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    return [
        ov.make_model(name, num_classes=4, input_shape=(6, 6, 1), seed=run.seed).to(dtype)
        for run in runs
    ]
