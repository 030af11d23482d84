"""What the server does: aggregate with a robust strategy, and test the model."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fashion.task import make_network, test, test_images
from outvote.flower import RobustStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds; with `resume`, continue the newest run in the audit folder."""
    config = context.run_config
    make = RobustStrategy.resume if config["resume"] else RobustStrategy
    strategy = make(
        audit_dir=Path(config["audit-dir"]).absolute(),
        rule=config["rule"],
        num_byzantine=config["num-byzantine"],
        min_available_nodes=config["min-nodes"],
        fraction_evaluate=config["fraction-evaluate"],
    )
    model = make_network(seed=config["seed"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=config["num-rounds"],
        timeout=config["timeout"],
        evaluate_fn=evaluate,
    )


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on images that no node has."""
    del number
    model = make_network(seed=0)
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, *test_images())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
