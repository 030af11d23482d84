"""Rules that remember earlier rounds, or trust a gradient of the server's own: asked run by run."""

from torch import Tensor

from outvote.engine.run_stack import RunStack, State
from outvote.engine.sampling import Participants
from outvote.engine.training import train_server
from outvote.rules.base import Rule
from outvote.rules.verdict import Verdict


def is_judged_alone(rule: Rule) -> bool:
    """Tell whether a rule needs more of a run than the gradients of the round."""
    return rule.has_memory or rule.needs_reference


def ask(
    stack: RunStack,
    state: State,
    participants: Participants,
    gradients: Tensor,
    number: int,
    seed: int,
) -> Verdict:
    """Return the verdict on ``gradients [clients, dim]`` of a run; nothing is remembered of it."""
    rule = stack.runs[number].rule
    reference = None
    if rule.needs_reference:
        reference = train_server(stack, state, number, participants.number)
    return rule.inspect(
        gradients,
        num_byzantine=participants.num_byzantine_assumed[number],
        when_too_many="lower",
        seed=seed,
        clients=participants.clients[number],
        reference=reference,
        state=state.rule_memory[number] if state.rule_memory else None,
    )
