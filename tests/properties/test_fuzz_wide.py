"""No structure of wider inputs breaks a rule inside GAS: dead units, copies, huge clients."""

import numpy as np
import pytest
import torch

import outvote as ov
from every_rule import FAST_RULES, PLAIN, SLOW_RULES, WRAPPABLE_NAMES
from outvote.testing.trial import as_array

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def made(seed):
    """Draw clients that differ, then one to three things that real or hostile ones do."""
    random = np.random.default_rng(seed)
    n, d = int(random.integers(3, 14)), int(random.integers(20, 900))
    rows = random.normal(size=(n, d)) * 10.0 ** random.uniform(-4, 1)
    for change in random.choice(CHANGES, size=random.integers(2, 5), replace=False):
        change(rows, random)
    rows *= min(1.0, 6e4 / np.abs(rows).max())  # Finite in float16, too.
    return torch.from_numpy(rows).to(DTYPES[random.integers(len(DTYPES))])


def _some(random, whole):
    first, last = sorted(random.integers(0, whole, size=2).tolist())
    return slice(first, last + 1)


def single_weights_are_off(rows, random):
    rows[np.ix_(random.random(len(rows)) < 0.5, random.random(rows.shape[1]) < 0.3)] = 0


def units_are_off(rows, random):
    """A unit is a stretch of coordinates."""
    unit = np.arange(rows.shape[1]) * 8 // rows.shape[1]
    rows[np.ix_(random.random(len(rows)) < 0.5, random.random(8)[unit] < 0.3)] = 0


def a_layer_is_frozen(rows, random):
    rows[:, _some(random, rows.shape[1])] = 0


def some_agree_in_a_stretch(rows, random):
    stretch, who = _some(random, rows.shape[1]), _some(random, len(rows))
    rows[who, stretch] = rows[who.start, stretch]


def some_are_copies(rows, random):
    who = _some(random, len(rows))
    rows[who] = rows[who.start]


def some_are_nearly_copies(rows, random):
    some_are_copies(rows, random)
    rows *= 1 + 1e-7 * random.normal(size=rows.shape)


def there_is_an_offset(rows, random):
    rows += 10.0 ** random.uniform(0, 4)


def one_is_huge(rows, random):
    rows[random.integers(len(rows))] *= 1e4


def one_is_huge_in_a_stretch(rows, random):
    rows[random.integers(len(rows)), _some(random, rows.shape[1])] *= 1e4


CHANGES = [
    single_weights_are_off,
    units_are_off,
    a_layer_is_frozen,
    some_agree_in_a_stretch,
    some_are_copies,
    some_are_nearly_copies,
    there_is_an_offset,
    one_is_huge,
    one_is_huge_in_a_stretch,
]


@pytest.mark.parametrize("num_inputs", [20, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WRAPPABLE_NAMES)
def test_no_structure_breaks_a_rule_inside_gas(name, num_inputs, device):
    for seed in range(num_inputs):
        rows = made(seed)
        num_groups = (3, 17, 17, rows.shape[1])[seed % 4]
        split = ("balanced", "contiguous", "contiguous")[seed % 3]
        rule = ov.GAS(ov.make_rule(name), num_groups=num_groups, split=split)
        most = rule.max_byzantine(num_clients=len(rows))
        verdict = rule.inspect(rows.to(device), num_byzantine=seed % (most + 1), seed=seed)
        assert verdict.rejected == []
        assert np.isfinite(verdict.scores).all()
        assert verdict.weights.sum() == pytest.approx(1)
        low, high = rows.double().aminmax(dim=0)
        update = torch.from_numpy(np.array(as_array(verdict.update), dtype=np.float64))
        slack = 1e-2 * rows.double().abs().amax(dim=0) + 1e-6
        assert bool(((update >= low - slack) & (update <= high + slack)).all())


@pytest.mark.parametrize(
    "text", [text for text in PLAIN if "clipping" not in text and text != "rfa"]
)
@pytest.mark.parametrize("is_led_astray", [False, True])
def test_tiny_numbers_are_aggregated_as_others(text, is_led_astray, device):
    random = np.random.default_rng(7)
    rows = torch.from_numpy(random.normal(size=(11, 3000))).float()
    if is_led_astray:
        rows[:2] *= 1e9
    rule = ov.make_rule(text)
    f = min(2, rule.max_byzantine(11))
    scale = 2.0**-80  # Exact: about 1e-24.
    wanted = rule.inspect(rows.to(device), num_byzantine=f, seed=0)
    found = rule.inspect(scale * rows.to(device), num_byzantine=f, seed=0)
    size = float(wanted.update.abs().max())
    torch.testing.assert_close(found.update / scale, wanted.update, rtol=1e-4, atol=1e-5 * size)
    assert found.kept == wanted.kept


@pytest.mark.parametrize(
    "num_clients", [3, 10, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 12))]
)
@pytest.mark.parametrize(
    "texts",
    [FAST_RULES, pytest.param(sorted(SLOW_RULES), marks=pytest.mark.slow)],
    ids=["fast", "slow"],
)
def test_the_largest_numbers_of_float32_give_finite_updates(texts, num_clients, device):
    largest = torch.finfo(torch.float32).max
    random = np.random.default_rng(num_clients)
    signs = torch.from_numpy(random.choice([-1.0, 1.0], size=(num_clients, 30)))
    rows = signs.float()
    rows[:, 0] = largest
    for given in (torch.full_like(rows, largest), signs.float() * largest, rows):
        for text in texts:
            rule = ov.make_rule(text)
            for f in (0, min(2, rule.max_byzantine(num_clients))):
                reference = np.ones(30) if rule.traits.needs_reference else None
                info = {"num_byzantine": f, "seed": 0, "reference": reference}
                assert bool(rule(given.to(device), **info).isfinite().all()), text
