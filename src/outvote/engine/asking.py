"""Rules that remember earlier rounds, or trust a gradient of the server's own: asked run by run."""

from torch import Tensor

from outvote.engine.sampling import Chosen
from outvote.engine.training import train_server
from outvote.engine.world import State, World
from outvote.rules.base import Rule
from outvote.rules.verdict import Verdict


def is_judged_alone(rule: Rule) -> bool:
    """Tell whether a rule needs more of a run than the gradients of the round."""
    return rule.has_memory or rule.needs_reference


def ask(
    world: World, state: State, chosen: Chosen, gradients: Tensor, number: int, seed: int
) -> Verdict:
    """Return the verdict on ``gradients [clients, dim]`` of a run; nothing is remembered of it."""
    rule = world.runs[number].rule
    reference = None
    if rule.needs_reference:
        reference = train_server(world, state, number, chosen.number)
    return rule.inspect(
        gradients,
        num_byzantine=chosen.num_told[number],
        when_too_many="lower",
        seed=seed,
        clients=chosen.clients[number],
        reference=reference,
        state=state.rule_memory[number] if state.rule_memory else None,
    )
