"""Every attack passes its checks, and the checks catch attacks that are wrong."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.attack_spec import ALIASES, ATTACKS
from outvote.testing import ATTACK_CHECKS
from outvote.testing.conformance import AttackTrial

# The inputs are small: more threads only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")

EVERY_ATTACK = [
    *ATTACKS,
    "lie(z=3, spread=sample, sign=1)",
    "lie(spread=variance, reference_set=all)",
    "alie(spread=sample)",
    "min-max(direction=sign)",
    "min-max(direction=unit-mean, method=search)",
    "min-max(spread=sample)",
    "min-sum(limit=min, method=search)",
    "min-sum(direction=unit-mean, spread=sample)",
    "min-sum(direction=sign, limit=min)",
    "ipm(epsilon=0.1)",
    "ipm(evals=8)",
    "mimic(client=none)",
    "mimic(client=3)",
    "fang(target=krum)",
    "fang(target=krum, neighbours=paper)",
    "optimal-lie(spread=sample, sign=1, evals=5)",
    "optimal-ipm(evals=5)",
    "gas-aware(draws=2, steps=1)",
]
# They search long; in the fast tests they do so with fewer evaluations or by fewer checks.
SLOW = {"gas-aware", "gas-aware(draws=2, steps=1)", "optimal-lie", "optimal-ipm"}
MANY_CALLS = {"keeps-kind-and-dtype", "finite", "same-seed-same-rows", "independent-of-order"}


@pytest.mark.parametrize(
    "text", [pytest.param(t, marks=[pytest.mark.slow] * (t in SLOW)) for t in EVERY_ATTACK]
)
def test_every_attack_passes_its_checks(text, device):
    ov.check_attack(ov.make_attack(text), device=device)


@pytest.mark.parametrize("name", [name for name in ATTACK_CHECKS if name not in MANY_CALLS])
def test_gas_aware_passes_the_checks_of_few_calls(name, device):
    attack = ov.make_attack("gas-aware(draws=1, steps=1)")
    ATTACK_CHECKS[name](AttackTrial(attack, 0, device, (1, 28, 28)))


def test_every_name_leads_to_its_attack():
    for name, kind in ATTACKS.items():
        assert kind.name == name
        assert ov.make_attack(name) == kind()
        assert str(kind()) == name
        assert ">>>" in kind.__doc__
    for alias, name in ALIASES.items():
        assert ov.make_attack(alias) == ATTACKS[name]()


class Sound(ov.Attack):
    """A third-party attack, as short as possible; the subclasses break one thing each."""

    name = "sound"

    def craft(self, context):
        return ov.AttackOutput(rows=-context.mean.unsqueeze(1))


def test_a_sound_third_party_attack_passes():
    ov.check_attack(Sound())


class DrawsFromTorch(Sound):
    is_random = True

    def craft(self, context):
        return ov.AttackOutput(
            rows=torch.randn(context.num_runs, 1, context.dim).to(context.gradients)
        )


class ChangesTheDtype(Sound):
    def inspect(self, honest, **info):
        output = super().inspect(honest, **info)
        rows = output.rows
        if isinstance(rows, torch.Tensor):
            rows = rows.double()
        return ov.AttackOutput(rows=rows, seed=output.seed)


class Overflows(Sound):
    sends_nonfinite_quietly = True

    def craft(self, context):
        return ov.AttackOutput(rows=(context.mean / context.mean).unsqueeze(1))


class Remembers(Sound):
    def __init__(self):
        self.last = 0

    def craft(self, context):
        self.last += 1
        return ov.AttackOutput(rows=-self.last * context.mean.unsqueeze(1))


class HidesItsRandomness(Sound):
    def craft(self, context):
        rows = [
            torch.randn(1, context.dim, generator=generator, device=context.device)
            for generator in context.stream.generators(context.device)
        ]
        return ov.AttackOutput(rows=torch.stack(rows).to(context.gradients))


class PrefersTheFirst(Sound):
    def craft(self, context):
        return ov.AttackOutput(rows=-context.checked.gradients[:, :1].nan_to_num())


class WritesIntoItsInput(Sound):
    def craft(self, context):
        rows = -context.mean.unsqueeze(1)
        context.gradients[:, 0] = 0
        return ov.AttackOutput(rows=rows)


class DiffersSecretly(Sound):
    def craft(self, context):
        numbers = torch.arange(context.num_attackers, device=context.device).view(1, -1, 1)
        return ov.AttackOutput(rows=-context.mean.unsqueeze(1) * numbers)


class DrawsForNobody(Sound):
    def inspect(self, honest, *, seed=None, **info):
        if isinstance(seed, np.random.Generator):
            seed = int(seed.integers(10))
        return super().inspect(honest, seed=seed, **info)


class NeedsTwoClients(Sound):
    def craft(self, context):
        if context.gradients.shape[1] == 1:
            raise IndexError("one client only")
        return super().craft(context)


class DividesByTheSpread(Sound):
    def craft(self, context):
        mean, spread = context.mean, context.spread("population")
        return ov.AttackOutput(rows=(mean / spread).unsqueeze(1))


@dataclass(frozen=True)
class Forgets(Sound):
    name: ClassVar[str] = "forgets"
    loaded_from: ClassVar[str] = "lie"
    z: float = field(default=1.5)


class LooksAtTheWholeBatch(Sound):
    def craft(self, context):
        return ov.AttackOutput(rows=-context.mean.mean(dim=0).expand(context.num_runs, 1, -1))


class ChangesItsState(Sound):
    has_state = True

    def craft(self, context):
        state = torch.zeros(1) if context.state is None else context.state
        state += 1
        return ov.AttackOutput(rows=-context.mean.unsqueeze(1) * state.item(), state=state)


class WritesIntoItsSamples(Sound):
    def poison(self, samples, targets, num_classes):
        samples[..., 0] = 1
        return samples, targets


BROKEN = {
    "no-global-state": DrawsFromTorch,
    "keeps-kind-and-dtype": ChangesTheDtype,
    "finite": Overflows,
    "same-seed-same-rows": Remembers,
    "seed-matters-only-if-random": HidesItsRandomness,
    "independent-of-order": PrefersTheFirst,
    "leaves-inputs-alone": WritesIntoItsInput,
    "colluding-rows-are-identical": DiffersSecretly,
    "no-attacker": DrawsForNobody,
    "one-honest-client": NeedsTwoClients,
    "zero-spread": DividesByTheSpread,
    "text-round-trip": Forgets,
    "batch-equals-loop": LooksAtTheWholeBatch,
    "state-run-by-run": ChangesItsState,
    "poison-keeps-shapes": WritesIntoItsSamples,
}


def test_there_is_a_broken_attack_for_every_check():
    assert set(BROKEN) == set(ATTACK_CHECKS)


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_attack_is_caught(check):
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_attack(BROKEN[check]())
    assert check in [failure.check for failure in caught.value.failures]
    assert ATTACK_CHECKS[check].__doc__.splitlines()[0] in str(caught.value)
    assert f"of {len(ATTACK_CHECKS)} checks" in str(caught.value)


class Backdoor(ov.Attack):
    """Stamps a patch on half of the samples, trains them as class 0, and boosts the result."""

    is_colluding = False
    boost = 5.0

    def poison(self, samples, targets, num_classes):
        samples, targets, half = samples.clone(), targets.clone(), (len(samples) + 1) // 2
        samples[:half, ..., :3, :3] = samples.max()
        targets[:half] = 0
        return samples, targets

    def craft(self, context):
        return ov.AttackOutput(rows=self.boost * context.own_rows)


def test_a_backdoor_poisons_its_samples_and_boosts_its_row():
    attack = Backdoor()
    assert attack.poisons_data
    assert attack.needs_own()
    ov.check_attack(attack)
    ov.check_attack(attack, sample_shape=(3, 32, 32))
    own = np.ones((2, 4))
    np.testing.assert_array_equal(attack(0 * own, num_byzantine=2, own=own), 5 * own)


class Nothing(ov.Attack):
    pass


def test_an_attack_that_does_nothing_is_an_error():
    with pytest.raises(NotImplementedError, match="Nothing overrides neither craft nor poison"):
        Nothing()(np.ones((2, 3)), num_byzantine=1)


class Grows(Sound):
    """Sends the negative mean times the number of rounds in which it attacked."""

    has_state = True

    def craft(self, context):
        assert context.num_runs == 1
        state = 1 + (context.state or 0)
        return ov.AttackOutput(rows=-state * context.mean.unsqueeze(1), state=state)


def test_a_state_is_that_of_one_run():
    ov.check_attack(Grows())
    first = Grows().inspect(np.ones((3, 2)), num_byzantine=1)
    second = Grows().inspect(np.ones((3, 2)), num_byzantine=1, state=first.state)
    assert (first.state, second.state) == (1, 2)
    np.testing.assert_array_equal(second.rows, [[-2, -2]])


class ForgetsToDeclare(Grows):
    has_state = False


class DeclaresForNothing(Sound):
    has_state = True


@pytest.mark.parametrize(
    ("kind", "message"),
    [(ForgetsToDeclare, "has_state = True"), (DeclaresForNothing, "has_state = False")],
)
def test_a_state_is_declared(kind, message):
    with pytest.raises(ov.ConformanceError, match=f"declare {message}"):
        ov.check_attack(kind())


def test_declarations_follow_the_parameters():
    krum, mean = ov.Fang(target="krum"), ov.Fang()
    assert (krum.is_random, krum.is_colluding) == (False, True)
    assert (mean.is_random, mean.is_colluding) == (True, False)
    assert (ov.Mimic().is_random, ov.Mimic().has_state) == (False, False)
    assert ov.Mimic(client=None).has_state


def test_an_exemption_needs_a_known_check_and_a_reason():
    ov.check_attack(LooksAtTheWholeBatch(), exempt={"batch-equals-loop": "it is meant to"})
    with pytest.raises(ValueError, match="did you mean 'finite'"):
        ov.check_attack(Sound(), exempt={"finit": "why"})
    with pytest.raises(ValueError, match="needs a reason"):
        ov.check_attack(Sound(), exempt={"finite": " "})
    with pytest.raises(TypeError, match="exempt must map the name of a check to the reason"):
        ov.check_attack(Sound(), exempt=["finite"])
    with pytest.raises(TypeError, match=r"pass an object, not a\s+class"):
        ov.check_attack(Sound)


class TakesHonestRowsAlone(Sound):
    """The negative of the honest row with the median norm, by the mask and the norms."""

    depends_on_order = True  # ties

    def craft(self, context):
        weights = context.is_honest.to(context.gradients.dtype)
        rows = context.gradients.nan_to_num(0, 0, 0)
        total = (weights.unsqueeze(-1) * rows).sum(dim=1, keepdim=True)
        middle = context.honest_norms.nanmedian(dim=-1).values.nan_to_num()
        mean = total / weights.sum(dim=-1)[:, None, None].clamp(min=1)
        return ov.AttackOutput(rows=-mean * middle[:, None, None].sign().to(mean.dtype))


def test_an_attack_by_mask_and_norms_passes():
    ov.check_attack(TakesHonestRowsAlone())
