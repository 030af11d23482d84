"""One way to call a rule in every test: numpy on the CPU, torch tensors on any other device."""

import numpy as np
import torch


def inspect(rule, X, device, **facts):
    """The verdict on `X`; `state` and `reference` may be given as numpy arrays or lists."""
    X = np.asarray(X)
    for name in facts.keys() & {"state", "reference"}:
        facts[name] = None if facts[name] is None else _place(np.asarray(facts[name]), device)
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
