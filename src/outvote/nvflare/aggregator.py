"""The component that a job of NVIDIA FLARE names: it takes contributions, and returns the model."""

from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from outvote.errors import check_choice, check_kind
from outvote.nvflare.server_model import ServerModel
from outvote.nvflare.site_round import SiteResult, SiteRound, finish_round, median_metrics
from outvote.results import disk
from outvote.results.audit_folder import make_private, new_folder, now, write_manifest
from outvote.results.audit_log import LINES, AuditRound
from outvote.rules.aggregate import num_from_fraction
from outvote.rules.majority import check_assumed, check_weighs
from outvote.rules.rule import Rule
from outvote.rules.rule_spec import make_rule
from outvote.seeding import RandomStream, seed_from
from outvote.server.replies import OTHER_ROUND, OUTVOTED, quote

WhenTooMany = Literal["keep", "lower"]
QUIET = ("aggregated",)
NUM_STEPS = str(MetaKey.NUM_STEPS_CURRENT_ROUND)
UNNAMED = "?"


class RobustAggregator(ModelAggregator):
    """Any rule of outvote as an aggregator that no single site can ruin or stop.

    For the workflows `FedAvg` (its recipes too) and `ScatterAndGather`, with a persistor. Sites
    send weights or weight differences; both are aggregated as differences to the server's model.

    rule: text or object, see `outvote list rules`; not those that need a reference.
    num_byzantine, byzantine_fraction: number or share of the sites asked that may be Byzantine.
    audit_dir: a folder in which every job gets its own log, in the job's folder on the server
        unless it is absolute; None writes nothing.
    when_too_many: with too few usable contributions for the rule, "keep" the model, or "lower" the
        number of Byzantine sites that it assumes.
    use_num_steps: weight sites by the number of steps they claim (NUM_STEPS_CURRENT_ROUND), none
        more than three times the median; off, as it is only a claim.
    seed: None draws the randomness of the rule afresh in every round, as a secret.

    A contribution that is malformed, or not finite, is left out, logged with its site and a reason,
    and does not lower the assumed number of Byzantine sites. If too few are left, or if the rule
    fails, the model is kept and the reason is logged.
    """

    def __init__(
        self,
        rule: str | Rule = "gas(multi-krum)",
        num_byzantine: int | None = None,
        byzantine_fraction: float | None = None,
        audit_dir: str | None = "audit",
        when_too_many: WhenTooMany = "keep",
        use_num_steps: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._built = make_rule(rule)
        # Jobs are exported from these attributes: plain values with the names of the keywords.
        self.rule = str(self._built)
        self.num_byzantine, self.byzantine_fraction = num_byzantine, byzantine_fraction
        self.audit_dir = None if audit_dir is None else str(audit_dir)
        self.when_too_many, self.use_num_steps, self.seed = when_too_many, use_num_steps, seed
        self._check()
        self._lock = Lock()
        self._sites: SiteRound | None = None
        self._state: Any = None
        self._sends_differences = True
        self._folder: Path | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin a round with the server's model, and note the sites that get it."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            with self._lock:
                self._begin(fl_ctx)
        elif event_type == AppEventType.BEFORE_TRAIN_TASK and self._sites is not None:
            peer = fl_ctx.get_peer_context()
            if peer is not None:
                self._sites.asked.add(str(peer.get_identity_name()))

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a contribution from `ScatterAndGather`; False if it cannot be used."""
        self.fl_ctx = fl_ctx
        site = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, UNNAMED))
        with self._lock:
            sites = self._open_round(fl_ctx)
            if shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND) != sites.number:
                sites.late[site] = OTHER_ROUND
                return self._is_usable(site, OTHER_ROUND)
            code = shareable.get_return_code()
            if code and code != ReturnCode.OK:
                return self._is_usable(site, sites.refuse(site, f"it returned {quote(code)}"))
            try:
                dxo = from_shareable(shareable)
            except Exception as error:  # noqa: BLE001  (whatever a site sent)
                return self._is_usable(site, sites.refuse(site, f"it is no DXO: {quote(error)}"))
            return self._add(site, dxo.data_kind, dxo.data, dxo.meta, {})

    def accept_model(self, model: FLModel) -> bool:
        """Take a contribution from `FedAvg`; False if it cannot be used."""
        meta = model.meta or {}
        is_difference = model.params_type == ParamsType.DIFF
        kind = DataKind.WEIGHT_DIFF if is_difference else DataKind.WEIGHTS
        with self._lock:
            self._open_round(self.fl_ctx)
            site = str(meta.get("client_name", UNNAMED))
            return self._add(site, kind, model.params, meta, model.metrics or {})

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Return the model after the round, or how it changes, as the sites sent it."""
        self.fl_ctx = fl_ctx
        return FLModelUtils.to_shareable(self.aggregate_model())

    def aggregate_model(self) -> FLModel:
        """Return the model after the round, or how it changes, as the sites sent it."""
        with self._lock:
            sites = self._open_round(self.fl_ctx)
            sites.is_over = True
            result = self._finish(sites)
            self._state = result.state
            usable = list(sites.usable.values())
            if usable:
                num_differences = sum(each.is_difference for each in usable)
                self._sends_differences = 2 * num_differences > len(usable)
        self._log_round(result.audit)
        self._write(result.audit)
        if sites.model is None:
            return FLModel(params_type=ParamsType.DIFF, params={})
        arrays = sites.model.tensors if result.arrays is None else result.arrays
        as_difference = self._sends_differences
        return FLModel(
            params_type=ParamsType.DIFF if as_difference else ParamsType.FULL,
            params=sites.model.restored(arrays, as_difference=as_difference),
            metrics=median_metrics(usable) or None,
            current_round=sites.number,
        )

    def reset_stats(self) -> None:
        """Forget the contributions of the round."""
        with self._lock:
            if self._sites is not None:
                last = self._sites
                self._sites = SiteRound(
                    number=last.number, model=last.model, asked=last.asked, is_over=last.is_over
                )

    def _check(self) -> None:
        check_choice("when_too_many", self.when_too_many, ("keep", "lower"))
        check_kind("use_num_steps", self.use_num_steps, bool)
        check_assumed(self._built, self.num_byzantine, self.byzantine_fraction, "sites")
        if self._built.traits.needs_reference:
            raise ValueError(
                f"{self.rule} compares sites with the server's own training, which a job of NVIDIA "
                "FLARE cannot pass; choose another rule."
            )
        if self.seed is not None:
            seed_from(self.seed)
        if self.use_num_steps:
            check_weighs(self._built)

    def _open_round(self, fl_ctx: FLContext | None) -> SiteRound:
        """Return the round that contributions are for; one that no event began begins now."""
        if self._sites is None or self._sites.is_over:
            self._begin(fl_ctx)
        assert self._sites is not None
        return self._sites

    def _begin(self, fl_ctx: FLContext | None) -> None:
        number, learnable = 0, None
        if fl_ctx is not None:
            number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND) or 0
            learnable = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        values = (learnable or {}).get(ModelLearnableKey.WEIGHTS)
        self._sites = SiteRound(number=number, model=ServerModel.read(values) if values else None)

    def _add(
        self,
        site: str,
        kind: object,
        sent: object,
        meta: Mapping[str, Any],
        metrics: Mapping[str, Any],
    ) -> bool:
        assert self._sites is not None
        sites = self._sites
        processed = meta.get(MetaKey.PROCESSED_ALGORITHM)
        if kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            reason = f"its data are {quote(kind)}, WEIGHTS or WEIGHT_DIFF are needed"
            return self._is_usable(site, sites.refuse(site, reason))
        if processed is not None:
            reason = f"it is processed by {quote(processed)}, which a rule cannot read"
            return self._is_usable(site, sites.refuse(site, reason))
        reason = sites.add(
            site,
            sent,
            is_difference=kind == DataKind.WEIGHT_DIFF,
            metrics=metrics,
            counts=(meta, NUM_STEPS) if self.use_num_steps else None,
        )
        return self._is_usable(site, reason)

    def _is_usable(self, site: str, reason: str) -> bool:
        if reason:
            self._warn(f"contribution of site {quote(site)} left out: {reason}")
        return not reason

    def _finish(self, sites: SiteRound) -> SiteResult:
        seed, num_byzantine = self.seed, self.num_byzantine or 0
        if self.byzantine_fraction is not None:
            num_byzantine = num_from_fraction(self.byzantine_fraction, max(sites.num_asked, 1))
        if seed is not None:
            seed = RandomStream((seed,)).fold_in(f"rule {sites.number}").derived()[0]
        return finish_round(
            self._built,
            sites,
            num_byzantine=num_byzantine,
            lowers=self.when_too_many == "lower",
            seed=seed,
            use_counts=self.use_num_steps,
            state=self._state,
        )

    def _log_round(self, entry: AuditRound) -> None:
        num_usable = sum(each.standing == "aggregated" for each in entry.clients)
        left_out = len(entry.clients) - num_usable
        self._log(f"round {entry.round}: {num_usable} usable contributions, {left_out} left out")
        for each in entry.clients:
            if each.standing not in QUIET:
                self._warn(f"site {quote(each.client)} {each.standing}: {each.reason}")
        outvoted = [each.client for each in entry.clients if each.reason == OUTVOTED]
        if outvoted:
            self._log(f"{OUTVOTED}: {', '.join(map(quote, outvoted))}")
        if entry.reason and entry.is_updated:
            self._log(entry.reason)
        elif entry.reason:
            self._warn(f"the model is kept: {entry.reason}")

    def _write(self, entry: AuditRound) -> None:
        """Add a round to the log; the job continues without one that cannot be written."""
        if self.audit_dir is None:
            return
        try:
            if self._folder is None:
                self._folder = self._new_folder(self.audit_dir)
            disk.append_line(self._folder / LINES, entry)
            make_private(self._folder)
        except (OSError, disk.StoreError) as error:
            self._warn(f"round {entry.round} is not in the audit log: {quote(error)}")

    def _new_folder(self, audit_dir: str) -> Path:
        fl_ctx, parent = self.fl_ctx, Path()
        if fl_ctx is not None and fl_ctx.get_engine() is not None:
            parent = Path(fl_ctx.get_workspace().get_result_root(fl_ctx.get_job_id()))
        folder = new_folder((parent / audit_dir).absolute())
        write_manifest(
            folder,
            rule=self.rule,
            num_byzantine=self.num_byzantine,
            byzantine_fraction=self.byzantine_fraction,
            started=now(),
            settings={
                "when_too_many": self.when_too_many,
                "use_num_steps": self.use_num_steps,
                "seed": self.seed,
            },
        )
        return folder

    def _log(self, text: str) -> None:
        self.log_info(self.fl_ctx, text, fire_event=False)

    def _warn(self, text: str) -> None:
        has_engine = self.fl_ctx is not None and self.fl_ctx.get_engine() is not None
        self.log_warning(self.fl_ctx, text, fire_event=has_engine)
