"""`outvote watch RUNS`: the report in a browser, kept up to date while runs go on."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from outvote.cli.output import print_json, print_message
from outvote.cli.runs import paths_argument, suites_option
from outvote.cli.verb import Verb, WorkFailed, typed_command


@click.command("watch", cls=Verb)
@paths_argument
@suites_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port; 0: any that is free."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser of this machine.")
def command(
    paths: tuple[Path, ...], suites: tuple[str, ...], port: int, opens: bool, as_json: bool
) -> None:
    """Show runs in a browser while they go on; Ctrl-C ends it.

    RUNS are folders of runs, which may still be empty, exports, or the audit log of a server in
    production. The page is that of outvote report, and is loaded again when a file changes. It is
    served on 127.0.0.1 alone, under an address with a secret, and nothing can be changed through
    it. From another machine: ssh -L PORT:127.0.0.1:PORT, and --port PORT.

    \b
    outvote watch runs/table1-cifar10
    outvote watch audit-log --port 8080
    """  # noqa: D301  (click wants the backspace)
    from outvote.report.watch import WatchedPage, WatchServer

    for path in paths:
        if not path.exists():
            raise click.UsageError(f"there is no file or folder {path}; check the path.")
    page = WatchedPage(paths, command=typed_command(), suites=suites, warn=print_message)
    try:
        server = WatchServer(page, port)
    except OSError as error:
        raise WorkFailed(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); give another --port, "
            "or none."
        ) from error
    with server, suppress(KeyboardInterrupt), _ended_by(signal.SIGINT, signal.SIGTERM):
        if as_json:
            print_json({"address": server.address})
        else:
            click.echo(f"{server.address}\nOpen this address in a browser; Ctrl-C ends it.")
        sys.stdout.flush()
        if opens:
            click.launch(server.address)
        server.serve_forever(poll_interval=0.2)


@contextmanager
def _ended_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let signals end the work as Ctrl-C does, also where a shell has it ignored."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
