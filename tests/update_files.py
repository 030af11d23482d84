"""Client updates as files, for the tests of the command line."""

import torch
from safetensors.torch import save_file

from outvote.files.safetensors_file import Entry
from outvote.files.tensor_writer import writing


def updates_of(num_clients, dtype=torch.float32, seed=0):
    """Named gradients around 1, each with a counter."""
    random = torch.Generator().manual_seed(seed)
    return [
        {
            "layer.weight": (1 + 0.1 * torch.randn(4, 3, generator=random)).to(dtype),
            "layer.bias": (1 + 0.1 * torch.randn(5, generator=random)).to(dtype),
            "steps": torch.tensor(10 + k),
        }
        for k in range(num_clients)
    ]


def floats_of(update):
    return {name: tensor for name, tensor in update.items() if tensor.is_floating_point()}


def fill(folder, updates):
    for k, update in enumerate(updates):
        save_file(update, folder / f"client-{k}.safetensors")


def status_of(result):
    """The status of every client, from the JSON of `outvote aggregate`."""
    return {row["client"]: row["status"] for row in result.json["clients"]}


def write_tensors(path, tensors, metadata=None):
    """Write named tensors as `outvote aggregate` writes its output."""
    entries = {name: Entry(tuple(value.shape), value.dtype) for name, value in tensors.items()}
    with writing(path, entries, metadata or {}) as writer:
        for name, value in tensors.items():
            writer.write(name, 0, value)
