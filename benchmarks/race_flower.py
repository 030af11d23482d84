"""The race's work in Flower's simulation: Ray, one process of one thread per core.

Ray listens on every interface: it starts in a network namespace of its own only.
"""

import logging
import os
import socket
import tempfile
import warnings
from importlib.metadata import version

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg, Strategy
from race_plain import train
from race_work import Clock, Work, load_data, read_work, write_work
from torch import Tensor

DIFFERS = (
    "clients run in actors of Ray, one per core; every message carries the "
    "weights; a client makes its network anew for every message, as in Flower's examples"
)
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
client = ClientApp()


@client.train()
def train_client(message: Message, context: Context) -> Message:
    """Train as one client."""
    work = read_work(message.content["config"]["work"])
    torch.set_num_threads(work.threads)
    data, number = load_data(work.samples, work.clients), int(context.node_config["partition-id"])
    network = work.network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.to(work.device)
    images, labels = (each.to(work.device) for each in data.part(number))
    random = torch.Generator()
    random.seed()
    train(network, images, labels, work, random)
    state = {name: value.cpu() for name, value in network.state_dict().items()}
    content = {"arrays": ArrayRecord(state), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(RecordDict(content), reply_to=message)


def run(work: Work, clock: Clock) -> dict[str, Tensor]:
    """Train; return the final state."""
    interfaces = [name for _, name in socket.if_nameindex()]
    if interfaces != ["lo"]:
        raise RuntimeError(f"Ray needs a network namespace of its own, got {interfaces}.")
    os.environ.update(SETTINGS)
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    final: dict[str, Tensor] = {}
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        def note(number: int, arrays: ArrayRecord) -> None:
            if number > 0:
                clock.tick()
            if number == work.all_rounds:
                final.update(arrays.to_torch_state_dict())

        strategy_of(work).start(
            grid,
            ArrayRecord(work.network().state_dict()),
            num_rounds=work.all_rounds,
            train_config=ConfigRecord({"work": write_work(work)}),
            evaluate_fn=note,
        )

    share = 1 / work.processes if work.device == "cuda" else 0.0
    resources = {"num_cpus": 1, "num_gpus": share}
    # Ray's sockets must have short names.
    with tempfile.TemporaryDirectory(prefix="ray") as short, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["RAY_TMPDIR"] = short
        backend = {"init_args": {"num_cpus": work.processes}, "client_resources": resources}
        run_simulation(server, client, num_supernodes=work.clients, backend_config=backend)
    return final


def strategy_of(work: Work) -> Strategy:
    """Return Flower's strategy for the rule."""
    everyone = {"fraction_train": 1.0, "fraction_evaluate": 0.0}
    everyone |= {"min_train_nodes": work.clients, "min_available_nodes": work.clients}
    if work.rule == "mean":
        return FedAvg(**everyone)
    return FedTrimmedAvg(**everyone, beta=work.assumed_byzantine / work.clients)


def versions() -> dict[str, str]:
    """Return what ran."""
    return {name: version(name) for name in ("flwr", "ray", "torch")}
