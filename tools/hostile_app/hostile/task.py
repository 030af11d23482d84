"""The task: a linear classifier of small images, in numpy alone, as every message costs a start."""

from typing import Any

import numpy as np

Model = dict[str, np.ndarray[Any, Any]]
NUM_CLASSES = 10
NUM_STEPS, BATCH, LEARNING_RATE, DECAY = 10, 32, 0.05, 1e-3


def new_model(num_inputs: int) -> Model:
    """Return the first model."""
    return {
        "weight": np.zeros((num_inputs, NUM_CLASSES), np.float32),
        "bias": np.zeros(NUM_CLASSES, np.float32),
    }


def train(model: Model, images: Any, labels: Any, seed: int) -> tuple[Model, float]:
    """Return the model after some steps of SGD, and the last loss."""
    draw = np.random.default_rng(seed)
    weight, bias = model["weight"].copy(), model["bias"].copy()
    loss = 0.0
    for _ in range(NUM_STEPS):
        some = draw.integers(len(labels), size=BATCH)
        shares = _softmax(images[some] @ weight + bias)
        loss = float(-np.log(shares[np.arange(BATCH), labels[some]] + 1e-12).mean())
        shares[np.arange(BATCH), labels[some]] -= 1
        weight -= LEARNING_RATE * (images[some].T @ shares / BATCH + DECAY * weight)
        bias -= LEARNING_RATE * shares.mean(axis=0)
    return {"weight": weight, "bias": bias}, loss


def accuracy(model: Model, images: Any, labels: Any) -> float:
    """Return the share of the images that are classified as they should be."""
    found = (images @ model["weight"] + model["bias"]).argmax(axis=1)
    return float((found == labels).mean())


def _softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
