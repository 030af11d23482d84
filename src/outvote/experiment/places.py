"""Where the runs of a part of a suite stand in its table."""

from typing import Any

from outvote.experiment.reading import Plan
from outvote.experiment.spec import as_table
from outvote.results.names import names_of
from outvote.suites.suite import Part, value_of


def places_of(part: Part, plan: Plan) -> dict[str, tuple[str, Any]]:
    """Return the row and the column of each run, by its hash; no two settings share a cell."""
    rules = names_of((spec.rule for spec in plan.specs), part.ignored("rule"))
    attacks = names_of((spec.attack for spec in plan.specs), part.ignored("attack"))
    return {
        known: (
            rules[spec.rule],
            attacks[spec.attack]
            if part.columns == "attack"
            else value_of(as_table(spec), part.columns),
        )
        for known, spec in zip(plan.hashes, plan.specs, strict=True)
    }
