"""How an attack reads its arguments: nobody honest, own gradients, wrong arguments."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.run_attack import run_attack

H = np.random.default_rng(3).normal(size=(8, 6)) + 1
OWN = H[:3] * 2


class Asked:
    """A rule that records what it was asked about."""

    def __init__(self):
        self.shapes = []

    def __call__(self, gradients, *, num_byzantine, seed):
        self.shapes.append((tuple(gradients.shape), num_byzantine))
        return gradients.mean(0)


def test_without_honest_clients_the_rule_is_asked_about_the_attackers_alone():
    asked = Asked()
    alone = ov.IPM().inspect(H[:0], num_byzantine=3, own=OWN, rule=asked)
    assert asked.shapes == [((3, 6), 3)] * 2
    is_byzantine = torch.ones(1, 3, dtype=torch.bool)

    def defence(gradients, seeds):
        return gradients.mean(1), None

    rows = torch.from_numpy(OWN).unsqueeze(0)
    sent, _ = run_attack(ov.IPM(), rows, is_byzantine, seeds=[0], defence=defence)
    np.testing.assert_allclose(sent[0], alone.rows)


class Asking(ov.Attack):
    """An attack that asks the defence once, and records whether its rows were kept."""

    needs_kept = True

    def needs_rule(self):
        return True

    def craft(self, context):
        _, self.is_kept = context.ask(context.own_rows, "draw")
        return ov.AttackOutput(rows=context.own_rows)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [([1, 1, 1, 1], True), ([0, 0, 1, 1], True), ([1, 1, 1, 0], False), ([1, 1, 0, 0], False)],
)
def test_attackers_are_kept_if_all_of_their_rows_are(kept, expected):
    """Honest rows that are dropped do not count, and one row of two is not enough."""
    attack, rows = Asking(), torch.from_numpy(H[:4]).unsqueeze(0)

    def defence(gradients, seeds):
        return gradients.mean(1), torch.tensor([kept], dtype=torch.bool)

    is_byzantine = torch.tensor([[False, False, True, True]])
    run_attack(attack, rows, is_byzantine, seeds=[0], defence=defence)
    assert attack.is_kept.tolist() == [expected]


def test_without_honest_clients_alie_counts_the_attackers_alone():
    found = ov.ALIE().inspect(H[:0], num_byzantine=8, own=H)
    assert found.factor == 0
    np.testing.assert_allclose(found.rows, [H.mean(0)] * 8)


def test_an_empty_array_gives_kind_dtype_and_size_of_the_rows():
    empty = np.empty((0, 6), dtype=np.float32)
    assert ov.LIE()(empty, num_byzantine=3, own=OWN).dtype == np.float32
    assert isinstance(ov.LIE()(torch.empty(0, 6), num_byzantine=3, own=OWN), torch.Tensor)
    with pytest.raises(ValueError, match=r"own must be 3 rows of 5 coordinates.*\(3, 6\)"):
        ov.LIE()(np.empty((0, 5)), num_byzantine=3, own=OWN)
    assert ov.LIE()([], num_byzantine=3, own=OWN).dtype == np.float64


@pytest.mark.parametrize("bad", [np.nan, 1e300])
def test_own_gradients_that_are_not_finite_are_noted(bad):
    own = OWN.copy()
    own[1, 2] = bad
    found = ov.BitFlip().inspect(H.astype(np.float32), num_byzantine=3, own=own)
    (note,) = found.notes
    assert note.startswith(
        "1 gradient of the attackers' own was not finite in float32; replaced by the"
    )
    np.testing.assert_allclose(found.rows[1], -H.mean(0), rtol=1e-6)
    assert ov.BitFlip().inspect(H, num_byzantine=3, own=OWN).notes == ()


@pytest.mark.parametrize("name", ["lie", "alie", "min-max", "min-sum", "optimal-lie"])
def test_all_as_the_reference_set_needs_own_and_counts_it_once(name):
    attack = ov.make_attack(f"{name}(reference_set=all)")
    info = {"num_byzantine": 3, "rule": ov.Mean()}
    with pytest.raises(ValueError, match=r"reference_set='all' .* pass own="):
        attack(H, **info)
    assert attack.needs_own()
    both = attack(H, own=OWN, **info)
    if name not in ("alie", "optimal-lie"):  # These look at n, or at the rule, too.
        wanted = ov.make_attack(name)(np.concatenate([H, OWN]), **info)
        np.testing.assert_allclose(both, wanted)
    assert not np.allclose(both, ov.make_attack(name)(H, **info))
    alone = attack(H[:0], own=OWN, **info)
    np.testing.assert_allclose(alone, ov.make_attack(name)(H[:0], own=OWN, **info))


def test_own_gradients_that_diverged_are_noted_where_all_are_the_reference():
    own = OWN.copy()
    own[1] = np.nan
    found = ov.LIE(reference_set="all").inspect(H, num_byzantine=3, own=own)
    assert found.notes == ("1 gradient of the attackers' own was not finite, left out",)


def test_one_client_is_not_called_clients():
    broken = H.copy()
    broken[0] = np.nan
    notes = ov.LIE().inspect(broken, num_byzantine=1).notes
    assert notes == ("1 honest client sent NaN or infinity and was left out",)
    with pytest.raises(ValueError, match="own must be 1 row of 1 coordinate, one"):
        ov.BitFlip()(H[:, :1], num_byzantine=1, own=OWN)


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        ({"honest": None}, TypeError, "honest must be gradients, one row .* got NoneType"),
        ({"honest": 3}, TypeError, "honest must be gradients.* got int"),
        ({"honest": (row for row in H)}, TypeError, "honest must be gradients.* got generator"),
        ({"honest": torch.tensor(1.0)}, TypeError, "honest must be .* got a single number"),
        ({"own": 5}, TypeError, "own must be gradients.* got int"),
        ({"own": [[1.0], [1.0, 2.0]]}, ValueError, "own must have rows of one length"),
        ({"own": np.ones(6)}, ValueError, "own must be a matrix .* one row per attacker"),
        ({"num_byzantine": 10**30}, ValueError, "num_byzantine must be at most 2147483647"),
        ({"rule": ov.Median}, TypeError, "rule must be an object, got the class Median"),
        ({"rule": "median"}, TypeError, "rule must be a rule or a function.* make_rule"),
    ],
)
def test_wrong_arguments_are_one_clear_sentence(info, error, message):
    info = {"honest": H, "num_byzantine": 2, "rule": ov.Median(), **info}
    with pytest.raises(error, match=message):
        ov.IPM()(info.pop("honest"), **info)


def test_a_wrong_own_of_named_gradients_is_called_own():
    named = [{"w": row} for row in H]
    with pytest.raises(ValueError, match="own row 1, entry 'w' must have the shape"):
        ov.BitFlip()(named, num_byzantine=2, own=[{"w": H[0]}, {"w": H[0, :4]}])


@pytest.mark.parametrize("kind", ["numpy", "torch", "dicts"])
def test_rows_are_copies_also_where_all_attackers_send_the_same(kind):
    honest = {"numpy": H, "torch": torch.from_numpy(H), "dicts": [{"w": row} for row in H]}[kind]
    first, second = ov.LIE()(honest, num_byzantine=2)
    if kind == "dicts":
        first, second = first["w"], second["w"]
    before = second.tolist()
    first[:] = 77
    assert second.tolist() == before


def test_without_an_attacker_nothing_is_drawn_and_nothing_is_tracked():
    assert ov.Gaussian().inspect(H, num_byzantine=0, seed=5).seed is None
    rows = torch.from_numpy(H).unsqueeze(0).requires_grad_()
    sent, _ = run_attack(ov.LIE(), rows, torch.zeros(1, 8, dtype=torch.bool), seeds=[0])
    assert not sent.requires_grad


def test_labels_are_flipped_in_whole_numbers():
    flip = ov.LabelFlip().flip
    labels = torch.tensor([0, 255], dtype=torch.uint8)
    assert flip(labels, 1000).tolist() == [999, 744]
    assert flip(labels.numpy(), 1000).tolist() == [999, 744]
    assert flip([], 10).shape == (0,)
    for bad in ([0.5], ["a"], torch.tensor([1.5]), [True, False], None, [[0], [1, 2]]):
        with pytest.raises(TypeError, match="label-flip: labels must be whole numbers, got"):
            flip(bad, 10)


@pytest.mark.parametrize(
    "attack",
    [
        ov.LIE(z=np.float64(2.5)),
        ov.LIE(z=np.float32(0.1)),
        ov.LIE(z=np.int64(2)),
        ov.IPM(evals=np.int64(3)),
        ov.IPM(epsilon=np.float64(0.1)),
        ov.Mimic(client=np.int32(2)),
        ov.Fang(stretch=np.float64(3)),
    ],
)
def test_numbers_of_numpy_are_numbers(attack):
    again = ov.make_attack(str(attack))
    assert again == attack
    assert str(again) == str(attack)
    assert "np." not in str(attack)


def test_true_is_no_sign():
    with pytest.raises(TypeError, match="lie: sign must be a whole number, got True"):
        ov.LIE(sign=True)
    with pytest.raises(TypeError, match="size must be a whole number"):
        ov.Bucketing(ov.Median(), size=True)
    assert str(ov.Bucketing(ov.Median(), size=np.int64(3))) == "bucketing(median, size=3)"


class Seen(ov.Attack):
    """Sends the honest mean, and shows what it saw."""

    contexts: list = []  # noqa: RUF012  (read by the test below)

    def craft(self, context):
        self.contexts.append(context)
        return ov.AttackOutput(rows=context.mean.unsqueeze(1))


def test_is_honest_and_honest_norms_cover_the_finite_honest_rows(device):
    rows = torch.tensor([[3.0, 4.0], [0.0, 1.0], [5.0, 12.0]], device=device).repeat(3, 1, 1)
    rows[0, 1, 0] = torch.nan
    rows[1, 0, 1] = torch.inf
    is_byzantine = torch.tensor([[False, False, True], [False, True, False], [True, True, True]])
    _, output = run_attack(Seen(), rows, is_byzantine, seeds=(0, 1, 2))
    context = Seen.contexts.pop()
    # Where no honest client was sampled, the attackers' own rows count.
    honest = [[True, False, False], [False, False, True], [True, True, True]]
    assert context.is_honest.tolist() == honest
    assert context.honest_norms.dtype == torch.float64
    wanted = [[5, np.nan, np.nan], [np.nan, np.nan, 13], [5, 1, 13]]
    np.testing.assert_array_equal(context.honest_norms.cpu().numpy(), wanted)
    assert context.mean[:2].tolist() == [[3, 4], [5, 12]]
    assert "2 honest clients sent NaN or infinity and were left out" in output.notes


def test_is_honest_is_a_mask_for_a_single_call_too():
    rows = H.copy()
    rows[2, 0] = np.nan
    found = Seen().inspect(rows, num_byzantine=2, own=OWN[:2])
    context = Seen.contexts.pop()
    assert context.is_honest.tolist() == [[True, True, False] + [True] * 5]
    assert found.notes == ("1 honest client sent NaN or infinity and was left out",)
    Seen().inspect(rows[2:3], num_byzantine=2, own=OWN[:2])
    assert Seen.contexts.pop().is_honest.tolist() == [[False]]


class InHalf(ov.Attack):
    """Sends rows in half precision, whatever the gradients are in."""

    def craft(self, context):
        return ov.AttackOutput(rows=context.mean.unsqueeze(1).half())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_attack_may_return_rows_in_half_precision(dtype):
    rows = InHalf()(torch.ones(3, 4, dtype=dtype), num_byzantine=2)
    assert rows.dtype == dtype
    assert rows.tolist() == [[1.0] * 4] * 2
