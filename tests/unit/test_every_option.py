"""Every option of every rule, in the simulator: a stack of all forms equals the plain loops."""

import copy
import dataclasses
from dataclasses import replace

import pytest
import torch
from torch import nn

import outvote as ov
from every_rule import EVERY_RULE, WRAPPED
from federations import make_runs, samples
from outvote.engine.reference import ReferenceRun
from outvote.engine.simulation import first_state, make_run_stack, simulate
from outvote.rules.groups import SPLITS
from outvote.rules.rule_spec import RULES
from outvote.training.local_sgd import LocalSGD
from outvote.training.stacked_trainer import StackedTrainer

# The layers of a model are known in runs only: EVERY_RULE cannot have these forms.
IN_RUNS_ONLY = (
    "gas(median, split=by-layer)",
    "gas(median, num_groups=20, split=by-layer-random)",
)
FORMS = [*(text for text in EVERY_RULE if text not in WRAPPED), *IN_RUNS_ONLY]
TRAIN, TEST = samples(120), samples(8)
TRAINING = LocalSGD(num_steps=1, batch_size=8, learning_rate=0.5)
NUM_ROUNDS = 2


def nested(rule):
    """A rule and the rules inside it."""
    while rule is not None:
        yield rule
        rule = getattr(rule, "rule", None)


OPTIONS = [
    (kind, option)
    for kind in RULES.values()
    for option in dataclasses.fields(kind)
    if option.default is not dataclasses.MISSING
]


@pytest.mark.parametrize(
    ("kind", "option"), OPTIONS, ids=[f"{kind.name}-{option.name}" for kind, option in OPTIONS]
)
def test_every_option_has_a_form_with_another_value(kind, option):
    rules = (rule for text in FORMS for rule in nested(ov.make_rule(text)))
    values = {getattr(rule, option.name) for rule in rules if type(rule) is kind}
    assert values - {option.default}, f"add a form of {kind.name}({option.name}=...) to EVERY_RULE"


def test_every_split_has_a_form():
    rules = (rule for text in FORMS for rule in nested(ov.make_rule(text)))
    assert {rule.split for rule in rules if type(rule) is ov.GAS} == set(SPLITS)


def small_network() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.ReLU(), nn.Linear(3, 4)).double()
    generator = torch.Generator().manual_seed(0)
    for values in module.parameters():
        nn.init.normal_(values, std=0.3, generator=generator)
    return module


def test_every_form_equals_the_plain_loops():
    runs = make_runs([(text, "lie") for text in FORMS])
    runs = [replace(run, root=torch.arange(3, 23)) for run in runs]
    module = small_network()
    modules = [module] * len(runs)
    stack = make_run_stack(module, TRAIN, TEST, runs, training=TRAINING, num_classes=4)
    stack = replace(stack, trainer=StackedTrainer(module, TRAIN))
    steps = list(simulate(stack, first_state(modules, TRAIN), NUM_ROUNDS))
    for k, (text, run) in enumerate(zip(FORMS, runs, strict=True)):
        plain = ReferenceRun(
            run=run,
            model=copy.deepcopy(module),
            train=TRAIN,
            test=TEST,
            training=TRAINING,
            num_classes=4,
        )
        for step in steps:
            expected = plain.run_round(step.state.round, is_evaluated=False)
            found = step.records[k]
            assert list(found.clients) == expected["clients"], text
            kept = expected["kept"]
            assert found.kept == (None if kept is None else tuple(kept)), text
            assert found.num_byzantine_used == expected["num_byzantine_used"], text
        weights = nn.utils.parameters_to_vector(plain.model.parameters()).detach()
        assert (steps[-1].state.weights[k] - weights).abs().max() <= 1e-9, text
