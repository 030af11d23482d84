"""`outvote run CONFIG.toml`: execute the runs that a file describes; resume where they stopped."""

from pathlib import Path
from typing import Any

import click

from outvote.cli.forecast import print_forecast
from outvote.cli.run_plan import SWEEP, Execution, consent, run_plan, with_options
from outvote.cli.verb import Verb, usage_errors


@click.command("run", cls=Verb)
@click.argument("config", type=click.Path(path_type=Path))
@with_options(SWEEP)
def command(
    config: Path,
    settings: tuple[str, ...],
    num_seeds: int | None,
    dry_run: bool,
    allow_code: bool,
    as_json: bool,
    **how: Any,
) -> int:
    """Simulate federations: every list in the file multiplies the runs.

    Finished runs are skipped, half-done ones resume where they stopped. Ctrl-C and SIGTERM finish
    the round, save, and end with the exit code 130 or 143. Python files that the settings name are
    executed with --allow-code only, or where --set names them.

    \b
    outvote run config.toml --set data.beta=0.1 --set 'rule=["mean", "gas(median)"]'
    outvote run config.toml --seeds 5 --dry-run
    outvote run config.toml --seeds 5 -j 2
    """  # noqa: D301  (click wants the backspace)
    from outvote.experiment.plan import read_plan

    with usage_errors(ValueError, TypeError), consent(allow_code, settings, config.parent):
        seeds = () if num_seeds is None else (f"seed={list(range(num_seeds))}",)
        plan = read_plan(config, (*settings, *seeds))
        if dry_run:
            print_forecast(plan, Execution(**how), as_json)
            return 0
    done = run_plan(plan, Execution(**how))
    done.print(as_json, how["output"] / plan.suite)
    return done.exit_code
