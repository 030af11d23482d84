"""The command line: one file per verb, each loaded when it is needed."""

from outvote.cli.app import main

__all__ = ["main"]
