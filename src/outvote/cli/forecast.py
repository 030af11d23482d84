"""`--dry-run` of `run` and `bench`: how many runs are left, and how long they will take."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outvote.cli.output import print_json, print_text
from outvote.cli.run_plan import Execution, find_device, threads_each
from outvote.cli.verb import usage_errors
from outvote.errors import duration, plural, warn_notes

if TYPE_CHECKING:
    from outvote.experiment.forecast import Counts, Forecast, PartForecast
    from outvote.experiment.plan import Plan
    from outvote.suites.suite import Suite


def print_forecast(what: "Suite | Plan", how: Execution, as_json: bool) -> None:
    """Print the runs of a suite part by part, or those of a plan; run nothing."""
    from outvote.experiment.forecast import forecast, forecast_plan
    from outvote.experiment.plan import Plan

    with usage_errors(ValueError, TypeError):
        if isinstance(what, Plan):
            found = forecast_plan(what, how.output, *_machine(how))
            _print(found, how.output, as_json, name=what.suite)
        else:
            found = forecast(what, how.output, *_machine(how))
            _print(found, how.output, as_json, name=what.name, title=what.title)


def _machine(how: Execution) -> tuple[str, int]:
    """Return the name of the device, and how many cores the runs share."""
    from outvote.experiment.environment import device_name

    device = find_device(how.device, must_be_here=False)
    number = how.num_processes or 1
    return device_name(device), number * threads_each(number) if device.type == "cpu" else 1


def _print(found: "Forecast", store: Path, as_json: bool, *, name: str, title: str = "") -> None:
    estimate = _estimate(found, store)
    warn_notes(found.notes)
    if as_json:
        print_json({"suite": name, "title": title, **asdict(found), "estimate": estimate})
        return
    if title:
        print_text(f"{name}: {title}\n")
    for part in found.parts:
        print_text(f"{part.name}: {_product(part)}")
        print_text(f"  rules: {', '.join(part.rules)}")
        print_text(f"  {_columns(part.columns)}: {', '.join(str(each) for each in part.values)}")
        if part.num_groups:
            print_text(f"  p of gas: {', '.join(f'{each:,}' for each in part.num_groups)}")
        if part.settings:
            print_text(f"  settings: {'; '.join(map(_setting, part.settings.items()))}")
        print_text(f"  {_counts(part.counts)}\n")
    print_text(f"all: {plural(found.counts.runs, 'run')}, {_counts(found.counts)}")
    print_text(estimate)


def _setting(item: tuple[str, list[Any]]) -> str:
    key, values = item
    return f"{key} = {', '.join('none' if each is None else str(each) for each in values)}"


def _product(part: "PartForecast") -> str:
    """Return "360 runs = 12 rules × 6 attacks × 5 seeds"."""
    factors = (len(part.rules), len(part.values), len(part.seeds))
    values = f"{factors[1]} {_columns(part.columns, factors[1])}"
    text = f"{plural(factors[0], 'rule')} × {values} × {plural(factors[2], 'seed')}"
    is_all = factors[0] * factors[1] * factors[2] == part.counts.runs
    return f"{plural(part.counts.runs, 'run')} {'=' if is_all else 'in'} {text}"


def _columns(name: str, number: int = 2) -> str:
    end = "" if number == 1 else "s"
    return f"attack{end}" if name == "attack" else f"value{end} of {name}"


def _counts(counts: "Counts") -> str:
    return (
        f"{counts.finished} finished, {counts.half_done} half done, {counts.adoptable} adoptable "
        f"from another suite, {counts.to_do} to do"
    )


def _estimate(found: "Forecast", store: Path) -> str:
    if found.counts.half_done + found.counts.to_do == 0:
        return "nothing is left to run."
    if found.seconds is None:
        return f"no estimate: no run like these is in {store}/."
    text = f"about {duration(found.seconds)} at the speed of the runs in {store}/"
    if found.num_unknown:
        text += f", and {plural(found.num_unknown, 'run')} more, unlike any run there"
    return f"{text}."
