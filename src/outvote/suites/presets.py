"""Named settings to start from: what the paper printed, and what its theory is about."""

from typing import Any

from outvote.grids import merged

_PAPER: dict[str, Any] = {
    "attack": "lie(z=1.5)",
    "evaluate_every": 1,
    "data": {"partition": "dirichlet", "beta": 0.5, "balance": True, "min_size": 10},
    "federation": {
        "num_clients": 50,
        "byzantine": 0.2,
        "sampled": 5,
        "assumed_byzantine": "oracle",
    },
    "training": {
        "learning_rate": 0.1,
        "momentum": 0.5,
        "weight_decay": 1e-4,
        "max_norm": 2.0,
        "batch_size": 64,
        "num_epochs": 1,
    },
}

PLAIN_STEP: dict[str, Any] = {
    "num_steps": 1,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "max_norm": None,
    "client_momentum": 0.0,
    "proximal": 0.0,
    "augment": False,
}
"""Of `training`: one step of SGD per round, without anything else."""

ABOUT = {
    "paper": "The same as paper-cifar10.",
    "paper-cifar10": "CIFAR-10 as the paper printed it: AlexNet, 5 of 50 clients in a round.",
    "paper-cifar100": "CIFAR-100 as the paper printed it: SqueezeNet, 5 of 50 clients in a round.",
    "paper-femnist": "FEMNIST as the paper printed it: LEAF's CNN, every writer is a client.",
    "paper-imagenet12": "ImageNet-12 as the paper printed it: ResNet-18, a schedule of rates.",
    "theory": "What the convergence analysis is about: one plain step of all clients per round.",
}
"""What each preset is, in one sentence."""

PRESETS: dict[str, dict[str, Any]] = {
    "paper-cifar10": merged(
        _PAPER,
        {
            "rounds": 200,
            "data": {"name": "cifar10"},
            "model": {"name": "alexnet"},
            "training": {"num_epochs": 5},
        },
    ),
    "paper-cifar100": merged(
        _PAPER, {"rounds": 400, "data": {"name": "cifar100"}, "model": {"name": "squeezenet"}}
    ),
    "paper-femnist": merged(
        _PAPER,
        {
            "rounds": 1000,
            "data": {"name": "femnist", "partition": "by-group"},
            "federation": {"num_clients": "all", "sampled": 0.005},
            "model": {"name": "leaf-cnn"},
            "training": {"learning_rate": 0.5},
        },
    ),
    "paper-imagenet12": merged(
        _PAPER,
        {
            "rounds": 200,
            "data": {"name": "imagenet12"},
            "model": {"name": "resnet18"},
            "training": {"momentum": 0.9, "batch_size": 128, "schedule": [[101, 0.01]]},
        },
    ),
}
PRESETS["paper"] = PRESETS["paper-cifar10"]
PRESETS["theory"] = {
    "theory": True,
    "federation": {"num_clients": 10, "sampled": 1.0},
    "model": {"name": "mlp"},
    "training": {**PLAIN_STEP, "max_norm": "none", "learning_rate": 0.1},
}
