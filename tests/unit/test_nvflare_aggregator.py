"""The aggregator for NVIDIA FLARE, given contributions by hand."""

import json

import numpy as np
import pytest

import outvote as ov
from outvote.results.audit_log import read_audit

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.job_config.api import FedJob

from outvote.nvflare import RobustAggregator

RULE = "gas(multi-krum, num_groups=4)"
SITES = [f"site-{k}" for k in range(1, 7)]


def model():
    return {
        "layer.weight": np.zeros((2, 3), np.float32),
        "layer.bias": np.ones(2, np.float32),
        "norm.running_var": np.ones(2, np.float32),
        "norm.num_batches_tracked": np.array(3),
    }


def steps(k, scale=1.0):
    """What honest site number k adds to the model."""
    source = np.random.default_rng(k)
    return {
        "layer.weight": (scale * source.normal(1, 0.1, (2, 3))).astype(np.float32),
        "layer.bias": (scale * source.normal(1, 0.1, 2)).astype(np.float32),
        "norm.running_var": np.full(2, 0.1 * k, np.float32),
        "norm.num_batches_tracked": np.array(k),
    }


def context(weights=None, number=4):
    fl_ctx = FLContext()
    learnable = make_model_learnable(model() if weights is None else weights, {})
    fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=False)
    fl_ctx.set_prop(AppConstants.CURRENT_ROUND, number, private=True, sticky=False)
    return fl_ctx


def sent(site, data, kind=DataKind.WEIGHT_DIFF, number=4, meta=None):
    shareable = DXO(data_kind=kind, data=data, meta=meta or {}).to_shareable()
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: site})
    shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, number)
    return shareable


def weights_of(k):
    return {name: value + steps(k)[name] for name, value in model().items()}


def aggregator(**settings):
    return RobustAggregator(
        **{"rule": RULE, "num_byzantine": 1, "audit_dir": None, "seed": 1} | settings
    )


def expected(sites, rule=RULE, number=4, num_byzantine=1):
    """The update of the rule itself on the weights of some sites, with the seed of the round."""
    from outvote.seeding import RandomStream

    seed = RandomStream((1,)).fold_in(f"rule {number}").derived()[0]
    rows = np.stack(
        [
            np.concatenate([steps(k)[name].ravel() for name in ("layer.weight", "layer.bias")])
            for k in sites
        ]
    )
    return ov.make_rule(rule)(rows, num_byzantine=num_byzantine, seed=seed)


def run(found, contributions, fl_ctx=None):
    """Pass contributions; return which were accepted, and the DXO of the result."""
    fl_ctx = context() if fl_ctx is None else fl_ctx
    accepted = [found.accept(each, fl_ctx) for each in contributions]
    return accepted, from_shareable(found.aggregate(fl_ctx))


def flat(data):
    return np.concatenate([data[name].ravel() for name in ("layer.weight", "layer.bias")])


def is_kept(dxo):
    """Whether a result leaves the model as it is."""
    before = model() if dxo.data_kind == DataKind.WEIGHTS else dict.fromkeys(model(), 0)
    return all(np.array_equal(dxo.data[k], before[k] + 0 * dxo.data[k]) for k in model())


def test_differences_give_the_update_of_the_rule_and_the_median_of_statistics():
    found = aggregator()
    # Whoever is the fastest: the result is that of the sites in the order of their names.
    honest = [sent(SITES[k - 1], steps(k)) for k in (3, 1, 6, 2, 5, 4)]
    accepted, dxo = run(found, honest)
    assert all(accepted)
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    np.testing.assert_allclose(flat(dxo.data), expected(range(1, 7)), rtol=1e-5)
    np.testing.assert_allclose(dxo.data["norm.running_var"], 0.3, rtol=1e-5)
    assert dxo.data["norm.num_batches_tracked"] == 3
    assert dxo.data["norm.num_batches_tracked"].dtype == model()["norm.num_batches_tracked"].dtype


def test_weights_are_aggregated_as_differences_to_the_model():
    accepted, dxo = run(
        aggregator(),
        [sent(SITES[k - 1], weights_of(k), DataKind.WEIGHTS) for k in range(1, 7)],
    )
    assert all(accepted)
    assert dxo.data_kind == DataKind.WEIGHTS
    np.testing.assert_allclose(
        flat(dxo.data) - flat(model()), expected(range(1, 7)), rtol=1e-4, atol=1e-6
    )
    assert dxo.data["norm.num_batches_tracked"] == 6


