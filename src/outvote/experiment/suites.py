"""From a suite to runs."""

from collections.abc import Sequence

from outvote.experiment.reading import Plan, make_plan
from outvote.suites.suite import Suite


def plan_suite(suite: Suite, settings: Sequence[str] = ()) -> Plan:
    """Return the runs of all parts; one that several parts ask for is there once."""
    plans = [make_plan(part.settings, settings, suite=suite.name) for part in suite.parts]
    found = {
        known: spec for plan in plans for known, spec in zip(plan.hashes, plan.specs, strict=True)
    }
    return Plan(suite.name, tuple(found.values()), tuple(found))
