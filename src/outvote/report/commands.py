"""What to type to get the same runs."""

import shlex
from collections.abc import Iterable, Sequence

from outvote.report.differing import ordered
from outvote.results.run import Result
from outvote.suites.suite import suite_names


def bench_commands(results: Iterable[Result]) -> list[str]:
    """Return one command for each suite that comes with outvote and that runs are of."""
    by_suite: dict[str, list[Result]] = {}
    for each in results:
        by_suite.setdefault(each.suite, []).append(each)
    return [
        _command(name, some) for name, some in sorted(by_suite.items()) if name in suite_names()
    ]


def _command(suite: str, results: Sequence[Result]) -> str:
    words = ["outvote", "bench", suite]
    seeds = ordered(each.seed for each in results)
    words += (
        ["--seeds", str(len(seeds))]
        if seeds == list(range(len(seeds)))
        else ["--set", f"seed={seeds}"]
    )
    precisions = ordered(str(each.config.get("precision")) for each in results)
    if len(precisions) == 1 and precisions != ["float32"]:
        words += ["--precision", precisions[0]]
    devices = {each.environment.device for each in results if each.environment is not None}
    if devices and "cpu" not in devices:
        words += ["--device", "cuda"]
    return shlex.join(words)