def test_one_site_cannot_choose_the_kind_of_the_result():
    mixed = [sent(SITES[k - 1], steps(k)) for k in range(2, 7)]
    mixed.append(sent(SITES[0], weights_of(1), DataKind.WEIGHTS))
    _, dxo = run(aggregator(), mixed)
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    np.testing.assert_allclose(flat(dxo.data), expected(range(1, 7)), rtol=1e-4)


def with_array(name, value):
    return {**steps(1), name: value}


BAD = {
    "nan": (with_array("layer.bias", np.array([np.nan, 1], np.float32)), "NaN, infinity"),
    "infinity": (with_array("layer.bias", np.array([np.inf, 1], np.float32)), "NaN, infinity"),
    "statistics": (with_array("norm.running_var", np.full(2, np.nan, np.float32)), "NaN, infin"),
    "shape": (with_array("layer.bias", np.ones(3, np.float32)), "has the shape '(3,)', the mo"),
    "dtype": (with_array("layer.bias", np.ones(2)), "is of float64, the model's of float32"),
    "text": (with_array("layer.bias", "x"), "array 'layer.bias' cannot be read"),
    "objects": (with_array("layer.bias", np.array([{}, []], object)), "cannot be read"),
    "ragged": (with_array("layer.bias", [[1.0], [1.0, 2.0]]), "cannot be read"),
    "none": (with_array("layer.bias", None), "cannot be read"),
    "extra": (with_array("more", np.ones(2, np.float32)), "array 'more' is unknown to the model"),
    "missing": ({"layer.bias": np.ones(2, np.float32)}, "array 'layer.weight' is missing"),
    "empty": ({}, "array 'layer.weight' is missing"),
}


def honest_sites(first=2):
    return [sent(SITES[k - 1], steps(k)) for k in range(first, 7)]


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_contribution_is_named_and_counts_as_byzantine(kind, caplog, tmp_path):
    data, reason = BAD[kind]
    found = aggregator(audit_dir=str(tmp_path / "audit"))
    accepted, dxo = run(found, [sent("site-1", data), *honest_sites()])
    assert accepted == [False, True, True, True, True, True]
    np.testing.assert_allclose(flat(dxo.data), expected(range(2, 7)), rtol=1e-5)
    (line,) = read_audit(tmp_path / "audit")
    assert (line.round, line.num_byzantine, line.is_updated) == (4, 1, True)
    (bad,) = [each for each in line.clients if each.standing == "malformed"]
    assert bad.client == "site-1"
    assert reason in bad.reason
    assert f"site 'site-1' malformed: {bad.reason}" in caplog.text


def other_kind():
    return sent("site-1", {"accuracy": 1.0}, DataKind.METRICS)


def no_dxo():
    shareable = Shareable({"a": 1})
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: "site-1"})
    shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, 4)
    return shareable


def failed():
    shareable = no_dxo()
    shareable.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    return shareable


def encrypted():
    return sent("site-1", steps(1), meta={"PROCESSED_ALGORITHM": "HE"})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (other_kind, "its data are"),
        (no_dxo, "it is no DXO"),
        (failed, "it returned 'EXECUTION_EXCEPTION'"),
        (encrypted, "it is processed by 'HE', which a rule cannot read"),
    ],
)
def test_other_contents_are_malformed(make, reason, caplog):
    accepted, dxo = run(aggregator(), [make(), *honest_sites()])
    assert accepted[0] is False
    assert f"site 'site-1' malformed: {reason}" in caplog.text
    np.testing.assert_allclose(flat(dxo.data), expected(range(2, 7)), rtol=1e-5)


def test_a_site_that_answers_twice_is_left_out(caplog):
    again = [sent("site-1", steps(1)), sent("site-1", steps(1)), *honest_sites()]
    accepted, dxo = run(aggregator(), again)
    assert accepted[:2] == [True, False]
    assert "site 'site-1' malformed: it answered more than once" in caplog.text
    np.testing.assert_allclose(flat(dxo.data), expected(range(2, 7)), rtol=1e-5)


def test_a_contribution_to_another_round_is_late_and_no_offence(tmp_path):
    late = sent("site-1", steps(1), number=3)
    accepted, _ = run(aggregator(audit_dir=str(tmp_path)), [late, *honest_sites()])
    assert accepted[0] is False
    (line,) = read_audit(tmp_path)
    assert [each.client for each in line.clients if each.standing == "late"] == ["site-1"]


