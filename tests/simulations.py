"""Small simulations for tests: an mlp on a few of the embedded images, many rounds a second."""

from pathlib import Path

from outvote.experiment.plan import make_plan
from outvote.experiment.progress import Listener
from outvote.experiment.runner import Runner
from outvote.grids import merged

TINY = {
    "rule": "mean",
    "attack": "lie",
    "rounds": 4,
    "data": {"partition": "iid"},
    "federation": {"num_clients": 10, "sampled": 5},
    "model": {"name": "mlp"},
    "training": {"num_steps": 2, "batch_size": 16},
}
# Every kind of state there is: of attacks, rules, clients, the server and its selection.
STATES = {
    "rule": ["gas(median, num_groups=20)", "centered-clipping", "foolsgold"],
    "attack": ["mimic(client=none)", "lie"],
    "server": {"momentum": 0.5},
    "federation": {"selection": "by-score(memory=0.5)"},
    "training": {"client_momentum": 0.3},
}


def tiny(*settings: str, **tables):
    """A plan of tiny runs."""
    return make_plan(merged(TINY, tables), settings, suite="tiny")


def execute(plan, output: Path, **how):
    """Execute a plan; return the end of each run by its rule."""
    return {end.job.spec.rule: end for end in Runner(output=output, **how).execute(plan)}


def results(output: Path) -> dict[str, tuple[bytes, bytes]]:
    """What must be the same to the last bit: metrics and final weights, by run."""
    return {
        path.parent.name: (
            path.read_bytes(),
            (path.parent / "checkpoint.safetensors").read_bytes(),
        )
        for path in sorted(output.glob("*/*/metrics.jsonl"))
        if (path.parent / "checkpoint.safetensors").exists()
    }


class Recorder(Listener):
    """A listener that records what it receives; it may also act after a round."""

    def __init__(self, after_round=lambda progress: None):
        self.after_round = after_round
        self.ends, self.messages, self.rounds, self.num_planned = [], [], [], 0

    def on_plan(self, num_rounds):
        self.num_planned = num_rounds

    def on_round(self, progress):
        self.rounds.append((progress.round, progress.num_runs))
        self.after_round(progress)

    def on_end(self, end):
        self.ends.append(end)

    def on_message(self, text):
        self.messages.append(text)
