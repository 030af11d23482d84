"""What all verbs share: `--json`, `--debug`, reading a rule, and the two ways to fail."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from outvote.rules.base import Rule

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class WorkFailed(Exception):  # noqa: N818  (it tells what happened, as TooManyByzantine does)
    """The command was right but the work failed: exit code 1."""


class Verb(click.Command):
    """A command that prints tables: it also takes ``--json`` and ``--debug``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the two options."""
        kwargs["context_settings"] = {**CONTEXT, **kwargs.get("context_settings", {})}
        super().__init__(*args, **kwargs)
        debug = click.Option(["--debug"], is_flag=True, expose_value=False, help=DEBUG_HELP)
        as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON, no tables.")
        self.params += [as_json, debug]


DEBUG_HELP = "On failure, print the traceback too."
debug_option = click.option("--debug", is_flag=True, expose_value=False, help=DEBUG_HELP)


def read_rule(text: str) -> "Rule":
    """Build a rule from text; a mistake in it is the user's to mend."""
    from outvote.rules.spec import make_rule

    try:
        return make_rule(text)
    except (ValueError, TypeError) as error:
        message = str(error)
        raise click.UsageError(
            message if text in message else f"rule {text!r}: {message}"
        ) from error
