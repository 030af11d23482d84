"""Two tables: every attack beside the mean of all clients' gradients, searches beside their rule.

The attacks that look at the honest gradients, but do not search, must stay within 4 means, and
searches within evaluations + 2 times what the rule takes for the gradients and copies of one row.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from timing import circumstances, medians, write_json

import outvote as ov
from outvote.attacks.attack_spec import ATTACKS

LIMIT = 4.0
# Random numbers, not memory, are what these spend their time on: no limit.
UNLIMITED = {"gaussian", "noise"}
EXTRA = ("mimic(client=none)", "min-max(direction=sign)", "fang(target=krum)")
SEARCHES = ("ipm", "optimal-lie", "optimal-ipm")
ASKED = ("mean", "median", "multi-krum")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50, help="all clients")
    parser.add_argument("--honest", type=int, default=40, help="how many of them are honest")
    parser.add_argument("--byzantine", type=int, default=10, help="attackers")
    parser.add_argument("--dim", type=int, default=2_472_266)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    generator = torch.Generator(device).manual_seed(0)
    X = torch.randn(args.clients, args.dim, generator=generator, device=device)
    honest, own = X[: args.honest], X[-args.byzantine :]
    texts = [name for name, kind in ATTACKS.items() if not kind().needs_rule()]
    jobs: dict[str, Callable[[], object]] = {"X.mean(0)": lambda: X.mean(0)}
    for text in (*texts, *EXTRA):
        jobs[text] = _job(text, honest, own)
    seconds = medians(jobs, args.repeats, device)
    unit = seconds["X.mean(0)"]
    rows = []
    print(f"{args.honest} honest + {args.byzantine} attackers, d = {args.dim:,}, {device}")
    print(HEAD.format("attack", "ms", "/ mean", "limit"))
    for text, took in seconds.items():
        limit = None if text.split("(")[0] in UNLIMITED or text == "X.mean(0)" else LIMIT
        rows.append(_print_row(text, took, took / unit, limit))
    print(HEAD.format("search against", "ms", "/ rule", "limit"))
    for name in ASKED:
        rows += _print_searches(name, honest, args.byzantine, args.repeats)
    if args.output:
        sizes = {"honest": args.honest, "byzantine": args.byzantine, "dim": args.dim}
        write_json(args.output, {"circumstances": circumstances(device) | sizes, "rows": rows})


HEAD = "{:<28}{:>9}{:>9}{:>8}"


def _print_row(text: str, seconds: float, ratio: float, limit: float | None) -> dict[str, object]:
    verdict = "" if limit is None else "  holds" if ratio <= limit else "  exceeds"
    shown = "-" if limit is None else f"{limit:g}"
    print(HEAD.format(text, f"{1e3 * seconds:.1f}", f"{ratio:.2f}", shown) + verdict, flush=True)
    return {"job": text, "seconds": seconds, "ratio": ratio, "limit": limit}


def _print_searches(
    name: str, honest: torch.Tensor, num_byzantine: int, repeats: int
) -> list[dict[str, object]]:
    """Print what searches take beside the rule that they ask."""
    rule = ov.make_rule(name)
    gradients = torch.cat([honest, -honest.mean(0).expand(num_byzantine, -1)])
    facts = {"num_byzantine": num_byzantine, "when_too_many": "lower", "seed": 0}
    jobs: dict[str, Callable[[], object]] = {name: lambda: rule(gradients, **facts)}
    evaluations = {}
    for text in SEARCHES:
        attack = ov.make_attack(text)

        def ask(attack: ov.Attack = attack) -> ov.AttackOutput:
            return attack.inspect(honest, num_byzantine=num_byzantine, rule=rule, seed=0)

        jobs[text], evaluations[text] = ask, ask().num_evaluations
    seconds = medians(jobs, repeats, honest.device)
    rows = []
    for text, took in seconds.items():
        limit = evaluations[text] + 2 if text in evaluations else None
        shown = f"{text} / {name}" if limit else name
        rows.append(_print_row(shown, took, took / seconds[name], limit))
    return rows


def _job(text: str, honest: torch.Tensor, own: torch.Tensor) -> Callable[[], object]:
    attack = ov.make_attack(text)
    return lambda: attack(honest, num_byzantine=len(own), own=own, seed=0)


if __name__ == "__main__":
    main()
