"""What the server does: aggregate adapters with a robust strategy, and save the last one."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from finetune.task import accuracy, adapter, load_adapter, make_model, read_adapter, save_adapter
from outvote.flower import RobustStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Finetune for some rounds, from an adapter in PEFT's layout if one is given."""
    config = context.run_config
    strategy = RobustStrategy(
        config["rule"],
        num_byzantine=config["num-byzantine"],
        min_available_nodes=config["min-nodes"],
        fraction_evaluate=0.0,
        audit_dir=Path(config["audit-dir"]).absolute(),
    )
    start = config["start-from"]
    first = read_adapter(Path(start)) if start else adapter(make_model())
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(first),
        num_rounds=config["num-rounds"],
        timeout=config["timeout"],
        evaluate_fn=evaluate,
    )
    save_adapter(Path(config["output"]), result.arrays.to_torch_state_dict())


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the adapter on all sequences."""
    del number
    model = make_model()
    load_adapter(model, arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model)})
