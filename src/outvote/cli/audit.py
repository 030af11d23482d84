"""`outvote audit FOLDER`: who looked suspicious, round by round, in simulation or production."""

import shlex
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outvote.cli.audit_table import print_audit, print_overview, shown_audit, shown_overview
from outvote.cli.output import one_line, print_json
from outvote.cli.verb import Verb, WorkFailed

if TYPE_CHECKING:
    from outvote.report.audit import Audit
    from outvote.results.run import Result

WAIT_SECONDS = 2.0


@click.command("audit", cls=Verb)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--run", "name", help="Of several runs, the one whose name has this in it.")
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Clients.")
@click.option("--follow", is_flag=True, help="Print again when a round is added; Ctrl-C ends it.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write an HTML file too: every judgement, for any browser.",
)
def command(
    folder: Path, name: str | None, top: int, follow: bool, output: Path | None, as_json: bool
) -> None:
    """Show which clients look suspicious, and why.

    FOLDER is the folder of a run, of a suite, or the audit log that a server in production writes;
    it may be read while it is written. Of several runs there is a line each; --run picks one.

    \b
    outvote audit runs/demo --run gas-bulyan-lie
    outvote audit audit-log -o audit.html
    """  # noqa: D301  (click wants the backspace)
    from outvote.results.disk import StoreError

    try:
        source = _Source(folder, name)
        source.show(top, output, as_json)
        while follow:
            time.sleep(WAIT_SECONDS)
            if source.has_grown():
                source.show(top, output, as_json)
    except StoreError as error:
        raise WorkFailed(str(error)) from error
    except KeyboardInterrupt:
        if not follow:
            raise


class _Source:
    """A folder with one audit or several."""

    def __init__(self, folder: Path, name: str | None) -> None:
        """Find out what the folder is."""
        if not folder.is_dir():
            raise click.UsageError(f"there is no folder {folder}; check the path.")
        self.folder, self.name, self.num_rounds = folder, name, -1
        self.log, self.results = self._read()

    def _read(self) -> "tuple[Audit | None, list[Result]]":
        from outvote.report.audit import audit_log
        from outvote.results.disk import StoreError

        try:
            log = audit_log(self.folder)
        except StoreError as error:
            raise click.UsageError(f"{error}; give the folder of a whole log.") from error
        if log is not None:
            if self.name is not None:
                raise click.UsageError(f"{self.folder} is one log; leave out --run.")
            return log, []
        return None, _chosen(_runs_in(self.folder), self.name)

    def has_grown(self) -> bool:
        """Read again, and tell whether rounds were added."""
        self.log, self.results = self._read()
        return self._count() != self.num_rounds

    def show(self, top: int, output: Path | None, as_json: bool) -> None:
        """Print what there is, and write the page if one is wanted."""
        from outvote.report.audit import audit_run

        self.num_rounds = self._count()
        if self.log is None and len(self.results) > 1:
            (print_json(shown_overview(self.results)) if as_json else print_overview(self.results))
        else:
            audit = self.log or audit_run(self.results[0])
            assert audit is not None
            print_json(shown_audit(audit)) if as_json else print_audit(audit, top)
        if output is not None:
            self._write(output)
            if not as_json:
                click.echo(f"{output}: open it in a browser.")

    def _count(self) -> int:
        if self.log is not None:
            return len(self.log.rounds)
        return sum(len(result.series) for result in self.results)

    def _write(self, output: Path) -> None:
        from outvote.report.html import write_log_audit, write_run_audits

        command = shlex.join(["outvote", *sys.argv[1:]])
        if self.log is not None:
            write_log_audit(self.log, output, command=command)
        else:
            write_run_audits(self.results, output, command=command)


def _runs_in(folder: Path) -> "list[Result]":
    from outvote.results.collect import collect
    from outvote.results.disk import StoreError
    from outvote.results.folder import find_runs

    if not find_runs(folder):
        raise click.UsageError(
            f"{folder} is neither a run, nor a suite, nor an audit log; give a folder that "
            "outvote run, outvote bench or a server with an audit log wrote."
        )
    try:
        return collect([folder], lambda text: click.echo(one_line(text), err=True))
    except StoreError as error:
        raise click.UsageError(str(error)) from error


def _chosen(results: "Sequence[Result]", name: str | None) -> "list[Result]":
    if name is None:
        return list(results)
    found = [result for result in results if name in result.name]
    if not found:
        like = get_close_matches(name, [result.name for result in results], n=1, cutoff=0.0)
        raise click.UsageError(
            f"none of the {len(results)} runs has {name!r} in its name; the closest is {like[0]}."
        )
    return found
