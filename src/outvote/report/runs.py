"""Runs for notebooks: frames, summaries, tables, figures and reports of one object."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isnan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, final, overload

from outvote.errors import OutvoteWarning, check_choice, closest, plural
from outvote.markup import clean, html_table, text_table
from outvote.report.cells import ACCURACIES, METRICS, OF_CLIENTS, SHORT, UNSCALED, Metric
from outvote.report.layout import differing, grids_of
from outvote.report.rendered_table import UNKNOWN, Rendered, number, render
from outvote.report.table_formats import as_json, html, latex, markdown, records, to_csv
from outvote.results.collect import collect
from outvote.results.disk import write_whole
from outvote.results.labels import is_same, label, plain
from outvote.results.long_table import (
    NONE,
    PREFIX,
    Column,
    optional,
    run_columns,
    run_frame,
    to_frame,
)
from outvote.results.run import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from outvote.report.figures import FigureKind

AnyPath = str | PathLike[str]
Choice = str | int | float | bool | None
NOT_IN_ALL: tuple[Metric, ...] = ("test_loss", *OF_CLIENTS)
"""Metrics that a summary shows if a run has them."""
MOST_ROWS = 60
"""Of a summary that is shown; a frame has all of them."""


def read_runs(*paths: AnyPath) -> "Runs":
    """Read all runs below some paths, in order of suite and name.

    A path is a store, the folder of a suite, the folder of one run, or the file of an export
    (``outvote export``), in any combination. The same run found twice counts once. Runs that are
    not finished are read as far as they are. A damaged run is left out, with a warning; a path
    without runs is an error.

    ::

        runs = ov.read_runs("runs", "monday.csv.gz")
        runs.to_frame().groupby(["data.beta", "rule"])["accuracy"].max()
    """
    faults: list[str] = []
    try:
        return Runs(collect([Path(path) for path in paths], faults.append))
    finally:
        for fault in faults:
            warnings.warn(fault, OutvoteWarning, stacklevel=2)


@final
class Runs(Sequence[Result]):
    """A sequence of runs, each a `Result`, and what is shown of them.

    `to_frame` has everything, one row per run and round; `summary` has one row per run, `table`
    one cell per rule and attack. A slice of runs is again `Runs`.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = tuple(results)

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> "Runs": ...
    def __getitem__(self, index: int | slice) -> "Result | Runs":
        if isinstance(index, slice):
            return Runs(self._results[index])
        return self._results[index]

    def select(
        self,
        settings: Mapping[str, Choice | Collection[Choice]] | None = None,
        *,
        rule: str | Collection[str] | None = None,
        attack: str | Collection[str] | None = None,
        seed: int | Collection[int] | None = None,
        suite: str | Collection[str] | None = None,
        outcome: str | Collection[str] | None = None,
    ) -> "Runs":
        """Return the runs that agree with all that is given; several values: with one of them.

        Args:
            settings: Values by dotted name, such as ``{"data.beta": 0.5, "rule.num_groups": 10}``.
            rule: "gas(krum)" takes any parameters, "gas(krum, num_groups=10)" exactly these.
            attack: Likewise.
            seed: One seed or several.
            suite: The name of a suite.
            outcome: finished, diverged, interrupted, failed or running.
        """
        wanted = {key.removeprefix(PREFIX): value for key, value in (settings or {}).items()}
        for key in wanted:
            if self._results and not any(each.setting(key) is not None for each in self):
                known = [name for name in run_columns(self._results) if "." in name]
                raise ValueError(f"no run has a setting {key!r}; {closest(key, known)}")
        return Runs(
            [
                each
                for each in self
                if all(_is_among(each.setting(key), value) for key, value in wanted.items())
                and _is_text_among(each.config["rule"], rule)
                and _is_text_among(each.config["attack"], attack)
                and (seed is None or _is_among(each.seed, seed))
                and (suite is None or _is_among(each.suite, suite))
                and (outcome is None or _is_among(each.status.outcome, outcome))
            ]
        )

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas frame with one row per run and round.

        Columns: suite, name, rule, attack, seed and outcome; the parameters of rule and attack
        ("rule.num_groups") and all settings by dotted name ("data.beta"); round, accuracy, loss
        and all other series. NaN or None: the run has no such setting or did not measure it.
        A run without a round has no row. Needs pandas.
        """
        return to_frame(self._results)

    def summary(self) -> "RunSummary":
        """Return one row per run: best, final and last-ten accuracy, and the other metrics."""
        return RunSummary(self._results)

    def table(
        self,
        metric: Metric | None = None,
        *,
        part: str | None = None,
        paper: bool = False,
        clients: bool = False,
        suites: Sequence[str] = (),
    ) -> "RunTable":
        """Return the tables that ``outvote table`` prints: rules against attacks.

        Args:
            metric: best, final, last_ten, kept_byzantine (the Byzantine selection rate),
                byzantine_weight, deviation, test_loss, client_accuracy, worst_decile or
                least_kept; default: what each part of a suite is about, and the test loss where
                targets are not classes.
            part: The name of the only part of a suite that is wanted.
            paper: Whether to put the paper's value beside each of ours.
            clients: Whether to add who pays for each rule: what honest clients get.
            suites: Paths of your own suites (path.toml), to lay their runs out as they have them.
        """
        if metric is not None:
            check_choice("metric", metric, METRICS)
        if paper and metric is not None and metric not in ACCURACIES:
            raise ValueError(
                f"paper=True goes with accuracies ({', '.join(ACCURACIES)}), got metric={metric!r}."
            )
        grids = grids_of(self._some(), part, suites)
        return RunTable(render(grids, metric, paper=paper, clients=clients))

    def plot(
        self,
        kind: "FigureKind" = "curves",
        *,
        path: AnyPath | None = None,
        metric: Metric = "best",
        part: str | Sequence[str] | None = None,
        suites: Sequence[str] = (),
        run: str | None = None,
    ) -> "Figure":
        """Draw runs as ``outvote plot`` does; return the matplotlib figure. Needs matplotlib.

        Args:
            kind: curves, heatmap, selection, deviation, identification, f-beta or
                bound (of runs with `theory`).
            path: The file to write as well: .png, .svg or .pdf.
            metric: Of heatmap and f-beta; the names are those of `table`.
            part: The name of the only part of a suite that is wanted, or several names.
            suites: Paths of your own suites (path.toml).
            run: identification: the name or hash of a run.
        """
        _check_matplotlib()
        from outvote.report.figure_style import to_bytes
        from outvote.report.figures import FORMATS, KINDS, figure_of

        check_choice("kind", kind, KINDS)
        check_choice("metric", metric, METRICS)
        format_ = "" if path is None else Path(path).suffix.lower().removeprefix(".")
        if path is not None and format_ not in FORMATS:
            raise ValueError(f"path must end in .png, .svg or .pdf, got {str(path)!r}.")
        figure = figure_of(kind, self._some(), metric=metric, part=part, suites=suites, run=run)
        if path is not None:
            write_whole(Path(path), to_bytes(figure, format_), stays="what was there stays")
        return figure

    def report(self, path: AnyPath = "report.html", *, suites: Sequence[str] = ()) -> Path:
        """Write the page of ``outvote report``: one HTML file that needs no network.

        Args:
            path: The file to write; it is returned.
            suites: Paths of your own suites (path.toml), to lay their runs out as they have them.
        """
        from outvote.report.html_report import write_report

        write_report(self._some(), Path(path), suites=suites)
        return Path(path)

    def __repr__(self) -> str:
        count = plural(len(self), "run")
        if not self._results:
            return f"<{count}>"
        kinds = {
            "rule": {each.config["rule"] for each in self},
            "attack": {each.config["attack"] for each in self},
            "seed": {each.seed for each in self},
        }
        counts = ", ".join(plural(len(found), name) for name, found in kinds.items())
        suites = ", ".join(dict.fromkeys(each.suite for each in self))
        unfinished = sum(not each.is_over for each in self)
        rest = f"; {unfinished} unfinished" if unfinished else ""
        return clean(f"<{count} of {suites}: {counts}{rest}>")

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def _some(self) -> tuple[Result, ...]:
        if not self._results:
            raise ValueError("there are no runs to show; select fewer conditions, or read others.")
        return self._results


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            "a figure needs matplotlib, which is missing; install it: pip install 'outvote[plots]'"
        ) from error


def _is_among(found: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one, or one of several; 1 is 1.0, but not True.

    None is also what a file of settings writes as "none".
    """
    several = wanted if isinstance(wanted, Collection) and not isinstance(wanted, str) else [wanted]
    return any(
        (found == each and isinstance(found, bool) == isinstance(each, bool))
        or (each is None and found == NONE)
        for each in several
    )