def test_with_too_few_usable_contributions_the_model_is_kept(caplog):
    few = [sent(SITES[k - 1], steps(k)) for k in (1, 2, 3)]
    _, dxo = run(aggregator(rule="median", num_byzantine=2), few)
    assert is_kept(dxo)
    assert "the model is kept: 3 usable updates are too few" in caplog.text
    _, dxo = run(aggregator(rule="median", num_byzantine=2, when_too_many="lower"), few)
    assert not is_kept(dxo)


@pytest.mark.parametrize("rule", ["gas(krum)", "gas(dnc)", "gas(multi-krum)", "gas(median)"])
def test_colluders_gain_nothing_by_the_absence_of_honest_sites(rule, caplog):
    """Two of six sites collude, one honest site sends NaN, and one never answers."""
    scales = {1: 1.0, 2: 1.0, 3: np.nan, 5: -1.0, 6: -1.0}
    sites = [sent(SITES[k - 1], steps(k, scale)) for k, scale in scales.items()]
    _, dxo = run(aggregator(rule=rule, num_byzantine=2), sites)
    assert is_kept(dxo)
    assert "4 usable updates are too few" in caplog.text


def test_a_kept_model_is_the_same_model_as_weights_too():
    found = aggregator()
    full = [sent(SITES[k - 1], weights_of(k), DataKind.WEIGHTS) for k in range(1, 7)]
    run(found, full)
    _, dxo = run(found, [])
    assert dxo.data_kind == DataKind.WEIGHTS
    assert is_kept(dxo)
    fl_ctx = context()
    found.accept(full[0], fl_ctx)
    after = FullModelShareableGenerator().shareable_to_learnable(found.aggregate(fl_ctx), fl_ctx)
    assert all(np.array_equal(after["weights"][name], value) for name, value in model().items())


class Broken(ov.VectorRule):
    """Fails in every round."""

    name = "broken"

    def max_byzantine(self, num_clients):
        return num_clients

    def aggregate(self, gradients, info):
        raise RuntimeError("on purpose")


def test_a_rule_that_fails_keeps_the_model(caplog, monkeypatch):
    found = aggregator()
    monkeypatch.setattr(found, "_built", Broken())
    _, dxo = run(found, honest_sites())
    assert is_kept(dxo)
    assert "the model is kept: the rule raised RuntimeError: 'on purpose'" in caplog.text


def test_an_update_that_ends_in_infinity_keeps_the_model(caplog):
    weights = {"w": np.full(3, 3e38, np.float32)}
    huge = [sent(site, {"w": np.full(3, 3e38, np.float32)}) for site in SITES]
    _, dxo = run(aggregator(rule="median"), huge, context(weights))
    assert np.array_equal(dxo.data["w"], np.zeros(3))
    assert "the new model would not have been finite" in caplog.text


def test_counts_are_ignored_unless_asked_for():
    counts = [1, 1, 1, 1, 1, 10**9]
    meta = [{"NUM_STEPS_CURRENT_ROUND": count} for count in counts]
    sites = [sent(SITES[k], steps(k + 1), meta=meta[k]) for k in range(6)]
    _, plain = run(aggregator(rule="mean", num_byzantine=0), sites)
    rows = np.stack([flat(steps(k)) for k in range(1, 7)])
    np.testing.assert_allclose(flat(plain.data), rows.mean(axis=0), rtol=1e-5)
    _, weighted = run(aggregator(rule="mean", num_byzantine=0, use_num_steps=True), sites)
    shares = np.array([1, 1, 1, 1, 1, 3]) / 8  # At most three times the median.
    np.testing.assert_allclose(flat(weighted.data), shares @ rows, rtol=1e-5)
    bad = [sent("site-1", steps(1)), *sites[1:]]
    accepted, _ = run(aggregator(rule="mean", num_byzantine=0, use_num_steps=True), bad)
    assert accepted == [False, True, True, True, True, True]


def test_the_share_is_of_the_sites_that_were_asked(tmp_path):
    found = aggregator(
        rule="median", num_byzantine=None, byzantine_fraction=0.3, audit_dir=str(tmp_path)
    )
    fl_ctx = context()
    found.handle_event(AppEventType.ROUND_STARTED, fl_ctx)
    for site in [*SITES, "site-7"]:
        peer = FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, site, private=False, sticky=False)
        asked = context()
        asked.set_peer_context(peer)
        found.handle_event(AppEventType.BEFORE_TRAIN_TASK, asked)
    run(found, [sent("site-1", BAD["nan"][0]), *honest_sites(first=2)], fl_ctx)
    (line,) = read_audit(tmp_path)
    assert line.num_byzantine == 3  # ceil(0.3 * 7), and 5 usable ones are too few for 3.
    assert not line.is_updated
    standing = {each.client: each.standing for each in line.clients}
    assert (standing["site-1"], standing["site-7"]) == ("malformed", "missing")


