"""RoundInfo about attacks, one by one: how they are called, what they refuse, what they promise."""

import functools
import math

import numpy as np
import pytest
import torch

import outvote as ov
from attacking import attack_rows, place
from outvote.attacks.batch import corrupt
from outvote.attacks.spec import ATTACKS

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
        ("lies", "did you mean 'lie'"),
        ("lie(zed=1)", "lie has no parameter 'zed'; did you mean 'z'"),
        ("signflip", "did you mean 'sign-flip'"),
    ],
)
def test_a_wrong_text_is_told(text, message):
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
        "    def craft(self, scene):\n"
        "        return ov.Forged(rows=3 * scene.mean.unsqueeze(1))\n"
    )
    attack = ov.make_attack(f"{path}:Louder")
    np.testing.assert_allclose(attack(H, num_byzantine=2), [3 * H.mean(axis=0)] * 2)
    assert str(attack) == f"{path}:Louder"
    ov.check_attack(ov.make_attack(str(attack)), exempt={"text-round-trip": "no value object"})
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
def test_a_missing_rule_is_told(text):
    attack = ov.make_attack(text)
    with pytest.raises(ValueError, match=f"{text} searches against the defence.*pass rule="):
        attack(H, num_byzantine=2)
    is_byzantine = torch.tensor([[True] + [False] * 7])
    with pytest.raises(ValueError, match="pass defence="):
        corrupt(attack, torch.from_numpy(H).unsqueeze(0), is_byzantine, seeds=[0])


def test_a_rule_without_inspect_is_told_by_the_attack_that_needs_it():
    with pytest.raises(ValueError, match="without `inspect`"):
        ov.GASAware()(H, num_byzantine=2, rule=lambda X, **_: X.mean(axis=0))


def test_a_partial_of_a_rule_is_inspected_too():
    rule = functools.partial(ov.MultiKrum(), when_too_many="lower")
    crafted = ov.GASAware(draws=2).inspect(H, num_byzantine=3, rule=rule, seed=0)
    assert crafted.num_evaluations > 10


@pytest.mark.parametrize("text", ["none", "bit-flip", "lie", "min-max", "mimic", "fang"])
def test_without_honest_clients_the_attackers_go_by_their_own(text, device):
    attack = ov.make_attack(text)
    alone = attack_rows(attack, np.empty((0, 6)), device, num_byzantine=8, own=H, seed=0)
    beside = attack_rows(attack, H, device, num_byzantine=8, own=H, seed=0)
    np.testing.assert_allclose(alone, beside)


def test_honest_clients_that_diverged_are_left_out_and_told(device):
    broken = np.concatenate([H, [[np.nan] * 6, [1.0, np.inf, 0, 0, 0, 0]]])
    for text in ("lie", "min-max", "min-sum", "mimic", "fang", "ipm(epsilon=1)"):
        attack = ov.make_attack(text)
        crafted = attack.inspect(place(broken, device), num_byzantine=2, seed=0)
        assert "2 honest clients sent NaN or infinity and were left out" in crafted.notes
        rows = np.asarray(
            torch.as_tensor(np.array(crafted.rows)) if device.type == "cpu" else crafted.rows.cpu()
        )
        np.testing.assert_allclose(rows, attack_rows(attack, H, device, num_byzantine=2, seed=0))


def test_where_everybody_diverged_the_attackers_go_by_their_own():
    rows = ov.LIE()(H * np.nan, num_byzantine=8, own=H)
    np.testing.assert_allclose(rows, ov.LIE()(H, num_byzantine=8))
    assert not ov.LIE()(H * np.nan, num_byzantine=2).any()


@pytest.mark.parametrize("text", ["lie", "min-max", "fang(target=krum)", "mimic(client=none)"])
def test_where_nobody_sent_numbers_the_attackers_send_zeros(text):
    nothing = np.full((2, 3), np.nan)
    rows = ov.make_attack(text)(nothing, num_byzantine=2, own=nothing, seed=0)
    np.testing.assert_array_equal(rows, np.zeros((2, 3)))


