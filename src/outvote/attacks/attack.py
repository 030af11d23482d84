"""What an attack is, and what it returns."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from outvote.attacks.context import AttackContext
from outvote.errors import warn_notes
from outvote.seeding import Seed
from outvote.signatures import takes_what, with_hints

# The notes on what a search chose begin with it: a call does not warn of them.
CHOSEN = "sent "


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttackOutput:
    """The rows that the attackers send, and how they were chosen.

    `factor` is the number that the attack chose or was given (z, gamma, epsilon, lambda, shift),
    `state` what the attack keeps for its next round, `num_evaluations` how often it asked the
    defence. `craft` returns rows ``[runs, attackers or 1, dim]`` (one row: all attackers of the
    run send it) and one factor per run; `Attack.inspect` returns those of a single run, the rows
    of the kind that the caller gave, with the seed (None: no attacker, nothing was drawn).
    """

    rows: Any
    """What the attackers send."""
    factor: Any = None
    """The number that the attack chose or was given."""
    state: Any = None
    """What the attack keeps for its next round."""
    seed: int | None = None
    """Gives the same rows again; None: nothing was drawn."""
    notes: tuple[str, ...] = ()
    """What a caller may not expect."""
    num_evaluations: int = 0
    """How often the attack asked the defence."""


class Attack:
    """What Byzantine clients do: change the samples they train on, the rows they send, or both.

    A model attack overrides `craft`; a data attack overrides `poison`, or `label_map` if it only
    changes targets. The class attributes below declare what `check_attack` checks; where one
    depends on a parameter, make it a property.
    """

    name: ClassVar[str] = ""
    is_colluding: ClassVar[bool] = True
    """All attackers of a round send the same row."""
    is_random: ClassVar[bool] = False
    """Another seed may give other rows."""
    poisons_data: ClassVar[bool] = False
    """Attackers train on other samples or targets; detected where `poison` or `label_map` is
    overridden."""
    sends_nonfinite: ClassVar[bool] = False
    """It sends NaN or infinity on purpose."""
    depends_on_order: ClassVar[bool] = False
    """The rows depend on the order of the honest clients."""
    sees_own: ClassVar[bool] = True
    """It uses the attackers' own gradients, so that they must train."""
    needs_kept: ClassVar[bool] = False
    """It uses which rows the defence keeps, where the defence reports that."""
    has_state: ClassVar[bool] = False
    """It returns a state in one round and gets it back in the next. Such an attack runs one run at
    a time: `context.num_runs` is 1, and `context.state` is what `craft` returned for that run in
    the last round in which it attacked; None in the first."""

    def __init_subclass__(cls) -> None:
        """Give an attack without a name the name of its class, and detect data attacks."""
        super().__init_subclass__()
        declared = vars(cls)
        cls.name = declared.get("name", cls.__name__)
        if {"poison", "label_map"} & {*declared} and "poisons_data" not in declared:
            cls.poisons_data = True

    @with_hints
    def inspect(
        self,
        honest: Any,
        *,
        num_byzantine: int | None = None,
        own: Any = None,
        rule: Any = None,
        seed: Seed = None,
        state: Any = None,
        round: int | None = None,  # noqa: A002  (the word of rules and simulator)
    ) -> AttackOutput:
        """Attack one round and report how: the chosen factor, the seed, the evaluations.

        `own` is what the attackers would have sent honestly (default: the honest mean), `rule`
        what an attack that knows the defence searches against: a rule, or a functools.partial of
        one. A rule that tolerates fewer attackers is asked with its limit. This is a batch of one
        run through `craft_rows`, which the simulator calls for many.
        """
        from outvote.attacks.run_attack import inspect_attack  # run_attack needs Attack

        info = {"own": own, "rule": rule, "seed": seed, "state": state, "round": round}
        if num_byzantine is None:
            raise TypeError(f"{self.name} needs the number of attackers; pass num_byzantine=.")
        return inspect_attack(self, honest, num_byzantine=num_byzantine, **info)

    @takes_what(inspect)
    def __call__(self, honest: Any, **info: Any) -> Any:
        """Return the rows that `num_byzantine` attackers send, of the kind of `honest`.

        Takes what `inspect` takes. The rows are copies, also where all attackers send the same.
        The notes of the output become one warning.
        """
        output = self.inspect(honest, **info)
        notes = [note for note in output.notes if not note.startswith(CHOSEN)]
        warn_notes(notes, stacklevel=3)
        return output.rows

    def craft(self, context: AttackContext) -> AttackOutput:
        """Return the rows of a batch of runs; a data attack sends what its attackers trained."""
        if not self.poisons_data:
            name = type(self).__name__
            raise NotImplementedError(f"{name} overrides neither craft nor poison; define one.")
        return AttackOutput(rows=context.own_rows)

    def poison(self, samples: Tensor, targets: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return the batch that an attacker trains on, of the same shapes; by default `label_map`.

        ``samples [batch, ...]`` are as the model sees them, ``targets [batch]`` whole numbers. The
        hook must not change its arguments.
        """
        if (labels := self.label_map(num_classes)) is not None:
            targets = targets.new_tensor(labels)[targets.long()]
        return samples, targets

    def label_map(self, num_classes: int) -> list[int] | None:
        """Return the label that attackers train each class as; None: its own."""
        del num_classes
        return None

    def needs_own(self) -> bool:
        """Whether attackers must train, also because `reference_set` includes them."""
        is_reference = getattr(self, "reference_set", "honest") == "all"
        return self.sees_own or self.poisons_data or is_reference

    def needs_rule(self) -> bool:
        """Whether the attack asks the defence."""
        return False

    def __str__(self) -> str:
        """Return the text that `make_attack` turns back into this attack."""
        from outvote.attacks.attack_spec import attack_text  # attack_spec needs every attack

        return attack_text(self)
