"""The program `outvote`: finds the verb, and turns failures and warnings into one line each."""

import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

import outvote
from outvote.cli.output import print_error, print_message
from outvote.cli.verb import CONTEXT, VerbGroup, WorkFailed, debug_option
from outvote.errors import OutvoteWarning

FINE, FAILED, WRONG_USE = 0, 1, 2
IS_POSIX = os.name == "posix"
NOT_POSIX = (
    "outvote is made for Linux and other POSIX systems: on this one no run can be stored, because "
    "files cannot be locked; on Windows, use WSL."
)

# The modules of this package that have a `command`.
VERBS = (
    *("aggregate", "audit", "bench", "compare", "data", "demo", "doctor", "export", "list"),
    *("new", "plan", "plot", "report", "run", "show", "stress", "table", "verify", "watch"),
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the program; return 0 (fine), 1 (the work failed) or 2 (the user must change something).

    On failure one line goes to stderr: what, allowed, got, remedy; with ``--json`` it is an object,
    {"error": ..., "code": ...}. With ``--debug`` the traceback goes before it.
    """
    words = list(sys.argv[1:] if args is None else args)
    # Before torch is loaded: threads that spin while they wait bring a busy machine to a halt.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _accept_any_text()
    if not IS_POSIX:
        print_message(NOT_POSIX)
    try:
        with _warnings_on_one_line():
            is_debug = "--debug" in words
            result = program.main(words, "outvote", standalone_mode=False, obj=is_debug)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (always one line, never more)
        if "--debug" in words:
            traceback.print_exc()
        code, message = explain(error)
        print_error(message, code, as_json="--json" in words)
        return code
    return result if isinstance(result, int) else FINE


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code of a failure, and the sentence for the user."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "outvote"
        return WRONG_USE, f"{_sentence(error.format_message())} See '{where} --help'."
    from outvote.results.disk import OutputError, StoreError  # loads msgspec, unlike --help

    if isinstance(error, OutputError):
        return WRONG_USE, _sentence(str(error))
    if isinstance(error, WorkFailed | StoreError):
        return FAILED, _sentence(str(error))
    aborted = error.__cause__ if isinstance(error, click.Abort) else error
    if code := getattr(aborted, "exit_code", 0) if isinstance(aborted, KeyboardInterrupt) else 0:
        return int(code), f"{aborted}; run the same command again to resume."
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return FAILED, "interrupted; run the same command again."
    from outvote.loading import user_line

    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if where := user_line(error):
        what = f"{what.rstrip('.')} ({where})"
    return FAILED, f"{_sentence(what)} Add --debug to see where."


class LazyGroup(VerbGroup):
    """A group of verbs that imports a verb when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the verbs."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        del ctx
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"outvote.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


HELP = """Byzantine-robust federated learning.

\b
outvote demo                       see robust rules at work, in a minute or two
outvote run CONFIG.toml            simulate federations, resumed where they stopped
outvote new DIR                    a small project with a rule, an attack and a model of your own
outvote bench SUITE                the paper's tables and figures, or a suite of your own
outvote table RUNS --paper         tables, with the paper's numbers; also plot, report, export
outvote watch RUNS                 the report in a browser, while runs go on
outvote verify RUNS                check every file of every run; run and bench repair them
outvote compare A B                paired differences between two sets of runs
outvote audit FOLDER               who looks suspicious, in a simulation or a server's log
outvote aggregate updates          the files of many clients become one update
outvote list rules                 all rules; also attacks, models, datasets, suites, runs
outvote show 'gas(multi-krum)'     what a rule does and tolerates; also attacks, models, suites
outvote stress                     every attack against every rule, in seconds
outvote VERB --help                more on a verb

Exit codes: 0 fine, 1 the work failed, 2 you must change something; 130 or 143: stopped by Ctrl-C
or SIGTERM and saved; run the same command again to resume. With --json, a failure is one line of
JSON on stderr: {"error": "...", "code": 2}.
"""


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings=CONTEXT, help=HELP)
@click.version_option(outvote.__version__, prog_name="outvote", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def program(ctx: click.Context) -> None:
    """Print the help if no verb is given."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _sentence(message: str) -> str:
    message = message.strip()
    return message if message.endswith((".", "?", "!")) else f"{message}."


@contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    """Print each warning of outvote once, as one line on stderr."""
    printed = set()
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if not issubclass(category, OutvoteWarning):
            usual(message, category, *rest)
        elif str(message) not in printed:
            printed.add(str(message))
            print_message(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", OutvoteWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _accept_any_text() -> None:
    """Let any file name be printed, whatever the encoding of the terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
