"""Small simulations for tests: an mlp on a few of the embedded pictures, many rounds a second."""

from pathlib import Path

from outvote.experiment.reading import make_plan
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
# Every kind of memory there is, of attacks, rules and the server.
MEMORIES = {
    "rule": ["gas(median, num_groups=20)", "centered-clipping", "foolsgold"],
    "attack": ["mimic(client=none)", "lie"],
    "server": {"momentum": 0.5},
    "training": {"client_momentum": 0.3},
}


def tiny(*settings: str, **tables):
    """A plan of tiny runs."""
    return make_plan(merged(TINY, tables), settings, suite="tiny")


def play(plan, output: Path, **how):
    """Play a plan; the outcome of each run by its rule."""
    return {end.job.spec.rule: end for end in Runner(output=output, **how).play(plan)}


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


class Heard:
    """A listener that remembers; it may also act after a round."""

    def __init__(self, after_round=lambda played: None):
        self.after_round = after_round
        self.ends, self.words, self.rounds, self.num_planned = [], [], [], 0

    def planned(self, num_rounds):
        self.num_planned = num_rounds

    def played(self, what):
        self.rounds.append((what.round, what.num_runs))
        self.after_round(what)

    def ended(self, what):
        self.ends.append(what)

    def said(self, text):
        self.words.append(text)
