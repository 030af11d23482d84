"""Settings that came later, and their defaults.

At its default, a setting is left out of a run's hash and config.toml, so that earlier runs keep
their names; whoever reads a run takes the default from here. Nothing is ever removed.
"""

from typing import Any

LATER: dict[str, Any] = {
    "data.image_size": None,
    "diagnostics": False,
    "training.proximal": 0.0,
    "server.optimizer": "sgd",
    "server.beta1": 0.9,
    "server.beta2": 0.99,
    "server.epsilon": 1e-3,
    "loss": "auto",
    "optimizer": "local-sgd",
    "trainer": "auto",
    "federation.sample_counts": False,
    "theory": False,
    "federation.selection": "uniform",
}
