"""The race's work in ByzFL: its clients and server, in the loop of its own benchmark (FedAvg)."""

import importlib
from importlib.metadata import version

import torch
from byzfl_side import load_aggregators
from race_work import Clock, Work, load_data
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

DIFFERS = (
    "the loop of its `train.py` with the algorithm FedAvg: weights are aggregated, "
    "clients keep their momentum from round to round"
)


def run(work: Work, clock: Clock) -> dict[str, Tensor]:
    """Train; return the final state."""
    load_aggregators()
    framework = importlib.import_module("byzfl.fed_framework")
    importlib.import_module("byzfl.fed_framework.models").race_network = work.network
    data = load_data(work.samples, work.clients)
    every = {"model_name": "race_network", "device": work.device, "optimizer_name": "SGD"}
    every |= {"learning_rate": work.learning_rate, "weight_decay": work.weight_decay}
    every |= {"optimizer_params": {"momentum": work.momentum}}
    every |= {"milestones": [], "learning_rate_decay": 1.0}
    losses = {"loss_name": "CrossEntropyLoss", "LabelFlipping": False, "nb_labels": 10}
    losses |= {"momentum": work.momentum, "store_per_client_metrics": False}
    loaders = [
        DataLoader(TensorDataset(*data.part(k)), batch_size=work.batch_size, shuffle=True)
        for k in range(work.clients)
    ]
    clients = [framework.Client(every | losses | {"training_dataloader": each}) for each in loaders]
    tested = DataLoader(TensorDataset(data.test_images, data.test_labels), batch_size=500)
    server = framework.Server(every | rule_of(work) | {"test_loader": tested})
    send(server, clients)
    for _ in range(work.all_rounds):
        weights = []
        for client, loader in zip(clients, loaders, strict=True):
            client.compute_model_update(work.epochs * len(loader))
            weights.append(client.get_flat_parameters())
        server.update_model_with_weights(weights)
        send(server, clients)
        clock.tick()
    return {name: value.cpu() for name, value in server.get_dict_parameters().items()}


def rule_of(work: Work) -> dict[str, object]:
    """Return ByzFL's name of the rule."""
    if work.rule == "mean":
        info: dict[str, object] = {"name": "Average", "parameters": {}}
    else:
        info = {"name": "TrMean", "parameters": {"f": work.assumed_byzantine}}
    return {"aggregator_info": info, "pre_agg_list": []}


def send(server: object, clients: list) -> None:
    """Send the server's model to all clients."""
    state = server.get_dict_parameters()
    for client in clients:
        client.set_model_state(state)


def versions() -> dict[str, str]:
    """Return what ran."""
    return {"byzfl": version("byzfl"), "torch": torch.__version__}
