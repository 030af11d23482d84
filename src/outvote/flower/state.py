"""What a server remembers from round to round: this, and nothing else, is checkpointed."""

from dataclasses import dataclass, field
from typing import Any, final

from flwr.app import ArrayRecord

from outvote.flower.offenders import Offenders
from outvote.flower.server_optimizers import Memory


@final
@dataclass(slots=True, kw_only=True)
class ServerState:
    """Where a federation stands after a round."""

    offenders: Offenders
    round: int = 0
    model: ArrayRecord | None = None
    optimizer_memory: Memory = field(default_factory=dict)
    rule_memory: Any = None
