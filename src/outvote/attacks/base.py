"""What an attack is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from outvote.attacks.context import AttackContext
from outvote.attacks.crafted import Crafted, Forged
from outvote.seeding import Seed


class Attack(ABC):
    """What lying clients send: honest gradients in, the liars' rows out."""

    name: ClassVar[str] = ""
    # What `check_attack` holds an attack to; a property where it depends on a parameter.
    is_colluding: ClassVar[bool] = True
    """All attackers of a round send the same row."""
    is_random: ClassVar[bool] = False
    """Another seed may give other rows."""
    is_data_attack: ClassVar[bool] = False
    """It changes what the attackers train on, not what they send."""
    sends_nonfinite: ClassVar[bool] = False
    """It sends NaN or infinity on purpose."""
    depends_on_order: ClassVar[bool] = False
    """The rows depend on which honest client comes first."""
    sees_own: ClassVar[bool] = True
    """It looks at what the attackers would have sent had they been honest."""
    has_memory: ClassVar[bool] = False
    """It takes `state` and gives one back; a run without attackers learns nothing."""

    def __init_subclass__(cls) -> None:
        """Give an attack without a name the name of its class."""
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def __call__(self, honest: Any, *, num_byzantine: int, **facts: Any) -> Any:
        """Return the rows that `num_byzantine` attackers send, of the kind of `honest`.

        Takes what `inspect` takes. The rows are copies, also where all attackers send the same.
        """
        return self.inspect(honest, num_byzantine=num_byzantine, **facts).rows

    def inspect(
        self,
        honest: Any,
        *,
        num_byzantine: int,
        own: Any = None,
        rule: Any = None,
        seed: Seed = None,
        state: Any = None,
    ) -> Crafted:
        """Attack and tell how: the chosen factor, the seed, how often the rule was asked.

        `own` is what the attackers would have sent had they been honest (default: the honest
        mean), `rule` what an attack that knows the defence searches against: a rule, or a
        functools.partial of one. A rule that tolerates fewer attackers is asked with its limit.
        """
        from outvote.attacks.call import inspect  # call needs Attack

        return inspect(
            self, honest, num_byzantine=num_byzantine, own=own, rule=rule, seed=seed, state=state
        )

    @abstractmethod
    def craft(self, context: AttackContext) -> Forged:
        """Work out the rows for a batch of runs."""

    def label_map(self, num_classes: int) -> list[int] | None:
        """Return the label that each class is trained as by the attackers; None: its own."""
        del num_classes
        return None

    def needs_own(self) -> bool:
        """Tell whether attackers must train to know what they would have sent."""
        return self.sees_own

    def needs_rule(self) -> bool:
        """Tell whether the attack asks the defence."""
        return False

    def __str__(self) -> str:
        """Return the text that `make_attack` turns back into this attack."""
        from outvote.attacks.spec import attack_text  # spec needs every attack

        return attack_text(self)
