"""The race's work in plain PyTorch: one client after the other."""

import torch
from race_work import Clock, Work, load_data
from torch import Tensor
from torch.nn import functional as F

DIFFERS = "loops over clients and batches, a new optimiser for every client and round; no records"


def run(work: Work, clock: Clock) -> dict[str, Tensor]:
    """Train; return the final state."""
    data, device = load_data(work.samples, work.clients), work.device
    parts = [tuple(each.to(device) for each in data.part(k)) for k in range(work.clients)]
    network = work.network().to(device)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.Generator().manual_seed(0)
    for _ in range(work.all_rounds):
        sent = []
        for images, labels in parts:
            network.load_state_dict(state)
            train(network, images, labels, work, random)
            sent.append({name: value.clone() for name, value in network.state_dict().items()})
        state = {name: aggregate(torch.stack([s[name] for s in sent]), work) for name in state}
        clock.tick()
    return {name: value.cpu() for name, value in state.items()}


def train(
    network: torch.nn.Module, images: Tensor, labels: Tensor, work: Work, random: torch.Generator
) -> None:
    """Train a client's epochs."""
    optimizer = work.optimizer(network)
    for _ in range(work.epochs):
        order = torch.randperm(len(labels), generator=random).to(images.device)
        for batch in order.split(work.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


def aggregate(rows: Tensor, work: Work) -> Tensor:
    """Return the mean, or the mean without the largest and smallest values."""
    if work.rule == "mean":
        return rows.mean(dim=0)
    f = work.assumed_byzantine
    return rows.sort(dim=0).values[f : len(rows) - f].mean(dim=0)


def versions() -> dict[str, str]:
    """Return what ran."""
    return {"torch": torch.__version__}
