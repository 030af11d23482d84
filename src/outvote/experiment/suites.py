"""From a suite to runs."""

from collections.abc import Sequence

from outvote.experiment.reading import Plan, make_plan
from outvote.suites.suite import Part, Suite


def plan_suite(suite: Suite, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of all parts; one that several parts ask for is there once."""
    return together(suite, plan_parts(suite, settings))


def plan_parts(suite: Suite, settings: Sequence[str] = ()) -> list[Plan]:
    """Return the runs of each part, as files of one's own are now."""
    return [plan_part(suite, part, settings) for part in suite.parts]


def together(suite: Suite, plans: Sequence[Plan]) -> Plan:
    """Return the runs of several parts as one plan."""
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
