"""One way to call a rule in every test: numpy on the CPU, torch tensors on any other device."""

import numpy as np
import torch


def inspect(rule, X, device, **facts):
    """The verdict on `X`, with `state` and `reference` on the same device."""
    X = np.asarray(X)
    for name in facts.keys() & {"state", "reference"}:
        if isinstance(facts[name], np.ndarray):
            facts[name] = _place(facts[name], device)
    return rule.inspect(_place(X, device), **facts)


def update_of(verdict):
    """The update as a float64 array on the CPU."""
    update = verdict.update
    if isinstance(update, torch.Tensor):
        update = update.cpu().numpy()
    return np.asarray(update, dtype=np.float64)


def aggregate(rule, X, device, **facts):
    return update_of(inspect(rule, X, device, **facts))


def _place(array, device):
    return array if device.type == "cpu" else torch.from_numpy(array).to(device)
