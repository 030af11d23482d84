"""Every attack keeps its promises, and the suite catches attacks that break them."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.spec import ALIASES, ATTACKS
from outvote.testing import ATTACK_CHECKS

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
    "optimal-lie(spread=sample, sign=1, evals=5)",
    "gas-aware(draws=2, steps=1)",
]


@pytest.mark.parametrize("text", [t for t in EVERY_ATTACK if t != "gas-aware"])
def test_every_attack_keeps_its_promises(text, device):
    ov.check_attack(ov.make_attack(text), device=device)


@pytest.mark.slow
def test_gas_aware_keeps_its_promises(device):
    ov.check_attack(ov.GASAware(), device=device)


def test_every_name_leads_to_its_attack():
    for name, kind in ATTACKS.items():
        assert kind.name == name
        assert ov.make_attack(name) == kind()
        assert str(kind()) == name
        assert ">>>" in kind.__doc__
    for alias, name in ALIASES.items():
        assert ov.make_attack(alias) == ATTACKS[name]()


def test_every_check_states_a_fact():
    for name, check in ATTACK_CHECKS.items():
        assert check.__doc__, name
        assert check.__name__ == name.replace("-", "_"), name


class Sound(ov.Attack):
    """An attack of somebody else, as short as it gets; the subclasses break one thing each."""

    name = "sound"

    def craft(self, scene):
        return ov.Forged(rows=-scene.mean.unsqueeze(1))


def test_a_sound_attack_of_somebody_else_passes():
    ov.check_attack(Sound())


class DrawsFromTorch(Sound):
    is_random = True

    def craft(self, scene):
        return ov.Forged(rows=torch.randn(scene.num_runs, 1, scene.dim).to(scene.gradients))


class ChangesTheDtype(Sound):
    def inspect(self, honest, **facts):
        crafted = super().inspect(honest, **facts)
        rows = crafted.rows
        if isinstance(rows, torch.Tensor):
            rows = rows.double()
        return ov.Crafted(rows=rows, seed=crafted.seed)


class Overflows(Sound):
    sends_nonfinite_quietly = True

    def craft(self, scene):
        return ov.Forged(rows=(scene.mean / scene.mean).unsqueeze(1))


class Remembers(Sound):
    def __init__(self):
        self.last = 0

    def craft(self, scene):
        self.last += 1
        return ov.Forged(rows=-self.last * scene.mean.unsqueeze(1))


class HidesItsRandomness(Sound):
    def craft(self, scene):
        rows = [
            torch.randn(1, scene.dim, generator=generator, device=scene.device)
            for generator in scene.stream.generators(scene.device)
        ]
        return ov.Forged(rows=torch.stack(rows).to(scene.gradients))


class PrefersTheFirst(Sound):
    def craft(self, scene):
        return ov.Forged(rows=-scene.checked.gradients[:, :1].nan_to_num())


class WritesIntoItsInput(Sound):
    def craft(self, scene):
        rows = -scene.mean.unsqueeze(1)
        scene.gradients[:, 0] = 0
        return ov.Forged(rows=rows)


class DiffersSecretly(Sound):
    def craft(self, scene):
        numbers = torch.arange(scene.num_attackers, device=scene.device).view(1, -1, 1)
        return ov.Forged(rows=-scene.mean.unsqueeze(1) * numbers)


class DrawsForNobody(Sound):
    def inspect(self, honest, *, seed=None, **facts):
        if isinstance(seed, np.random.Generator):
            seed = int(seed.integers(10))
        return super().inspect(honest, seed=seed, **facts)


class NeedsTwoClients(Sound):
    def craft(self, scene):
        if scene.gradients.shape[1] == 1:
            raise IndexError("one client only")
        return super().craft(scene)


class DividesByTheSpread(Sound):
    def craft(self, scene):
        mean, spread = scene.mean, scene.spread("population")
        return ov.Forged(rows=(mean / spread).unsqueeze(1))


@dataclass(frozen=True)
class Forgets(Sound):
    name: ClassVar[str] = "forgets"
    loaded_from: ClassVar[str] = "lie"
    z: float = field(default=1.5)


class LooksAtTheWholeBatch(Sound):
    def craft(self, scene):
        return ov.Forged(rows=-scene.mean.mean(dim=0).expand(scene.num_runs, 1, -1))


class LearnsWhereIdle(Sound):
    has_memory = True

    def craft(self, scene):
        state = 1 + (torch.zeros(scene.num_runs, 1, 1) if scene.state is None else scene.state)
        return ov.Forged(rows=-scene.mean.unsqueeze(1) * state.to(scene.device), state=state)


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
    "memory-run-by-run": LearnsWhereIdle,
}


def test_there_is_a_broken_attack_for_every_check():
    assert set(BROKEN) == set(ATTACK_CHECKS)


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_attack_is_caught(check):
    with pytest.raises(ov.ConformanceError) as caught:
        ov.check_attack(BROKEN[check]())
    assert check in [failure.check for failure in caught.value.failures]
    assert ATTACK_CHECKS[check].__doc__ in str(caught.value)
    assert f"of {len(ATTACK_CHECKS)} checks" in str(caught.value)


class SaysNonfinite(Sound):
    sends_nonfinite = True


def test_an_attack_that_says_it_sends_nan_must_do_so():
    with pytest.raises(ov.ConformanceError, match="declare sends_nonfinite = False"):
        ov.check_attack(SaysNonfinite())


def test_flags_follow_the_parameters():
    krum, mean = ov.Fang(target="krum"), ov.Fang()
    assert (krum.is_random, krum.is_colluding) == (False, True)
    assert (mean.is_random, mean.is_colluding) == (True, False)
    assert (ov.Mimic().is_random, ov.Mimic().has_memory) == (False, False)
    assert ov.Mimic(client=None).has_memory


def test_an_exemption_needs_a_known_check_and_a_reason():
    ov.check_attack(LooksAtTheWholeBatch(), exempt={"batch-equals-loop": "it is meant to"})
    with pytest.raises(ValueError, match="did you mean 'finite'"):
        ov.check_attack(Sound(), exempt={"finit": "why"})
    with pytest.raises(ValueError, match="needs a reason"):
        ov.check_attack(Sound(), exempt={"finite": " "})
    with pytest.raises(TypeError, match=r"pass an object, not a\s+class"):
        ov.check_attack(Sound)
