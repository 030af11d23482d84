"""From a suite to runs."""

from collections.abc import Sequence

from outvote.experiment.reading import Plan, make_plan
from outvote.suites.suite import Part, Suite


def plan_suite(suite: Suite, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of all parts; one that several parts ask for is there once."""
    plans = [plan_part(suite, part, settings) for part in suite.parts]
    found = {
        known: spec for plan in plans for known, spec in zip(plan.hashes, plan.specs, strict=True)
    }
    return Plan(suite.name, tuple(found.values()), tuple(found))


def plan_part(suite: Suite, part: Part, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of one part."""
    try:
        return make_plan(part.settings, settings, suite=suite.name)
    except (ValueError, TypeError) as error:
        raise ValueError(f"suite {suite.name}, part {part.name}: {error}") from error
