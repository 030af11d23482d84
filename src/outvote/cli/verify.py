"""`outvote verify RUNS`: check all files of all runs of a store."""

from pathlib import Path
from typing import Any

import click

from outvote.cli.output import one_line, print_json, print_text
from outvote.cli.runs import paths_argument
from outvote.cli.verb import Verb, WorkFailed, usage_errors
from outvote.errors import plural
from outvote.markup import clean


@click.command("verify", cls=Verb)
@paths_argument
def command(paths: tuple[Path, ...], as_json: bool) -> int:
    """Check every file of every run; exit code 1 if one is damaged.

    RUNS are stores, folders of suites or runs, or exports. A run that is over has checksums of its
    files, so that any changed byte is found. `outvote run` and `outvote bench` repair damaged runs,
    or run them again.

    \b
    outvote verify runs
    """  # noqa: D301  (click wants the backspace)
    found = [entry for path in paths for entry in _entries(path)]
    damaged = [entry for entry in found if entry["faults"]]
    if as_json:
        print_json({"runs": found, "num_damaged": len(damaged)})
        return int(bool(damaged))
    if damaged:
        for entry in damaged:
            for fault in entry["faults"]:
                click.echo(one_line(f"{entry['path']}: {fault['file']} {fault['fault']}"))
        verb = "is" if len(damaged) == 1 else "are"
        raise WorkFailed(
            f"{len(damaged)} of {plural(len(found), 'run')} {verb} damaged; the command that made "
            "them (outvote run or outvote bench) repairs them, or runs them again. A damaged "
            "checkpoint alone can be deleted: tables do not need it."
        )
    num_summed = sum(entry["has_checksums"] for entry in found)
    num_open = sum(entry["outcome"] not in ("finished", "diverged") for entry in found)
    print_text(
        f"{plural(len(found), 'run')}, none damaged: {num_summed} checked by checksums, "
        f"{len(found) - num_summed} without; {num_open} not finished."
    )
    return 0


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return one entry for each run below a path; nothing there is a mistake of the user."""
    from outvote.results.check import check_run
    from outvote.results.disk import DamagedFileError, StoreError
    from outvote.results.export import read_export
    from outvote.results.folder import find_runs

    if not path.exists():
        raise click.UsageError(f"there is no file or folder {path}; check the path.")
    with usage_errors(StoreError):  # Of a newer outvote.
        if path.is_file():
            try:
                return [_entry(str(path), each.name, each.status, []) for each in read_export(path)]
            except DamagedFileError as error:
                fault = {"file": path.name, "fault": str(error).removeprefix(f"{path} ")}
                return [_entry(str(path), path.name, None, [fault])]
        found = [check_run(folder, deep=True) for folder in find_runs(path)]
    if not found:
        raise click.UsageError(
            f"no runs in {path}; give a store, the folder of a suite or run, or an export."
        )
    return [
        _entry(
            str(each.folder.path),
            each.folder.path.name,
            each.status,
            [{"file": fault.file, "fault": clean(fault.text)} for fault in each.faults],
        )
        for each in found
    ]


def _entry(path: str, name: str, status: Any, faults: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "path": path,
        "name": name,
        **{key: getattr(status, key, None) for key in ("outcome", "round", "num_rounds")},
        "has_checksums": status is not None and status.sums is not None,
        "faults": faults,
    }
