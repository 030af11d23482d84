"""One table: every attack beside the plain mean of all clients' gradients.

The attacks that look at the honest gradients, but do not search, must stay within 4 means.
"""

import argparse
from collections.abc import Callable

import torch
from timing import medians

import outvote as ov
from outvote.attacks.spec import ATTACKS

LIMIT = 4.0
# Random numbers, not memory, are what these spend their time on: no limit.
UNLIMITED = {"gaussian", "noise"}
EXTRA = ("mimic(client=none)", "min-max(direction=sign)", "fang(target=krum)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50, help="all clients")
    parser.add_argument("--honest", type=int, default=40, help="how many of them are honest")
    parser.add_argument("--byzantine", type=int, default=10, help="attackers")
    parser.add_argument("--dim", type=int, default=2_472_266)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
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
    print(f"{args.honest} honest + {args.byzantine} attackers, d = {args.dim:,}, {device}")
    print(f"{'attack':<28}{'ms':>9}{'/ mean':>9}{'limit':>8}")
    for text, took in seconds.items():
        limit = "-" if text.split("(")[0] in UNLIMITED else f"{LIMIT:g}"
        print(f"{text:<28}{1e3 * took:>9.1f}{took / unit:>9.2f}{limit:>8}")


def _job(text: str, honest: torch.Tensor, own: torch.Tensor) -> Callable[[], object]:
    attack = ov.make_attack(text)
    return lambda: attack(honest, num_byzantine=len(own), own=own, seed=0)


if __name__ == "__main__":
    main()
