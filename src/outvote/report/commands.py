"""What to type to get the same runs."""

import shlex
from collections.abc import Iterable, Sequence

from outvote.report.differing import ordered
from outvote.results.run import Result
from outvote.suites.suite import suite_names


def bench_commands(results: Iterable[Result]) -> list[str]:
    """Return one command for each suite that comes with outvote and that runs are of.

    Each precision has a command of its own.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        if each.suite in suite_names():
            groups.setdefault((each.suite, precision_of(each)), []).append(each)
    return [
        _command(suite, precision, groups[suite, precision]) for suite, precision in sorted(groups)
    ]


def precision_words(precision: str) -> list[str]:
    """Return what a command needs to play in a precision."""
    return [] if precision == "float32" else ["--precision", precision]


def precision_of(result: Result) -> str:
    """Return the precision that a run was played in."""
    return str(result.config.get("precision", "float32"))


def _command(suite: str, precision: str, results: Sequence[Result]) -> str:
    words = ["outvote", "bench", suite]
    seeds = ordered(each.seed for each in results)
    words += (
        ["--seeds", str(len(seeds))]
        if seeds == list(range(len(seeds)))
        else ["--set", f"seed={seeds}"]
    )
    words += precision_words(precision)
    devices = {each.environment.device for each in results if each.environment is not None}
    if devices and "cpu" not in devices:
        words += ["--device", "cuda"]
    return shlex.join(words)