@pytest.mark.parametrize("direction", ["std", "sign", "unit-mean"])
def test_a_mean_that_is_next_to_nothing_has_no_direction(direction):
    for tiny in (5e-324, 1e-310):
        rows = ov.MinMax(direction=direction)(np.full((1, 2), tiny), num_byzantine=1)
        np.testing.assert_allclose(rows, tiny, rtol=0, atol=1e-300)


def test_label_flip_maps_labels_and_leaves_gradients():
    attack = ov.LabelFlip()
    assert attack.is_data_attack
    assert attack.label_map(4) == [3, 2, 1, 0]
    assert attack.flip(torch.tensor([0, 61]), 62).tolist() == [61, 0]
    np.testing.assert_array_equal(attack(H, num_byzantine=2, own=H[:2]), H[:2])
    with pytest.raises(ValueError, match="labels must be from 0 to 9, got 0 to 10"):
        attack.flip([0, 10], 10)


def test_the_rule_sees_the_attackers_after_the_honest_and_keeps_its_memory():
    seen = []

    def rule(X, num_byzantine, seed):
        seen.append((X.copy(), num_byzantine, seed))
        return X.mean(axis=0)

    crafted = ov.IPM(evals=3).inspect(H, num_byzantine=2, rule=rule, seed=4)
    assert crafted.num_evaluations == len(seen) == 3
    for (X, told, seed), epsilon in zip(seen, (0, 1, 3), strict=True):
        np.testing.assert_array_equal(X[:8], H)
        np.testing.assert_allclose(X[8:], [-epsilon * H.mean(axis=0)] * 2)
        assert told == 2
        assert seed == seen[0][2] != 4


def test_the_search_of_ipm_stops_at_its_limit():
    crafted = ov.IPM(evals=40, max_epsilon=500).inspect(H, num_byzantine=2, rule=ov.Mean())
    assert crafted.factor == 500


def test_mimic_stays_with_its_client_after_the_warm_up_and_finds_another_if_it_is_away():
    attack = ov.Mimic(client=None, warmup=1)
    rows = torch.from_numpy(H).unsqueeze(0)
    is_byzantine = torch.tensor([[True, True] + [False] * 6])
    ids = torch.arange(8).unsqueeze(0)
    first = corrupt(attack, rows, is_byzantine, seeds=[1], clients=ids)
    target = int(first.state.target)
    moved = rows.flip(1)
    second = corrupt(attack, moved, is_byzantine, seeds=[1], clients=ids.flip(1), state=first.state)
    if target > 5:  # Row 7 - target of the second round is an attacker's: somebody else is copied.
        assert not torch.equal(second.gradients[0, 0], rows[0, target])
    else:
        assert torch.equal(second.gradients[0, 0], rows[0, target])
    assert int(second.state.target) == target
    idle = corrupt(attack, rows, is_byzantine & False, seeds=[1], state=first.state)
    assert idle.state is first.state


def test_named_gradients_come_back_as_they_are_named():
    named = [{"w": row[:4].reshape(2, 2), "b": row[4:].astype(np.float32)} for row in H]
    rows = ov.IPM()(named, num_byzantine=2, rule=ov.GAS(ov.Median(), split="by-layer"), seed=0)
    assert [[*row] for row in rows] == [["w", "b"]] * 2
    assert rows[0]["w"].shape == (2, 2)
    assert rows[0]["b"].dtype == np.float32
    with pytest.raises(ValueError, match="missing: \\['b'\\]"):
        ov.BitFlip()(named, num_byzantine=1, own=[{"w": np.zeros((2, 2))}])


def test_batches_that_do_not_fit_are_told():
    rows, is_byzantine = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)
    for bad, message in (
        ((rows[0], is_byzantine, [0, 1]), "gradients must be floats"),
        ((rows, is_byzantine[:1], [0, 1]), "is_byzantine must be true or false"),
        ((rows, is_byzantine, [0]), "seeds must be one per run, 2, got 1"),
    ):
        gradients, mask, seeds = bad
        with pytest.raises(ValueError, match=message):
            corrupt(ov.LIE(), gradients, mask, seeds=seeds)
