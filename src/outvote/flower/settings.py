"""The settings of a strategy, checked when it is made and not in round 1."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, Literal, final

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from outvote.errors import check_choice
from outvote.files.streaming import parse_memory
from outvote.results.audit_log import read_manifest
from outvote.results.labels import user_files
from outvote.rules.aggregate import num_from_fraction
from outvote.rules.majority import check_assumed, check_weighs
from outvote.rules.rule import Rule
from outvote.seeding import seed_from
from outvote.server.selection import Selection
from outvote.server.step import Server

WhenTooMany = Literal["keep", "lower"]
Sampler = Callable[[int, Sequence[int]], Sequence[int]]
"""The caller's own choice: the round and the nodes to choose from -> the nodes of the round."""
Reference = Callable[[int, ArrayRecord], ArrayRecord]
"""The server's own training, for rules that need it: the round and the model -> the trained one."""
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]
"""As in Flower: the replies and the key of the number of examples -> the metrics of the round."""
Plain = str | int | float | bool | None
HOOKS = ("sample", "reference", "train_metrics_aggr_fn", "evaluate_metrics_aggr_fn")
FORMER = {
    "fraction_fit": "use fraction_train",
    "min_fit_clients": "use min_train_nodes",
    "min_evaluate_clients": "use min_evaluate_nodes",
    "min_available_clients": "use min_available_nodes",
    "evaluate_fn": "pass it to start(evaluate_fn=...)",
    "on_fit_config_fn": "pass start(train_config=...), or override configure_train",
    "on_evaluate_config_fn": "pass start(evaluate_config=...), or override configure_evaluate",
    "initial_parameters": "pass start(initial_arrays=...)",
    "fit_metrics_aggregation_fn": "use train_metrics_aggr_fn",
    "evaluate_metrics_aggregation_fn": "use evaluate_metrics_aggr_fn",
    "accept_failures": "there is no setting: failures are always accepted",
    "inplace": "there is no setting: replies are never changed",
}
"""Keywords of the strategies in flwr.server.strategy, and what is there instead."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a `RobustStrategy`, which documents them."""

    rule: Rule
    num_byzantine: int | None
    byzantine_fraction: float | None
    audit_dir: Path | None
    when_too_many: WhenTooMany
    use_num_examples: bool
    server_optimizer: Server
    exclude_after: int | None
    exclude_outvoted: float | None
    heterogeneity: float
    probation: int | None
    sample: Sampler | None
    selection: Selection
    reference: Reference | None
    seed: int | None
    fraction_train: float
    fraction_evaluate: float
    min_train_nodes: int
    min_evaluate_nodes: int
    min_available_nodes: int
    checkpoint_every: int
    max_memory: int | str
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFunction | None
    evaluate_metrics_aggr_fn: MetricsFunction | None

    def __post_init__(self) -> None:
        check_choice("when_too_many", self.when_too_many, ("keep", "lower"))
        check_assumed(self.rule, self.num_byzantine, self.byzantine_fraction, "nodes")
        for name in ("fraction_train", "fraction_evaluate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}.")
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            _check_whole(name, getattr(self, name), 0)
        for name in ("exclude_after", "probation", "checkpoint_every"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name), 1)
        self._check_exclusion()
        self._check_selection()
        parse_memory(self.max_memory)
        if self.seed is not None:
            seed_from(self.seed)
        self._check_rule()

    def num_byzantine_of(self, num_nodes: int) -> int:
        """Return how many of so many nodes may be Byzantine."""
        if self.byzantine_fraction is not None:
            return num_from_fraction(self.byzantine_fraction, num_nodes)
        return self.num_byzantine or 0

    @property
    def max_bytes(self) -> int | None:
        """With more for a matrix of updates they are streamed; None: the rule needs the matrix."""
        traits = self.rule.traits
        needs_all = traits.has_state or traits.needs_reference or traits.needs_model
        can_be_streamed = bool(traits.can_stream) and not needs_all
        return parse_memory(self.max_memory) if can_be_streamed else None

    def to_notes(self) -> dict[str, Plain]:
        """Return what the manifest keeps besides the rule and the number of Byzantine nodes."""
        left_out = ("rule", "num_byzantine", "byzantine_fraction", "audit_dir")
        by_name = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: _plain(by_name[name]) for name in by_name if name not in left_out}

    def _check_exclusion(self) -> None:
        for name in ("exclude_after", "exclude_outvoted"):
            is_set = getattr(self, name) is not None
            if is_set and not (self.num_byzantine or self.byzantine_fraction):
                raise ValueError(
                    f"{name} excludes at most num_byzantine nodes, got none; set num_byzantine or "
                    "byzantine_fraction too."
                )
        rate = self.exclude_outvoted
        if rate is not None and (isinstance(rate, bool) or not 0 < rate < 1):
            raise ValueError(
                "exclude_outvoted must be a rate of false exclusions above 0 and below 1, got "
                f"{rate}; 0.01 is usual."
            )
        if not 1 <= self.heterogeneity < inf:
            raise ValueError(f"heterogeneity must be a number from 1 on, got {self.heterogeneity}.")

    def _check_selection(self) -> None:
        if not self.selection.uses_scores:
            return
        if self.sample is not None:
            raise ValueError(
                f"selection={str(self.selection)!r} and sample= both choose the nodes of a round; "
                "leave one out."
            )
        if self.fraction_train == 1:
            raise ValueError(
                f"selection={str(self.selection)!r} has no effect where all nodes are asked in "
                f"every round; set fraction_train below 1, got {self.fraction_train}."
            )

    def _check_rule(self) -> None:
        if self.rule.traits.needs_reference and self.reference is None:
            raise ValueError(
                f"{self.rule} compares clients with the server's own training; pass reference=, a "
                "function that trains the model it is given."
            )
        if self.use_num_examples:
            check_weighs(self.rule)


def refuse(name: str) -> TypeError:
    """Return the error for a keyword that is no setting."""
    if name in FORMER:
        return TypeError(
            f"{name} is of Flower's former strategies (flwr.server.strategy), and RobustStrategy "
            f"is for flwr.serverapp: {FORMER[name]}."
        )
    known = [each.name for each in fields(Settings)]
    close = get_close_matches(name, known, n=1, cutoff=0.0)
    return TypeError(f"RobustStrategy has no setting {name!r}; the closest is {close[0]!r}.")


def resumed_settings(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings, and for the others those of the run whose log is in a folder."""
    manifest = read_manifest(folder)
    if manifest is None:
        return dict(given)
    notes = manifest.settings
    for name in HOOKS:
        if notes.get(name) and name not in given:
            raise ValueError(
                f"the run in {folder} had its own {name}= ({notes[name]}), which no file can keep; "
                f"pass it again, or {name}=None to continue without."
            )
    known = {each.name for each in fields(Settings)} - set(HOOKS)
    kept = {name: value for name, value in notes.items() if name in known}
    kept["rule"] = manifest.rule
    if not {"num_byzantine", "byzantine_fraction"} & set(given):
        kept["num_byzantine"] = manifest.num_byzantine
        kept["byzantine_fraction"] = manifest.byzantine_fraction
    for name, value in kept.items():
        if name not in given and isinstance(value, str) and user_files(value):
            raise ValueError(
                f"the log in {folder} names Python code, {name}={value[:200]!r}, which would be "
                f"executed; if you trust it, pass {name}= yourself."
            )
    return kept | dict(given)


def _check_whole(name: str, value: object, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number from {at_least} on, got {value!r}.")


def _plain(value: Any) -> Plain:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Server | Selection):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))
