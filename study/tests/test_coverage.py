"""The commands on the page of what the paper has can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from outvote.cli import list as listing
from outvote.cli.app import program
from outvote.cli.plot import KINDS
from outvote.experiment.choosing import Choice, choose
from outvote.experiment.plan import plan_parts
from outvote.suites.suite import read_suite, suite_names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "study" / "results" / "coverage.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`(outvote [^`]+)`", PAGE)))


def test_every_suite_of_the_paper_has_a_command():
    wanted = {name for name in suite_names() if name.startswith(("table", "figure"))}
    assert {name for name in wanted if f"outvote bench {name} " in PAGE} == wanted


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_can_be_typed(text):
    words = shlex.split(text)[1:]
    command, names = program, []
    while isinstance(command, click.Group):
        names.append(words.pop(0))
        command = command.get_command(click.Context(command), names[-1])
        assert command is not None, names
    options, _, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    if names == ["bench"]:
        plan_parts(_chosen(options))
    if names == ["list"]:
        assert options["kind"] in listing.KINDS
    if names == ["plot"]:
        assert options["kind"] in KINDS
    if names == ["run"]:
        assert (ROOT / words[0]).is_file()


def _chosen(options):
    name = options["suite"]
    suite = read_suite(str(ROOT / name) if name.endswith(".toml") else name)
    parts, seeds = tuple(options.get("parts") or ()), options.get("seeds")
    return choose(suite, Choice(parts=parts, num_seeds=seeds and int(seeds)))
