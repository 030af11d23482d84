"""All runs that some paths lead to: stores, suites, single runs and exports, in any mixture."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from outvote.results.check import REMEDY
from outvote.results.disk import DamagedFileError, StoreError
from outvote.results.export import read_export
from outvote.results.folder import RunFolder, find_runs
from outvote.results.run import Result, read_result

Warn = Callable[[str], None]


def collect(paths: Sequence[Path], warn: Warn = lambda _: None) -> list[Result]:
    """Read all runs that were begun, by suite and name; nothing found is a StoreError.

    A path is a folder with runs anywhere below it, or the file of an export. The same run found
    twice counts once: one that is over wins, then one with more rounds. A damaged run is left out,
    and `warn` is called; so it is where only the audit or the times are damaged.
    """
    faults: list[str] = []

    def note(text: str) -> None:
        faults.append(text)
        warn(text)

    found = [result for path in paths for result in _read(path, note)]
    if not found:
        listed = ", ".join(str(path) for path in paths) or "no path"
        if faults:
            raise StoreError(f"all runs in {listed} are damaged; {REMEDY}")
        raise StoreError(
            f"no runs in {listed}; give a store, the folder of a suite or run, or an export "
            "(results.csv.gz)"
        )
    return sorted(_once(found), key=lambda result: (result.suite, result.name))


def _read(path: Path, warn: Warn) -> Iterable[Result]:
    if path.is_file():
        return read_export(path)
    if not path.is_dir():
        raise StoreError(f"there is no file or folder {path}; check the path")
    found = (_sound(folder, warn) for folder in find_runs(path))
    return [result for result in found if result is not None]


def _sound(folder: RunFolder, warn: Warn) -> Result | None:
    try:
        found = read_result(folder)
    except (DamagedFileError, OSError) as error:
        warn(f"{folder.path} is left out: {error}; {REMEDY}")
        return None
    for fault in found.faults if found is not None else ():
        warn(f"{fault}; the numbers of the run are sound; {REMEDY}")
    return found


def _once(results: Sequence[Result]) -> Iterable[Result]:
    """Keep the better one of two results of the same settings in the same suite."""
    best: dict[tuple[str, str], Result] = {}
    for each in results:
        known = best.get((each.suite, each.hash))
        if known is None or _worth(each) > _worth(known):
            best[each.suite, each.hash] = each
    return best.values()


def _worth(result: Result) -> tuple[bool, int, bool]:
    return result.is_over, len(result.series), result.folder is not None
