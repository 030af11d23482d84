"""Single facts about attacks: how they are called, what they refuse, what they guarantee."""

import functools
import math

import numpy as np
import pytest
import torch

import outvote as ov
from attacking import attack_rows, place
from outvote.attacks.attack_spec import ATTACKS
from outvote.attacks.run_attack import run_attack

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

H = np.random.default_rng(3).normal(size=(8, 6)) + 1
RULE = ov.GAS(ov.MultiKrum(), num_groups=3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("lie", "z"),
        ("ipm", "epsilon"),
        ("ipm", "max_epsilon"),
        ("min-max", "gamma_init"),
        ("min-max", "max_gamma"),
        ("min-max", "tolerance"),
        ("min-sum", "gamma_init"),
        ("min-sum", "max_gamma"),
        ("gaussian", "sigma"),
        ("noise", "sigma"),
        ("fang", "stretch"),
        ("fang", "threshold"),
        ("optimal-lie", "max_factor"),
        ("optimal-ipm", "max_factor"),
        ("gas-aware", "success"),
        ("gas-aware", "max_shift"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(name, parameter, bad):
    with pytest.raises(ValueError, match=f"{name}: {parameter} must be finite.* got {bad}"):
        ATTACKS[name](**{parameter: bad})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lie(spread=std)", "lie: spread must be one of 'population', 'sample', 'variance'"),
        ("lie(sign=0)", "lie: sign must be one of -1, 1, got 0"),
        ("lie(reference_set=some)", "reference_set must be one of 'honest', 'all'"),
        ("min-max(direction=up)", "direction must be one of 'std', 'sign', 'unit-mean'"),
        ("min-max(spread=variance)", "spread must be one of 'population', 'sample'"),
        ("min-sum(limit=mean)", "limit must be one of 'max', 'min'"),
        ("min-sum(method=fast)", "method must be one of 'closed-form', 'search'"),
        ("ipm(evals=0)", "evals must be at least 1, got 0"),
        ("ipm(epsilon=big)", "epsilon must be a number or none"),
        ("gaussian(sigma=-1)", "sigma must be finite and at least 0, got -1"),
        ("mimic(client=-1)", "client must be at least 0, got -1"),
        ("fang(target=median)", "target must be one of 'trimmed-mean', 'krum'"),
        ("fang(stretch=1)", "stretch must be finite and above 1, got 1"),
        ("gas-aware(success=1.1)", "success must be finite and at least 0 and at most 1"),
        ("liee", "did you mean 'lie'"),
        ("lie(spred=1)", "lie has no parameter 'spred'; did you mean 'spread'"),
        ("signflip", "did you mean 'sign-flip'"),
    ],
)
def test_a_wrong_text_is_reported(text, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ov.make_attack(text)


def test_articles_are_right(tmp_path):
    with pytest.raises(TypeError, match="an attack is given as text"):
        ov.make_attack(3)
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match="no class X that is an Attack"):
        ov.make_attack(f"{tmp_path}/empty.py:X")


def test_a_text_comes_back():
    for text in ("lie(z=2)", "min-max(direction=sign)", "mimic(client=none)", "fang(target=krum)"):
        assert str(ov.make_attack(text)) == text
    assert ov.make_attack("sign-flip") == ov.BitFlip()
    assert ov.make_attack(ov.LIE(z=2)) == ov.LIE(z=2)


def test_an_attack_comes_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import outvote as ov\n\n"
        "class Louder(ov.Attack):\n"
        "    def craft(self, context):\n"
        "        return ov.AttackOutput(rows=3 * context.mean.unsqueeze(1))\n"
    )
    attack = ov.make_attack(f"{path}:Louder")
    np.testing.assert_allclose(attack(H, num_byzantine=2), [3 * H.mean(axis=0)] * 2)
    assert str(attack) == f"{path}:Louder"
    ov.check_attack(ov.make_attack(str(attack)))
    with pytest.raises(ValueError, match=r"class Quieter\(outvote.Attack\)"):
        ov.make_attack(f"{path}:Quieter")


