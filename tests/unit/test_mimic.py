"""Mimic: whom it copies, and the state that it keeps of each run."""

import numpy as np
import pytest
import torch

import outvote as ov
from outvote.attacks.run_attack import run_attack

H = np.random.default_rng(3).normal(size=(8, 6)) + 1
ROWS = torch.from_numpy(np.random.default_rng(4).normal(size=(2, 6, 3)) + 1)
ONE_ATTACKER = torch.tensor([[True, False, False, False, False, False], [False] * 6])


def test_a_run_without_attackers_has_learnt_nothing():
    _, output = run_attack(ov.Mimic(client=None), ROWS, ONE_ATTACKER, seeds=[1, 2])
    attacked, idle = output.state
    assert attacked.num_rounds.tolist() == [1]
    assert idle is None


def test_a_run_starts_in_a_batch_as_it_does_alone():
    attack, mask = ov.Mimic(client=None), ONE_ATTACKER
    _, first = run_attack(attack, ROWS, mask, seeds=[1, 2])
    both = mask | mask.flip(0)
    sent, second = run_attack(attack, ROWS, both, seeds=[3, 4], states=first.state)
    alone, output = run_attack(attack, ROWS[1:], both[1:], seeds=[4])
    assert torch.equal(sent[1], alone[0])
    torch.testing.assert_close(second.state[1].direction, output.state[0].direction)
    assert [state.num_rounds.tolist() for state in second.state] == [[2], [1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_who_is_copied_does_not_depend_on_others_that_diverge(dtype):
    rows = torch.from_numpy(H).to(dtype)
    broken = rows.clone()
    broken[0] = torch.nan
    sent = ov.Mimic(client=2).inspect(broken, num_byzantine=1).rows
    assert torch.equal(sent[0], rows[2])


def test_the_learnt_client_is_known_by_its_row_also_where_another_diverged():
    attack = ov.Mimic(client=None, warmup=1)
    first = attack.inspect(H, num_byzantine=1, seed=0)
    target = int(first.state.target)
    np.testing.assert_array_equal(first.rows[0], H[target])
    broken = H.copy()
    broken[0 if target else 1] = np.nan
    again = attack.inspect(broken, num_byzantine=1, seed=0, state=first.state)
    np.testing.assert_array_equal(again.rows[0], H[target])


def test_a_state_of_other_gradients_is_refused():
    attack = ov.Mimic(client=None)
    state = attack.inspect(H, num_byzantine=1, seed=0).state
    with pytest.raises(ValueError, match="must have the 5 coordinates of the gradients, got"):
        attack(H[:, :5], num_byzantine=1, state=state)
