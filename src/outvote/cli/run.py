"""`outvote run CONFIG.toml`: play the runs that a file describes; go on where they stopped."""

import shlex
import sys
from pathlib import Path

import click

from outvote.cli.verb import Verb

device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:1."
)
checkpoint_option = click.option(
    "--checkpoint-every",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds between two checkpoints; 0: after every round.",
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting."
)
output_option = click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="The store: results go to its folder of the suite's name.",
)
weights_option = click.option(
    "--no-weights",
    is_flag=True,
    help="Do not keep the final weights of runs that are over; tables do not need them.",
)


@click.command("run", cls=Verb)
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@output_option
@device_option
@checkpoint_option
@weights_option
def command(
    config: Path,
    settings: tuple[str, ...],
    output: Path,
    device: str,
    checkpoint_every: float,
    no_weights: bool,
    as_json: bool,
) -> int:
    """Simulate federations: every list in the file multiplies the runs.

    Runs that are finished are not played again, half-done ones go on where they stopped. Ctrl-C
    and SIGTERM finish the round, save, and end with the exit code 130 or 143.

    \b
    outvote run config.toml --set data.beta=0.1 --set 'rule=["mean", "gas(median)"]'
    """  # noqa: D301  (click wants the backspace)
    from outvote.cli.simulate import How, play
    from outvote.experiment.reading import read_plan

    try:
        plan = read_plan(config, settings)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    how = How(
        output=output,
        device=device,
        checkpoint_every=checkpoint_every,
        keep_weights=not no_weights,
    )
    done = play(plan, how)
    done.print(as_json)
    if not as_json:
        click.echo(f"Results: {output / plan.suite}")
    done.how_to_go_on(shlex.join(["outvote", *sys.argv[1:]]))
    return done.exit_code