@pytest.mark.parametrize("text", ATTACKS)
def test_bad_rounds_are_one_clear_error(text):
    attack = ov.make_attack(text)
    for bad, error, message in (
        ({"num_byzantine": -1}, ValueError, "num_byzantine must be 0 or larger, got -1"),
        ({"num_byzantine": 1.5}, TypeError, "num_byzantine must be an integer"),
        ({"num_byzantine": 2, "own": H[:3]}, ValueError, "own must be 2 rows of 6"),
        ({"num_byzantine": 2, "own": H[:2, :5]}, ValueError, "own must be 2 rows of 6"),
    ):
        with pytest.raises(error, match=message):
            attack(H, rule=RULE, **bad)
    with pytest.raises(ValueError, match="at least one honest client, got none; pass own="):
        attack(np.empty((0, 6)), num_byzantine=2, rule=RULE)
    with pytest.raises(ValueError, match="ragged"):
        attack([[1.0], [1.0, 2.0]], num_byzantine=1, rule=RULE)


@pytest.mark.parametrize("text", [name for name in ATTACKS if ATTACKS[name]().needs_rule()])
def test_a_missing_rule_is_an_error(text):
    attack = ov.make_attack(text)
    with pytest.raises(ValueError, match=f"{text} searches against the defence.*pass rule="):
        attack(H, num_byzantine=2)
    is_byzantine = torch.tensor([[True] + [False] * 7])
    with pytest.raises(ValueError, match="pass defence="):
        run_attack(attack, torch.from_numpy(H).unsqueeze(0), is_byzantine, seeds=[0])


def test_gas_aware_leaves_out_its_shifts_if_the_rule_does_not_report_whom_it_keeps():
    attack = ov.GASAware(draws=2)
    found = attack.inspect(H, num_byzantine=2, rule=lambda X, **_: X.mean(axis=0), seed=0)
    chosen, why = found.notes
    assert why == "the defence does not report whom it keeps: no shift was searched"
    # The mean keeps everybody: of the searches the one with the largest factor is the strongest.
    assert chosen == "sent optimal-ipm with the factor 100"
    strongest = ov.OptimalIPM(max_factor=100)(H, num_byzantine=2, rule=ov.Mean(), seed=0)
    np.testing.assert_allclose(found.rows, strongest)


def test_a_defence_that_does_not_report_whom_it_keeps_is_not_one_that_keeps_nobody():
    rows, is_byzantine = torch.from_numpy(H).unsqueeze(0), torch.arange(8).unsqueeze(0) < 2

    def sent(is_kept):
        def defence(gradients, seeds):
            return gradients.mean(dim=1), is_kept

        return run_attack(ov.GASAware(draws=2), rows, is_byzantine, seeds=[0], defence=defence)[1]

    nobody = sent(torch.zeros(1, 8, dtype=torch.bool))
    assert not any("does not report" in note for note in nobody.notes)
    assert any("does not report" in note for note in sent(None).notes)
    assert sent(None).num_evaluations < nobody.num_evaluations


def test_a_defence_returns_two_things():
    rows, is_byzantine = torch.from_numpy(H).unsqueeze(0), torch.arange(8).unsqueeze(0) < 2
    with pytest.raises(TypeError, match=r"a defence must return \(updates, is_kept\)"):
        run_attack(ov.IPM(), rows, is_byzantine, seeds=[0], defence=lambda rows, _: rows.mean(1))


def test_a_partial_of_a_rule_is_inspected_too():
    rule = functools.partial(ov.MultiKrum(), when_too_many="lower")
    output = ov.GASAware(draws=2).inspect(H, num_byzantine=3, rule=rule, seed=0)
    assert output.num_evaluations > 10


@pytest.mark.parametrize("text", ["none", "bit-flip", "lie", "min-max", "mimic", "fang"])
def test_without_honest_clients_the_attackers_go_by_their_own(text, device):
    attack = ov.make_attack(text)
    alone = attack_rows(attack, np.empty((0, 6)), device, num_byzantine=8, own=H, seed=0)
    beside = attack_rows(attack, H, device, num_byzantine=8, own=H, seed=0)
    np.testing.assert_allclose(alone, beside)


