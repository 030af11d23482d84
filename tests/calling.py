"""One way to call a rule in every test: numpy on the CPU, torch tensors on any other device."""

import numpy as np
import torch


def inspect(rule, X, device, **info):
    """The verdict on `X`, with `state` and `reference` on the same device."""
    X = np.asarray(X)
    for name in info.keys() & {"state", "reference"}:
        if isinstance(info[name], np.ndarray):
            info[name] = _on(info[name], device)
    return rule.inspect(_on(X, device), **info)


def update_of(verdict):
    """The update as a float64 array on the CPU."""
    update = verdict.update
    if isinstance(update, torch.Tensor):
        update = update.cpu().numpy()
    return np.asarray(update, dtype=np.float64)


def aggregate(rule, X, device, **info):
    return update_of(inspect(rule, X, device, **info))


def _on(array, device):
    return array if device.type == "cpu" else torch.from_numpy(array).to(device)
