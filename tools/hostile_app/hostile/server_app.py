"""The server: a robust strategy that excludes, and the accuracy after every round."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from hostile.task import accuracy, new_model
from outvote.flower import RobustStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train until the server is killed; with `resume`, go on."""
    config = context.run_config
    with np.load(str(config["data"])) as stored:
        images, labels = stored["test_images"], stored["test_labels"]

    def evaluate(_number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": accuracy(model, images, labels)})

    make = RobustStrategy.resume if config["resume"] else RobustStrategy
    strategy = make(
        audit_dir=Path(str(config["audit-dir"])).absolute(),
        rule="gas(median)",
        num_byzantine=2,
        exclude_outvoted=0.01,
        probation=1,
        min_available_nodes=config["min-nodes"],
        fraction_evaluate=0.0,
    )
    model = new_model(images.shape[1])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in model.items()}),
        num_rounds=config["num-rounds"],
        timeout=config["timeout"],
        evaluate_fn=evaluate,
    )