def _is_text_among(found: str, wanted: str | Collection[str] | None) -> bool:
    """Return whether a rule or attack is wanted: by its names alone, or with its parameters."""
    several = [wanted] if isinstance(wanted, str) else wanted
    return several is None or any(
        each in (found, label(found)) or is_same(each, found) for each in several
    )


@final
class RunSummary:
    """One row per run: what it is, the settings that differ, and its metrics."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = tuple(results)
        self._metrics = [
            name
            for name in METRICS
            if name not in NOT_IN_ALL or any(not isnan(getattr(each, name)) for each in results)
        ]

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas frame with one row per run: all settings, then the metrics.

        Accuracies and shares are from 0 to 1; NaN: not known. Needs pandas.
        """
        numbers: dict[str, Column] = {
            "rounds_completed": Column("integer", [each.status.round for each in self._results]),
            **{
                name: Column("real", [getattr(each.summary, name) for each in self._results])
                for name in METRICS
            },
        }
        return run_frame(run_columns(self._results) | numbers)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        columns, rows = self._shown()
        text = text_table(columns, rows, num_text=len(columns) - len(self._metrics))
        return "\n".join([*text, *filter(None, [self._note()])])

    def _repr_html_(self) -> str:
        columns, rows = self._shown()
        title = f"{repr(Runs(self._results))[1:-1]}."
        num_text = len(columns) - len(self._metrics)
        return html_table(columns, rows, num_text=num_text, title=title, note=self._note())

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles of the columns and the texts of the rows."""
        results = self._results[:MOST_ROWS]
        keys = list(differing(self._results))
        suites = ["suite"] if len({each.suite for each in self._results}) > 1 else []
        titles = [SHORT[name] for name in self._metrics]
        columns = [*suites, "rule", "attack", "seed", *keys, "outcome", *titles]
        rows = []
        for each in results:
            about = [*([each.suite] if suites else []), each.config["rule"], each.config["attack"]]
            settings = [plain(each.setting(key)) for key in keys]
            numbers = [_written(getattr(each, name), name) for name in self._metrics]
            row = [*about, str(each.seed), *settings, each.status.outcome, *numbers]
            rows.append([clean(cell) for cell in row])
        return columns, rows

    def _note(self) -> str:
        num_left = len(self._results) - MOST_ROWS
        more = f"{plural(num_left, 'more run')}; to_frame() has all. " if num_left > 0 else ""
        has_losses = "test_loss" in self._metrics
        return (
            f"{more}All but the deviation{' and the test loss' if has_losses else ''} in percent."
        )


def _written(value: float, metric: Metric) -> str:
    """Return a metric as tables print it."""
    if isnan(value):
        return UNKNOWN
    return number(value if metric in UNSCALED else 100 * value, metric)


@final
class RunTable:
    """The tables that ``outvote table`` prints, in all its formats."""

    def __init__(self, rendered: Rendered) -> None:
        self._rendered = rendered

    def to_markdown(self) -> str:
        """Return what ``outvote table`` prints."""
        return clean(markdown(self._rendered))

    def to_latex(self) -> str:
        """Return a table environment for each table; the preamble needs booktabs."""
        return clean(latex(self._rendered))

    def to_csv(self) -> str:
        """Return one record for each cell, with all metrics."""
        return clean(to_csv(self._rendered))

    def to_dict(self) -> dict[str, Any]:
        """Return what ``outvote table --json`` prints: cells, worst cases and provenance."""
        return as_json(self._rendered)

    def to_frame(self) -> "pd.DataFrame":
        """Return a pandas frame with one row for each cell, with all metrics. Needs pandas."""
        frame: pd.DataFrame = optional("pandas", "a frame").DataFrame(records(self._rendered))
        return frame

    def __repr__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return html(self._rendered)
