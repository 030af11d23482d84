"""`outvote plan`: how often a sampled round exceeds what a rule tolerates."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb, expm1, log1p
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import NumberColumn, number, print_json, print_table, print_text
from outvote.cli.verb import Verb, read_rule
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.rules.rule import Rule

SMALLEST_SHOWN = 1e-6


@dataclass(frozen=True, slots=True)
class Sampling:
    """The number of Byzantine clients among those sampled without replacement, as exact counts."""

    num_clients: int
    num_byzantine: int
    num_sampled: int

    def __post_init__(self) -> None:
        """Check that there are enough clients."""
        for option, value in (("byzantine", self.num_byzantine), ("sample", self.num_sampled)):
            if value > self.num_clients:
                raise click.UsageError(
                    f"--{option} must be at most the {self.num_clients} of --clients, got {value}"
                )

    def num_draws(self) -> dict[int, int]:
        """Return how many samples hold k Byzantine clients, for every possible k."""
        num_honest = self.num_clients - self.num_byzantine
        first = max(0, self.num_sampled - num_honest)
        last = min(self.num_sampled, self.num_byzantine)
        draws = {
            first: comb(self.num_byzantine, first) * comb(num_honest, self.num_sampled - first)
        }
        for k in range(first, last):
            more = (self.num_byzantine - k) * (self.num_sampled - k)
            fewer = (k + 1) * (num_honest - self.num_sampled + k + 1)
            draws[k + 1] = draws[k] * more // fewer
        return draws

    def probability(self, happens: Callable[[int], bool]) -> float:
        """Return the probability of a round in which `happens(k)`; rounded once, at the end."""
        favourable = sum(draws for k, draws in self.num_draws().items() if happens(k))
        return favourable / comb(self.num_clients, self.num_sampled)


@click.command("plan", cls=Verb)
@click.option("--clients", type=click.IntRange(1, 10**12), required=True, help="All clients.")
@click.option(
    "--byzantine", type=click.IntRange(min=0), required=True, help="How many may be Byzantine."
)
@click.option(
    "--sample",
    type=click.IntRange(1, 10_000),
    required=True,
    help="How many are sampled in a round, without replacement.",
)
@click.option("--rule", "rule_text", required=True, help="As in 'gas(bulyan)'.")
@click.option("--rounds", type=click.IntRange(1, 10**9), default=200)
def command(
    clients: int, byzantine: int, sample: int, rule_text: str, rounds: int, as_json: bool
) -> None:
    """Print how often a round has more Byzantine clients than a rule tolerates.

    Example: outvote plan --clients 50 --byzantine 10 --sample 5 --rule bulyan
    """
    from outvote.rules.rule import base_num_byzantine

    sampling = Sampling(clients, byzantine, sample)
    rule = read_rule(rule_text)
    limit = rule.max_byzantine(sample)
    events: dict[str, Callable[[int], bool]] = {
        "no client attacks": lambda k: k == 0,
        "more than the rule tolerates": lambda k: k > limit,
        "most are Byzantine": lambda k: 2 * k > sample,
    }
    facts = {
        "rule": str(rule),
        "num_clients": clients,
        "num_byzantine": byzantine,
        "num_sampled": sample,
        "num_rounds": rounds,
        "max_byzantine": limit,
        "base_max_byzantine": base_num_byzantine(rule, limit, sample),
        "distribution": _distribution(sampling, limit, rounds),
        "events": [
            {
                "event": name,
                "probability": (chance := sampling.probability(happens)),
                "expected_rounds": rounds * chance,
                "at_least_once": at_least_once(chance, rounds),
            }
            for name, happens in events.items()
        ],
    }
    if as_json:
        print_json(facts)
    else:
        _print(facts, rule)


def at_least_once(probability: float, num_rounds: int) -> float:
    """Return the probability that something happens in at least one of some rounds."""
    return 1.0 if probability >= 1 else -expm1(num_rounds * log1p(-probability))


def _distribution(sampling: Sampling, limit: int, rounds: int) -> list[dict[str, Any]]:
    total = comb(sampling.num_clients, sampling.num_sampled)
    return [
        {
            "num_byzantine": k,
            "probability": draws / total,
            "expected_rounds": rounds * (draws / total),
            "is_tolerated": k <= limit,
            "is_majority": 2 * k > sampling.num_sampled,
        }
        for k, draws in sampling.num_draws().items()
    ]


def _print(facts: dict[str, Any], rule: "Rule") -> None:
    rounds = NumberColumn(f"rounds of {facts['num_rounds']}")
    likely = [row for row in facts["distribution"] if row["probability"] >= SMALLEST_SHOWN]
    cells = [
        [str(row["num_byzantine"])]
        + [number(row[key]) for key in ("probability", "expected_rounds")]
        + [_comment(row, rule)]
        for row in likely
    ]
    title = (
        f"Byzantine clients among {facts['num_sampled']} sampled of {facts['num_clients']}, "
        f"{facts['num_byzantine']} of them Byzantine"
    )
    columns = [NumberColumn("Byzantine"), NumberColumn("probability"), rounds, ""]
    print_table(columns, cells, title)
    if len(likely) < len(facts["distribution"]):
        print_text(f"Rows below {SMALLEST_SHOWN:g} are left out; --json has all.\n")
    rows = [
        [event["event"]]
        + [number(event[key]) for key in ("probability", "expected_rounds", "at_least_once")]
        for event in facts["events"]
    ]
    probabilities = (NumberColumn("probability"), rounds, NumberColumn("at least once"))
    print_table(["a round in which", *probabilities], rows)
    limit, inside = facts["max_byzantine"], facts["base_max_byzantine"]
    print_text(f"{rule} tolerates {limit} of {plural(facts['num_sampled'], 'client')}.")
    if inside < limit:
        print_text(
            f"The rule inside tolerates {inside}; where more attack, it works with {inside}."
        )


def _comment(row: dict[str, Any], rule: "Rule") -> str:
    if row["is_majority"]:
        return "most are Byzantine" + ("" if row["is_tolerated"] else f", too many for {rule}")
    return "" if row["is_tolerated"] else f"too many for {rule}"
