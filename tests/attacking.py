"""One way to call an attack in every test: numpy on the CPU, torch tensors on any other device."""

import numpy as np
import torch


def place(array, device):
    array = np.asarray(array)
    return array if device.type == "cpu" else torch.from_numpy(array.copy()).to(device)


def inspect(attack, honest, device, **info):
    if isinstance(info.get("own"), np.ndarray):
        info["own"] = place(info["own"], device)
    return attack.inspect(place(honest, device), **info)


def rows_of(output):
    """The rows as a float64 array on the CPU."""
    rows = output.rows
    if isinstance(rows, torch.Tensor):
        rows = rows.double().cpu().numpy()
    return np.asarray(rows, dtype=np.float64)


def attack_rows(attack, honest, device, **info):
    return rows_of(inspect(attack, honest, device, **info))
