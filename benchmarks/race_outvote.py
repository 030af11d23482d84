"""The race's work in outvote: `ov.simulate`, one federation."""

from importlib.metadata import PackageNotFoundError, version

import torch
from race_work import Clock, Work, load_data

import outvote as ov

DIFFERS = (
    "`ov.simulate` with its own choice of the trainer; records scores and losses of every round"
)


def run(work: Work, clock: Clock, num_runs: int = 1) -> float:
    """Train; return the mean accuracy."""
    data = load_data(work.samples, work.clients)
    local = ov.LocalSGD(
        learning_rate=work.learning_rate,
        momentum=work.momentum,
        weight_decay=work.weight_decay,
        max_norm=None,
        batch_size=work.batch_size,
        num_epochs=work.epochs,
    )
    heard: list[ov.RoundReport] = []

    def hear(report: ov.RoundReport) -> None:
        heard.append(report)
        if len(heard) % num_runs == 0:
            clock.tick()

    ov.simulate(
        work.network(),
        (data.images, data.labels),
        (data.test_images, data.test_labels),
        channels="first",
        partition=[part.tolist() for part in data.parts],
        byzantine=0,
        assumed_byzantine=work.assumed_byzantine if work.rule != "mean" else 0,
        rules=work.rule,
        attacks="none",
        seeds=range(num_runs),
        rounds=work.all_rounds,
        local=local,
        evaluate_every=work.all_rounds,
        device=work.device,
        callbacks=hear,
        progress=False,
    )
    return sum(report.accuracy for report in heard[-num_runs:]) / num_runs


def versions() -> dict[str, str]:
    """Return what ran."""
    try:
        own = version("outvote")
    except PackageNotFoundError:
        own = "from source"
    return {"outvote": own, "torch": torch.__version__}
