"""`outvote demo`: robust rules under attack, on made-up gradients, in seconds."""

from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import Column, print_json, print_table
from outvote.cli.verb import Verb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

NUM_CLIENTS, NUM_BYZANTINE, DIM = 20, 4, 50_000
RULES = ("mean", "median", "trimmed-mean", "rfa", "multi-krum", "bulyan", "dnc")


@click.command("demo", cls=Verb)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def command(seed: int, as_json: bool) -> None:
    """See what attackers do to an average, and what robust rules and GAS do against it.

    Made-up gradients, no data, no network, no training.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    honest = honest_gradients(random)
    attacks = {name: attack(honest) for name, attack in ATTACKS.items()}
    rows: list[dict[str, Any]] = []
    for rule in [text for name in RULES for text in (name, f"gas({name})")]:
        rows.append({"rule": rule})
        for attack, byzantine in attacks.items():
            rows[-1] |= {attack: judge(rule, honest, byzantine, seed)}
    if as_json:
        print_json(
            {"num_clients": NUM_CLIENTS, "num_byzantine": NUM_BYZANTINE, "dim": DIM, "rows": rows}
        )
    else:
        _print(rows)


def honest_gradients(random: "np.random.Generator") -> "Matrix":
    """Draw clients that agree on a little and differ on a few coordinates of their own each.

    Some have more unusual data than others: that is what hides liars from a rule that compares
    whole gradients.
    """
    import numpy as np

    num_honest = NUM_CLIENTS - NUM_BYZANTINE
    shape = (num_honest, DIM)
    agreed = 0.1 * random.normal(size=DIM)
    strength = np.where(np.arange(num_honest) < num_honest // 3 + 1, 1.5, 0.7)[:, None]
    is_own = random.random(shape) < 0.02
    own = strength * is_own * random.normal(size=shape)
    return (agreed + own + 0.05 * random.normal(size=shape)).astype(np.float32)


def lie(honest: "Matrix") -> "Matrix":
    """A little is enough: all send the honest mean, moved by 1.5 standard deviations."""
    import numpy as np

    row = honest.mean(axis=0) - 1.5 * honest.std(axis=0)
    return np.repeat(row[None], NUM_BYZANTINE, axis=0)


def broken(honest: "Matrix") -> "Matrix":
    """One sends NaN, one infinity, two send huge numbers."""
    import numpy as np

    rows = np.repeat(honest.mean(axis=0)[None], NUM_BYZANTINE, axis=0)
    rows[0, 0] = np.nan
    rows[1, -1] = np.inf
    rows[2:] *= np.float32(1e8)
    return rows


ATTACKS = {"lie": lie, "broken": broken}


def judge(rule: str, honest: "Matrix", byzantine: "Matrix", seed: int) -> dict[str, Any]:
    """Aggregate; return the error relative to the honest mean, and how many liars were kept."""
    import numpy as np

    from outvote.rules.spec import make_rule

    gradients = np.concatenate([honest, byzantine])
    verdict = make_rule(rule).inspect(
        gradients, num_byzantine=len(byzantine), when_too_many="lower", seed=seed
    )
    wanted = honest.mean(axis=0, dtype=np.float64)
    error = np.linalg.norm(verdict.update - wanted) / np.linalg.norm(wanted)
    return {
        "error": float(error),
        "num_kept_byzantine": sum(client >= len(honest) for client in verdict.kept),
    }


def _print(rows: list[dict[str, Any]]) -> None:
    click.echo(
        f"{NUM_CLIENTS} clients sent {DIM:,} numbers each; {NUM_BYZANTINE} of them are Byzantine.\n"
        "  lie      all four send the honest mean, moved by 1.5 standard deviations\n"
        "  broken   one sends NaN, one infinity, two send numbers 100 million times too large\n"
        "error: distance of the update to the honest mean, relative to its length (0 is perfect).\n"
        "kept: how many of the four have a share in the update."
    )
    columns = [Column("rule")]
    for attack in ATTACKS:
        columns += [Column(f"{attack}: error", is_number=True), Column("kept", is_number=True)]
    print_table(columns, [_cells(row) for row in rows])
    click.echo(
        "gas(rule) lets the rule judge 1,000 random slices and drops the clients that were far\n"
        "off in many of them. The gradients are made up, each client being strong on 2 % of the\n"
        "coordinates: other data, other winners. Try your own files: outvote aggregate --help"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [row["rule"]]
    for attack in ATTACKS:
        error = row[attack]["error"]
        cells.append(f"{error:.3f}" if error < 1000 else f"{error:.1e}")
        cells.append(str(row[attack]["num_kept_byzantine"]))
    return cells
