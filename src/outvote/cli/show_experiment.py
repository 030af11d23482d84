"""What experiments are made of, for `outvote show`: models, datasets, suites."""

import re
from inspect import signature
from typing import TYPE_CHECKING, Any

from outvote.cli.output import NumberColumn, print_json, print_listing, print_table, print_text
from outvote.cli.plugins import first_sentence
from outvote.cli.verb import usage_errors
from outvote.errors import plural

if TYPE_CHECKING:
    from outvote.suites.suite import Part, Suite

NUM_CLASSES = 10
"""Of a model that is shown."""


def show_model(name: str, as_json: bool) -> None:
    """Show a model: its layers, their parameters, and the samples that it takes."""
    about = model_facts(name)
    if as_json:
        print_json(about)
        return
    rows = [
        [each["name"], each["layer"], f"{each['num_parameters']:,}"] for each in about["layers"]
    ]
    columns = ["layer", "what", NumberColumn("parameters")]
    print_table(columns, rows, f"{name}: {about['summary']}")
    shape = about["input_shape"]
    made_for = "" if shape is None else f", samples of {_size(shape)}"
    print_text(
        f"{about['num_parameters']:,} parameters with {about['num_classes']} classes{made_for}; "
        f"{about['num_trained']:,} of them are trained."
    )
    if about["takes"]:
        print_text(f"It takes samples of any {about['takes']}.")


def model_facts(name: str) -> dict[str, Any]:
    """Return the facts of a model, with the samples that it was made for."""
    from outvote.models.model_spec import ANY_SHAPE, AXES, MODELS, make_model
    from outvote.user_objects import find_own

    maker = MODELS[name] if name in MODELS else find_own("model", name)
    model = make_model(name, num_classes=NUM_CLASSES, seed=0)
    shape = signature(maker).parameters["input_shape"].default if name in MODELS else None
    parameters = list(model.parameters())
    takes = "shape" if name in ANY_SHAPE else AXES[len(shape)] if shape else None
    return {
        "model": name,
        "summary": first_sentence(getattr(maker, "__doc__", None) or ""),
        "num_classes": NUM_CLASSES,
        "input_shape": shape,
        "takes": takes,
        "num_parameters": sum(each.numel() for each in parameters),
        "num_trained": sum(each.numel() for each in parameters if each.requires_grad),
        "layers": _layers(model),
    }


def _layers(model: Any) -> list[dict[str, Any]]:
    """Return the innermost modules, and those that have parameters of their own."""
    found = []
    for name, module in model.named_modules():
        own = sum(each.numel() for each in module.parameters(recurse=False))
        is_inner = next(module.children(), None) is None
        if is_inner or own:
            text = str(module) if is_inner else type(module).__name__
            found.append({"name": name or "all", "layer": text, "num_parameters": own})
    return found


def show_dataset(name: str, as_json: bool) -> None:
    """Show a dataset: samples, shape, classes, sources, where it was found or how to get it."""
    from outvote.cli.data import about_dataset
    from outvote.data.catalog import DATASETS

    if name not in DATASETS:
        _show_other_dataset(name, as_json)
        return
    about = about_dataset(DATASETS[name])
    size = about["download_bytes"]
    rows = [
        [about["samples"], _count(about)],
        ["shape", _size(about["shape"])],
        ["classes", "none" if about["num_classes"] is None else str(about["num_classes"])],
        ["read from", ", ".join(about["forms"])],
        ["source", ", ".join(about["sources"]) or "nothing is fetched"],
        ["download", f"{size / 1e6:,.0f} MB" if size else ""],
        ["checked", about["checks"]],
        ["found", about["found"] or "no"],
        ["get it", "" if about["found"] else about["get"]],
    ]
    print_listing(as_json, about, [name, about["doc"]], [row for row in rows if row[1]])


def _count(about: dict[str, Any]) -> str:
    if about["num_train"] is None:
        return "as many as the files have"
    return f"{about['num_train']:,} to train, {about['num_test']:,} to test"


def _show_other_dataset(name: str, as_json: bool) -> None:
    from outvote.plugins import find_plugin
    from outvote.user_objects import find_own

    plugin = find_plugin("dataset", name)
    assert plugin is not None
    with usage_errors(ValueError):
        doc = first_sentence(getattr(find_own("dataset", name), "__doc__", None) or "")
    about = {"name": name, "doc": doc, "package": plugin.source}
    print_listing(as_json, about, [name, doc], [["package", plugin.source]])


def show_suite(name: str, as_json: bool) -> None:
    """Show a suite: its parts, how many runs they have, what of the paper they reproduce."""
    from outvote.suites.suite import read_suite

    with usage_errors(ValueError, TypeError):
        suite = read_suite(name)
        about = suite_facts(suite)
    if as_json:
        print_json(about)
        return
    print_text(f"{suite.name}: {suite.title}")
    if about["description"]:
        print_text(f"\n{about['description']}")
    rows = [
        [
            each["name"],
            each["title"],
            str(each["num_rules"]),
            f"{len(each['values'])} x {each['columns']}",
            str(each["num_seeds"]),
            str(each["num_runs"]),
            each["reproduces"] or "",
        ]
        for each in about["parts"]
    ]
    columns = ["part", "title", NumberColumn("rules"), "columns"]
    print_table([*columns, NumberColumn("seeds"), NumberColumn("runs"), "reproduces"], rows)
    print_text(
        f"{plural(about['num_runs'], 'run')}; what several parts share is run once. "
        f"To run it: outvote bench {name}"
    )


def suite_facts(suite: "Suite") -> dict[str, Any]:
    """Return the parts of a suite and the number of their runs."""
    from outvote.experiment.plan import join_plans, plan_parts

    plans = plan_parts(suite)
    parts = [
        {
            "name": part.name,
            "title": part.title,
            "num_rules": len({spec.rule for spec in plan.specs}),
            "rules": part.rows,
            "columns": part.columns,
            "values": part.values,
            "num_seeds": len({spec.seed for spec in plan.specs}),
            "num_runs": len(plan.specs),
            "reproduces": reproduces(suite, part),
        }
        for part, plan in zip(suite.parts, plans, strict=True)
    ]
    return {
        "suite": suite.name,
        "title": suite.title,
        "description": " ".join(suite.description.split()),
        "num_runs": len(join_plans(suite, plans).specs),
        "parts": parts,
    }


def reproduces(suite: "Suite", part: "Part") -> str | None:
    """Return the table or figure of the paper that a part belongs to; None: none."""
    if part.wanted is not None and (found := re.match(r"table(\d+)", part.wanted.file)):
        return f"Table {found[1]} of the paper"
    found = re.match(r"figure(\d+)", suite.name)
    return None if found is None else f"Figure {found[1]} of the paper"


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
