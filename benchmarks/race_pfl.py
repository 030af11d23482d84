"""The race's work in pfl-research: FederatedAveraging in its simulated backend.

With several processes it is started by torchrun, as pfl's documentation does.
"""

import os
from functools import partial
from importlib.metadata import version
from itertools import count

import torch
from race_work import Clock, Work, load_data
from torch import Tensor
from torch.nn import functional as F

RULE = "mean"
DIFFERS = "has no robust rule: it takes the mean; batches have the same order in every round"


def run(work: Work, clock: Clock) -> dict[str, Tensor] | None:
    """Train; return the final state."""
    os.environ["PFL_PYTORCH_DEVICE"] = work.device
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Ticks(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            clock.tick()
            return False, Metrics()

    data = load_data(work.samples, work.clients)
    network = work.network()

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(images), labels)

    def metrics(images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(float(loss(images, labels)) * len(labels), len(labels))}

    network.loss, network.metrics = loss, metrics
    users = {
        str(k): PyTorchTensorDataset(tuple(each.to(work.device) for each in data.part(k)), str(k))
        for k in range(work.clients)
    }
    turns = count()
    cohort = FederatedDataset(users.__getitem__, lambda: str(next(turns) % work.clients))
    create = partial(torch.optim.SGD, momentum=work.momentum, weight_decay=work.weight_decay)
    model = PyTorchModel(network, create, torch.optim.SGD(network.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.all_rounds,
            evaluation_frequency=work.all_rounds,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=cohort, val_data=cohort),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=work.learning_rate,
            local_batch_size=work.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Ticks()],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")) > 0:
        return None
    return {name: value.cpu() for name, value in network.state_dict().items()}


def versions() -> dict[str, str]:
    """Return what ran."""
    return {"pfl": version("pfl"), "torch": torch.__version__}