def test_honest_clients_that_diverged_are_left_out_and_noted(device):
    broken = np.concatenate([H, [[np.nan] * 6, [1.0, np.inf, 0, 0, 0, 0]]])
    for text in ("lie", "min-max", "min-sum", "mimic", "fang", "ipm(epsilon=1)"):
        attack = ov.make_attack(text)
        output = attack.inspect(place(broken, device), num_byzantine=2, seed=0)
        assert "2 honest clients sent NaN or infinity and were left out" in output.notes
        rows = np.asarray(
            torch.as_tensor(np.array(output.rows)) if device.type == "cpu" else output.rows.cpu()
        )
        np.testing.assert_allclose(rows, attack_rows(attack, H, device, num_byzantine=2, seed=0))


def test_where_everybody_diverged_the_attackers_go_by_their_own():
    rows = ov.LIE().inspect(H * np.nan, num_byzantine=8, own=H).rows
    np.testing.assert_allclose(rows, ov.LIE()(H, num_byzantine=8))
    assert not ov.LIE().inspect(H * np.nan, num_byzantine=2).rows.any()


@pytest.mark.parametrize("text", ["lie", "min-max", "fang(target=krum)", "mimic(client=none)"])
def test_where_nobody_sent_numbers_the_attackers_send_zeros(text):
    nothing = np.full((2, 3), np.nan)
    rows = ov.make_attack(text).inspect(nothing, num_byzantine=2, own=nothing, seed=0).rows
    np.testing.assert_array_equal(rows, np.zeros((2, 3)))


@pytest.mark.parametrize("direction", ["std", "sign", "unit-mean"])
def test_a_mean_that_is_next_to_nothing_has_no_direction(direction):
    for tiny in (5e-324, 1e-310):
        rows = ov.MinMax(direction=direction)(np.full((1, 2), tiny), num_byzantine=1)
        np.testing.assert_allclose(rows, tiny, rtol=0, atol=1e-300)


def test_label_flip_maps_labels_and_leaves_gradients():
    attack = ov.LabelFlip()
    assert attack.poisons_data
    assert attack.label_map(4) == [3, 2, 1, 0]
    assert attack.flip(torch.tensor([0, 61]), 62).tolist() == [61, 0]
    np.testing.assert_array_equal(attack(H, num_byzantine=2, own=H[:2]), H[:2])
    with pytest.raises(ValueError, match="labels must be from 0 to 9, got 0 to 10"):
        attack.flip([0, 10], 10)


def test_the_rule_sees_the_attackers_after_the_honest():
    seen = []

    def rule(X, num_byzantine, seed):
        seen.append((X.copy(), num_byzantine, seed))
        return X.mean(axis=0)

    output = ov.IPM(evals=3).inspect(H, num_byzantine=2, rule=rule, seed=4)
    assert output.num_evaluations == len(seen) == 3
    for (X, num_byzantine, seed), epsilon in zip(seen, (0, 1, 3), strict=True):
        np.testing.assert_array_equal(X[:8], H)
        np.testing.assert_allclose(X[8:], [-epsilon * H.mean(axis=0)] * 2)
        assert num_byzantine == 2
        assert seed == seen[0][2] != 4


def test_the_search_of_ipm_stops_at_its_limit():
    output = ov.IPM(evals=40, max_epsilon=500).inspect(H, num_byzantine=2, rule=ov.Mean())
    assert output.factor == 500


def test_mimic_stays_with_its_client_after_the_warm_up_and_finds_another_if_it_is_away():
    attack = ov.Mimic(client=None, warmup=1)
    rows = torch.from_numpy(H).unsqueeze(0)
    is_byzantine = torch.tensor([[True, True] + [False] * 6])
    ids = torch.arange(8).unsqueeze(0)
    _, first = run_attack(attack, rows, is_byzantine, seeds=[1], clients=ids)
    target = int(first.state[0].target)
    sent, second = run_attack(
        attack, rows.flip(1), is_byzantine, seeds=[1], clients=ids.flip(1), states=first.state
    )
    # Row 7 - target of the second round may be an attacker's: then another client is copied.
    assert torch.equal(sent[0, 0], rows[0, target]) == (target <= 5)
    assert int(second.state[0].target) == target
    _, idle = run_attack(attack, rows, is_byzantine & False, seeds=[1], states=first.state)
    assert idle.state[0] is first.state[0]


