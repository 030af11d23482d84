"""All runs that some paths lead to: stores, suites, single runs and exports, in any mixture."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from outvote.results.exported import read_export
from outvote.results.faults import DamagedFileError, StoreError
from outvote.results.folder import RunFolder, find_runs
from outvote.results.run import Result, read_result


def _unsaid(text: str) -> None:
    del text


def collect(paths: Sequence[Path], said: Callable[[str], None] = _unsaid) -> list[Result]:
    """Read all runs that were begun, by suite and name; nothing found is a StoreError.

    A path is a folder with runs anywhere below it, or the file of an export. The same run found
    twice counts once: one that is over wins, then one that was played further. A run that is
    damaged is left out, and `said` is told.
    """
    found = [result for path in paths for result in _read(path, said)]
    if not found:
        places = ", ".join(str(path) for path in paths) or "no path"
        raise StoreError(
            f"no runs in {places}; give a store, the folder of a suite or run, or an export "
            "(results.csv.gz)"
        )
    return sorted(_once(found), key=lambda result: (result.suite, result.name))


def _read(path: Path, said: Callable[[str], None]) -> Iterable[Result]:
    if path.is_file():
        return read_export(path)
    if not path.is_dir():
        raise StoreError(f"there is no file or folder {path}; check the path")
    found = (_sound(folder, said) for folder in find_runs(path))
    return [result for result in found if result is not None]


def _sound(folder: RunFolder, said: Callable[[str], None]) -> Result | None:
    try:
        return read_result(folder)
    except (DamagedFileError, OSError) as error:
        said(f"{folder.path} is left out: {error}")
        return None


def _once(results: Sequence[Result]) -> Iterable[Result]:
    """Keep the better one of two results of the same settings in the same suite."""
    by_place: dict[tuple[str, str], Result] = {}
    for each in results:
        place = each.suite, each.hash
        known = by_place.get(place)
        if known is None or _worth(each) > _worth(known):
            by_place[place] = each
    return by_place.values()


def _worth(result: Result) -> tuple[bool, int, bool]:
    return result.is_over, len(result.series), result.folder is not None
