"""`outvote plot RUNS --kind curves -o f.png`: figures of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from outvote.cli.output import file_option, print_written, write_file
from outvote.cli.runs import paths_argument, read_errors, read_runs, suites_option
from outvote.cli.table import METRIC, METRICS
from outvote.cli.verb import Verb, usage_errors

if TYPE_CHECKING:
    from outvote.report.figures import FigureKind

# Written out, because the figures themselves cannot be imported without matplotlib.
KINDS = ("curves", "heatmap", "selection", "deviation", "identification", "f-beta", "bound")
FORMATS = ("png", "svg", "pdf")


@click.command("plot", cls=Verb)
@paths_argument
@click.option("--kind", type=click.Choice(KINDS), required=True, help="What to draw; see below.")
@file_option("The file to write: .png, .svg or .pdf.", required=True)
@click.option(
    "--metric",
    type=METRIC,
    default="best",
    help="Of heatmaps: an accuracy, Byzantine selection rate or weight, or the deviation.",
)
@click.option("--part", multiple=True, help="Only this part of the suite; may be repeated.")
@suites_option
@click.option("--run", help="identification: the run with this in its name, or its hash.")
def command(paths: tuple[Path, ...], kind: str, output: Path, as_json: bool, **how: Any) -> None:
    """Draw runs. RUNS are folders of runs, or exports; the same runs always give the same file.

    \b
    curves          accuracy by round, mean and deviation over seeds
    heatmap         rules × attacks (or whatever the columns are), with numbers
    selection       honest share of the update by round and its mean, and accuracy (Figure 1)
    deviation       distance of the update to the honest mean, by round (Figure 2)
    identification  one run, client by round: scores, verdicts, truth; production logs too
    f-beta          number of Byzantine clients × heterogeneity, with numbers
    bound           distance to the expected gradient and its bounds, of runs with theory = true

    \b
    outvote plot runs/table1-cifar10 --kind curves --part main -o curves.svg
    """  # noqa: D301  (click wants the backspace)
    format_ = output.suffix.lower().removeprefix(".")
    if format_ not in FORMATS:
        raise click.UsageError(f"--output must end in .png, .svg or .pdf, got {output}.")
    _check_matplotlib()
    with usage_errors(ValueError):
        content = _figure(paths, kind, format_, **how)
    write_file(output, content)
    print_written(output, as_json, kind=kind)


def _check_matplotlib() -> None:
    try:
        import outvote.report.figures  # noqa: F401  (only report imports matplotlib)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise click.UsageError(
            "figures need matplotlib, which is missing; install it: pip install 'outvote[plots]'"
        ) from error


def _figure(
    paths: tuple[Path, ...], kind: str, format_: str, *, metric: str, **which: Any
) -> bytes:
    from outvote.report.audit import audit_log
    from outvote.report.figures import audit_figure_file, figure_file

    if kind == "identification" and len(paths) == 1:
        with read_errors():
            log = audit_log(paths[0])
        if log is not None:
            return audit_figure_file(log, format_)
    results = read_runs(paths)
    return figure_file(cast("FigureKind", kind), results, format_, metric=METRICS[metric], **which)
