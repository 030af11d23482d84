"""What a site does: a few steps of least squares on its own samples; some sites are Byzantine."""

import zlib

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.np.constants import NPConstants

TRUTH = np.array([1.0, -2.0, 3.0, 0.5, -1.5], np.float32)


class TrainSite(Executor):
    """Train, or attack if the own name is among the given ones."""

    def __init__(self, nan_sites: list[str], reversed_sites: list[str]) -> None:
        super().__init__()
        self.nan_sites, self.reversed_sites = nan_sites, reversed_sites

    def execute(self, task_name, shareable, fl_ctx, abort_signal):  # noqa: ANN001, ANN201
        """Return how the weights of the server change."""
        site = fl_ctx.get_identity_name()
        before = np.asarray(from_shareable(shareable).data[NPConstants.NUMPY_KEY], np.float32)
        change = train(before, seed=zlib.crc32(site.encode())) - before
        if site in self.nan_sites:
            change = np.full_like(change, np.nan)
        elif site in self.reversed_sites:
            change = -10 * change
        data = {NPConstants.NUMPY_KEY: change.astype(np.float32)}
        return DXO(data_kind=DataKind.WEIGHT_DIFF, data=data).to_shareable()


def train(weights: np.ndarray, seed: int) -> np.ndarray:
    """Return the weights after some steps of gradient descent on the samples of a site."""
    source = np.random.default_rng(seed)
    samples = source.normal(size=(100, len(TRUTH)))
    targets = samples @ TRUTH + source.normal(0, 0.1, 100)
    for _ in range(5):
        weights = weights - 0.2 * samples.T @ (samples @ weights - targets) / len(samples)
    return weights