def fl_model(site, data, kind=ParamsType.FULL, metrics=None):
    return FLModel(params_type=kind, params=data, meta={"client_name": site}, metrics=metrics)


def test_fedavg_calls_it_with_models():
    found = aggregator()
    found.handle_event(AppEventType.ROUND_STARTED, context())
    found.reset_stats()
    accuracies = [0.5, 0.6, 0.7, 0.8, 1e9, float("nan")]
    accepted = [
        found.accept_model(fl_model(SITES[k - 1], weights_of(k), metrics={"a": accuracies[k - 1]}))
        for k in range(1, 7)
    ]
    assert all(accepted)
    result = found.aggregate_model()
    assert result.params_type == ParamsType.FULL
    np.testing.assert_allclose(
        flat(result.params) - flat(model()), expected(range(1, 7)), rtol=1e-4, atol=1e-6
    )
    assert result.metrics == {"a": 0.7}


def test_contributions_are_forgotten_between_rounds():
    found = aggregator()
    run(found, honest_sites(first=1))
    found.reset(context())
    fl_ctx = context(number=5)
    found.handle_event(AppEventType.ROUND_STARTED, fl_ctx)
    second = [sent(SITES[k - 1], steps(k), number=5) for k in range(2, 7)]
    _, dxo = run(found, second, fl_ctx)
    np.testing.assert_allclose(flat(dxo.data), expected(range(2, 7), number=5), rtol=1e-5)


def test_a_rule_with_state_keeps_it_for_the_next_round():
    rule = "centered-clipping"
    assert ov.make_rule(rule).traits.has_state
    found = aggregator(rule=rule)
    for number in (1, 2):
        fl_ctx = context(number=number)
        found.handle_event(AppEventType.ROUND_STARTED, fl_ctx)
        run(found, [sent(s, steps(k), number=number) for k, s in enumerate(SITES)], fl_ctx)
    assert found._state is not None


def test_without_a_model_the_round_is_kept_and_nobody_is_blamed(caplog, tmp_path):
    found = aggregator(audit_dir=str(tmp_path))
    assert not found.accept_model(fl_model("site-1", weights_of(1)))
    result = found.aggregate_model()
    assert (result.params_type, result.params) == (ParamsType.DIFF, {})
    assert "give the workflow a persistor" in caplog.text
    (line,) = read_audit(tmp_path)
    assert [each.standing for each in line.clients] == ["error"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_byzantine": None}, "gas needs the number of Byzantine sites"),
        ({"byzantine_fraction": 0.1}, "must not be given both"),
        ({"num_byzantine": -1}, "whole number from 0 on"),
        ({"num_byzantine": "1"}, "num_byzantine must be"),
        ({"num_byzantine": None, "byzantine_fraction": "0.2"}, "byzantine_fraction must be"),
        ({"use_num_steps": 1}, "use_num_steps must be"),
        ({"when_too_many": "raise"}, "when_too_many"),
        ({"rule": "fltrust"}, "choose another rule"),
        ({"rule": "gas(mediann)"}, "did you mean 'median'"),
    ],
)
def test_settings_are_checked_when_the_job_is_made(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        aggregator(**settings)


def test_an_unsound_model_is_an_error_of_the_server():
    with pytest.raises(ValueError, match="start from a sound model"):
        aggregator().accept(sent("site-1", steps(1)), context({"w": np.array([np.nan])}))


def test_a_folder_that_cannot_be_written_does_not_end_the_job(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    _, dxo = run(aggregator(audit_dir=str(tmp_path / "file" / "audit")), honest_sites())
    assert not is_kept(dxo)
    assert "round 4 is not in the audit log" in caplog.text


def test_a_job_exports_the_settings(tmp_path):
    job = FedJob(name="small")
    job.set_app_packages(["outvote"])
    rule = ov.make_rule("gas(median, num_groups=7)")
    job.to_server(RobustAggregator(rule=rule, byzantine_fraction=0.2), id="aggregator")
    job.export_job(str(tmp_path))
    (path,) = tmp_path.glob("small/*/config/config_fed_server.json")
    (component,) = json.loads(path.read_text())["components"]
    assert component["path"] == "outvote.nvflare.aggregator.RobustAggregator"
    assert component["args"] == {"rule": "gas(median, num_groups=7)", "byzantine_fraction": 0.2}
    assert not list(tmp_path.rglob("outvote"))
