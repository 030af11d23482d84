"""What all verbs share: `--json`, `--debug`, reading rules and attacks, and ways to fail."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outvote.errors import closest

if TYPE_CHECKING:
    from outvote.attacks.attack import Attack
    from outvote.rules.rule import Rule

Built = TypeVar("Built")

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


class WorkFailed(Exception):  # noqa: N818  (named like TooManyByzantine)
    """The command was right but the work failed: exit code 1."""


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn some errors into mistakes of the user: exit code 2."""
    try:
        yield
    except kinds as error:
        raise click.UsageError(str(error)) from error


def typed_command() -> str:
    """Return the command as the user typed it."""
    return shlex.join(["outvote", *sys.argv[1:]])


class VerbGroup(click.Group):
    """A group of verbs; an unknown one is an error that names the closest."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb that the first word names."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            what = "there is no verb" if ctx.parent is None else f"{ctx.info_name} has no verb"
            raise click.UsageError(f"{what} {args[0]!r}; {closest(args[0], known)}", ctx)
        return super().resolve_command(ctx, args)


class Verb(click.Command):
    """A command that prints tables: it also takes ``--json`` and ``--debug``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"context_settings": CONTEXT, **kwargs})
        json_option(self)
        debug_option(self)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, no tables.")


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, help="On failure, print the traceback too."
)


def is_debug() -> bool:
    """Return whether the command was given ``--debug``: the program's context object."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.obj)


def read_rule(text: str) -> "Rule":
    """Build a rule from text; a mistake in it is a UsageError."""
    from outvote.rules.rule_spec import make_rule

    return _read("rule", make_rule, text)


def read_attack(text: str) -> "Attack":
    """Build an attack from text; a mistake in it is a UsageError."""
    from outvote.attacks.attack_spec import make_attack

    return _read("attack", make_attack, text)


def _read(kind: str, make: Callable[[str], Built], text: str) -> Built:
    from outvote.text import shortened

    try:
        return make(text)
    except (ValueError, TypeError) as error:
        shown = shortened(text)
        where = "" if shown in str(error) else f"{kind} {shown!r}: "
        raise click.UsageError(f"{where}{error}") from error
