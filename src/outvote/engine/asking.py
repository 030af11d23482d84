"""What a rule computes on gradients of some runs: for the server, and for attackers who ask."""

from collections.abc import Sequence

from torch import Tensor

from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.engine.training import train_server
from outvote.rules.aggregate import aggregate
from outvote.rules.rule import Aggregation, Rule


def is_judged_alone(rule: Rule) -> bool:
    """Tell whether a rule needs more of a run than the gradients of the round."""
    return rule.traits.has_state or rule.traits.needs_reference


def ask(
    stack: RunStack,
    state: State,
    participants: Participants,
    gradients: Tensor,
    numbers: list[int],
    seeds: Sequence[int],
) -> Aggregation:
    """Aggregate ``gradients [runs, clients, dim]`` of some runs that share a rule."""
    rule = stack.runs[numbers[0]].rule
    references = None
    if rule.traits.needs_reference:
        references = [train_server(stack, state, k, participants.number) for k in numbers]
    return aggregate(
        rule,
        gradients,
        num_byzantine=[participants.num_byzantine_assumed[k] for k in numbers],
        seeds=seeds,
        clients=[participants.clients[k] for k in numbers],
        references=references,
        states=[state.rule_memory[k] for k in numbers] if state.rule_memory else None,
        round=participants.number,
        models=[state.weights[k] for k in numbers],
    )