def test_named_gradients_come_back_as_they_are_named():
    named = [{"w": row[:4].reshape(2, 2), "b": row[4:].astype(np.float32)} for row in H]
    rows = ov.IPM()(named, num_byzantine=2, rule=ov.GAS(ov.Median(), split="by-layer"), seed=0)
    assert [[*row] for row in rows] == [["w", "b"]] * 2
    assert rows[0]["w"].shape == (2, 2)
    assert rows[0]["b"].dtype == np.float32
    with pytest.raises(ValueError, match="missing: \\['b'\\]"):
        ov.BitFlip()(named, num_byzantine=1, own=[{"w": np.zeros((2, 2))}])


def test_batches_that_do_not_fit_are_refused():
    rows, is_byzantine = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)
    for bad, message in (
        ((rows[0], is_byzantine, [0, 1]), "gradients must be floats"),
        ((rows, is_byzantine[:1], [0, 1]), "is_byzantine must be true or false"),
        ((rows, is_byzantine, [0]), "seeds must be one per run, 2, got 1"),
    ):
        gradients, mask, seeds = bad
        with pytest.raises(ValueError, match=message):
            run_attack(ov.LIE(), gradients, mask, seeds=seeds)


class CountsQuestions(ov.Attack):
    """Asks the defence about its count of rounds, and sends what the update is then."""

    has_state = True
    sees_own = False

    def needs_rule(self):
        return True

    def craft(self, context):
        state = 1 + (context.state or 0)
        rows = torch.full((1, 1, context.dim), float(state), dtype=context.gradients.dtype)
        updates, _ = context.ask(rows, "question")
        return ov.AttackOutput(
            rows=updates.unsqueeze(1), state=state, factor=context.per_run(state)
        )


def test_an_attack_with_a_state_asks_about_its_own_run():
    rows = torch.from_numpy(np.stack([H, 2 * H, 3 * H]))
    is_byzantine = torch.zeros(3, 8, dtype=torch.bool)
    is_byzantine[0, 0] = is_byzantine[2, [3, 4]] = True

    def defence(gradients, seeds):
        assert len(gradients) == len(seeds) == 3
        return gradients.mean(dim=1), None

    sent, output = run_attack(
        CountsQuestions(), rows, is_byzantine, seeds=[0, 1, 2], defence=defence, states=[4, 7, None]
    )
    assert output.state == (5, 7, 1)
    np.testing.assert_array_equal(output.factor, [5, np.nan, 1])
    for run, state in ((0, 5.0), (2, 1.0)):
        asked = rows[run].clone()
        asked[is_byzantine[run]] = state
        torch.testing.assert_close(sent[run, is_byzantine[run]][0], asked.mean(dim=0))
    assert torch.equal(sent[1], rows[1])


def test_an_attack_knows_its_round():
    class Sends(ov.Attack):
        def craft(self, context):
            return ov.AttackOutput(rows=context.round + 0 * context.mean.unsqueeze(1))

    assert Sends()(H, num_byzantine=1, round=7).tolist() == [[7.0] * 6]
    rows, is_byzantine = torch.from_numpy(H).unsqueeze(0), torch.arange(8).unsqueeze(0) < 1
    sent, _ = run_attack(Sends(), rows, is_byzantine, seeds=[0], round=3)
    assert sent[0, 0].tolist() == [3.0] * 6


@pytest.mark.parametrize("text", ["lie", "min-max", "ipm", "fang(target=krum)", "bit-flip"])
def test_inspect_is_a_batch_of_one(text):
    attack, rule = ov.make_attack(text), ov.MultiKrum()
    is_byzantine = torch.arange(8).unsqueeze(0) >= 6

    def defence(gradients, seeds):
        verdict = rule.inspect(gradients[0], num_byzantine=2, seed=seeds[0])
        return verdict.update.unsqueeze(0), None

    rows = torch.from_numpy(H).unsqueeze(0)
    sent, output = run_attack(attack, rows, is_byzantine, seeds=[4], defence=defence)
    alone = attack.inspect(H[:6], num_byzantine=2, own=H[6:], rule=rule, seed=4)
    np.testing.assert_allclose(sent[0, 6:], alone.rows, rtol=1e-12)
    assert alone.factor is None or float(output.factor[0]) == pytest.approx(alone.factor)
