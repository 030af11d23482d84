"""Where the rows of attackers are, and the steps of a round that write or read them."""

from dataclasses import replace

import torch

import outvote as ov
from federations import TRAINING, make_runs, networks, samples
from outvote.attacks.context import Positions
from outvote.engine.attack_step import attack
from outvote.engine.local_updates import _client_tasks, local_updates
from outvote.engine.record import honest_means
from outvote.engine.run_stack import sample_participants
from outvote.engine.simulation import first_state, make_run_stack
from outvote.training.batches import draw_batches

SETS = samples(120), samples(40)
MASK = torch.tensor([[True, False, True, False], [False] * 4, [False, True, True, False]])


def test_rows_of_attackers_are_taken_and_put_where_they_are():
    rows = torch.arange(24.0).view(3, 4, 2)
    own = Positions(MASK).take(rows)
    assert own.shape == (3, 2, 2)
    assert torch.equal(own[0], rows[0, [0, 2]])
    assert torch.equal(own[1], torch.zeros(2, 2))
    assert torch.equal(own[2], rows[2, 1:3])
    into = torch.zeros(5, 4, 2)
    Positions(MASK).put(own, into, runs=[4, 0, 2])
    for run, number in ((4, 0), (0, 1), (2, 2)):
        expected = torch.where(MASK[number].unsqueeze(-1), rows[number], 0.0)
        assert torch.equal(into[run], expected)
    assert not bool(into[[1, 3]].any())


def test_one_row_is_sent_by_all_attackers_of_a_run():
    into = torch.zeros(3, 4, 2)
    Positions(MASK).put(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]]), into)
    assert into[..., 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 5, 5, 0]]


def test_the_mean_of_honest_rows_ignores_what_attackers_sent_and_who_diverged():
    rows = torch.tensor([[[1.0], [3.0], [torch.nan], [torch.inf]], [[2.0], [4.0], [9.0], [6.0]]])
    is_byzantine = torch.tensor([[False, False, True, False], [False, False, True, False]])
    assert honest_means(rows, is_byzantine).tolist() == [[2.0], [4.0]]
    everybody = torch.ones_like(is_byzantine)
    assert honest_means(rows, everybody).tolist() == [[2.0], [5.25]]


def _round(runs):
    module = networks(runs)
    stack = make_run_stack(module[0], *SETS, runs, training=TRAINING, num_classes=4)
    state = first_state(module, SETS[0])
    participants = sample_participants(stack, state)
    return stack, state, participants, local_updates(stack, state, participants)


def test_gradients_are_copied_only_if_what_attackers_trained_is_read_later():
    runs = [replace(run, num_sampled=8) for run in make_runs([("mean", "lie"), ("mean", "lie")])]
    with_state = [replace(runs[0], attack=ov.Mimic(client=None))]
    for some, is_copied in ((runs, False), (with_state, True)):
        stack, state, participants, updates = _round(some)
        assert bool(participants.is_byzantine.any())
        before = updates.gradients.clone()
        sent, _ = attack(stack, state, participants, updates)
        assert (sent.data_ptr() != updates.gradients.data_ptr()) is is_copied
        is_honest = ~participants.is_byzantine
        assert torch.equal(sent[is_honest], before.view_as(sent)[is_honest])
        assert not torch.equal(sent, before.view_as(sent))


def test_runs_with_one_seed_and_the_same_samples_share_their_batches():
    (one,), (same,), (other,) = (make_runs([(rule, "lie")]) for rule in ("mean", "median", "krum"))
    parts = tuple(part.flip(0)[1:] for part in other.federation.parts)
    other = replace(other, federation=replace(other.federation, parts=parts))
    stack, *_ = _round([one, same, other, replace(one, seed=one.seed + 1)])
    tasks = _client_tasks(stack, 1, [(run, 2, True) for run in range(4)])
    assert tasks[0].batches is tasks[1].batches
    assert [task.run for task in tasks] == [0, 1, 2, 3]
    assert tasks[0].seed == tasks[1].seed == tasks[2].seed != tasks[3].seed
    for task in tasks:
        run = stack.runs[task.run]
        alone = draw_batches(run.federation.parts[2], stack.training, run.stream(1, 2))
        assert torch.equal(task.batches.index, alone.index)
    assert not torch.equal(tasks[0].batches.index, tasks[3].batches.index)
