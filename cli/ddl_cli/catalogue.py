"""Which commands there are, for whom, and how each is called.

`ddl --help` is drawn from this table, and only the command that is run is imported: help and status
come at once, whatever other commands need.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer.main
from typer.core import TyperGroup


class Entry(NamedTuple):
    """One command.

    Attributes:
        where: MODULE:NAME below `ddl_cli.commands`, of its function, or of the Typer app it is in.
        example: how it is called; its words up to the first argument name it.
        summary: what it does, in a few words.
    """

    where: str
    example: str
    summary: str


SECTIONS: Final[dict[str, tuple[Entry, ...]]] = {
    "To begin with": (
        Entry("demo:demo", "ddl demo", "see it work on this machine"),
        Entry("init:init", "ddl init", "write a run.toml and a task.py"),
        Entry("doctor:doctor", "ddl doctor run.toml", "will it work on this machine?"),
        Entry("plan:plan", "ddl plan run.toml --task task.py", "bytes, memory, time, price"),
        Entry("simulate:simulate", "ddl simulate --preset lab", "goodput where machines fail"),
        Entry("chaos:chaos", "ddl chaos", "real processes dying on this machine"),
        Entry("config:app", "ddl config show RUN", "all settings, and their origin"),
    ),
    "To take part": (
        Entry("coordinator:app", "ddl coordinator start run.toml", "own the model of a run"),
        Entry("learner:app", "ddl learner join RUN --task task.py", "train, as one of many"),
    ),
    "To see": (
        Entry("status:status", "ddl status RUN", "live view: who, what, why not"),
        Entry("explain:explain", "ddl explain RUN version 40", "how something came about"),
        Entry("events:events", "ddl events RUN --follow", "what happened, and happens"),
        Entry("report:report", "ddl report RUN --out DIR", "a run on one page, with plots"),
        Entry("runs:runs", "ddl runs", "which runs there are"),
        Entry("exits:exits", "ddl exits store-denied", "what exit codes and errors mean"),
    ),
    "To act on a run": (
        Entry("steer:pause", "ddl pause RUN", "stand still"),
        Entry("steer:resume", "ddl resume RUN", "go on"),
        Entry("stop:stop", "ddl stop RUN", "end it"),
        Entry("steer:set_", "ddl set RUN round.quorum=3", "change settings"),
        Entry("steer:rollback", "ddl rollback RUN --to 40", "go back to an earlier version"),
        Entry("learner:app", "ddl learner drain RUN ID", "have one hand in and leave"),
        Entry("learner:app", "ddl learner kick RUN ID", "send one away"),
        Entry("learner:app", "ddl learner allow RUN ID", "let it in again"),
    ),
    "To use what was trained": (
        Entry("export:export", "ddl export RUN --out DIR", "one safetensors file"),
        Entry("evaluate:evaluate", "ddl evaluate RUN --task task.py", "measure versions"),
        Entry("fork:fork", "ddl fork RUN --at 40 --as NAME", "a new run from an old version"),
        Entry("verify:verify", "ddl verify RUN", "is all as the log says?"),
        Entry("gc:gc", "ddl gc RUN", "remove what is not kept"),
        Entry("rm:rm", "ddl rm RUN", "delete a run for good"),
    ),
}
ENTRIES: Final = tuple(entry for section in SECTIONS.values() for entry in section)

EXAMPLE_WIDTH: Final = max(len(entry.example) for entry in ENTRIES)
"""Columns for examples in the list of all commands."""

VERSION_OPTIONS: Final = frozenset({"--at", "--to", "--version"})
"""A global version, to one command or another."""


class Commands(TyperGroup):
    """The commands of the table, beside those that an app has been given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _OnDemand({**{_name(entry): entry for entry in ENTRIES}, **self.commands})

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # typer brings a click of its own along, or not: see the fields
            if getattr(error, "option_name", "") in VERSION_OPTIONS:
                _name_the_right_one(error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                rows = [(f"{e.example:<{EXAMPLE_WIDTH}}", e.summary) for e in entries]
                formatter.write_dl(rows, col_max=EXAMPLE_WIDTH, col_spacing=2)
        formatter.write_paragraph()
        formatter.write_text(
            "RUN is a name, redis://HOST/0?run=NAME, a run.toml, or the run's folder in a store. "
            "`ddl COMMAND --help` tells more."
        )


class _OnDemand(UserDict[str, Any]):
    """Commands by name; one that stands as its entry is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if isinstance(found, Entry):
            found = self.data[name] = _load(name, found)
        return found


def _name_the_right_one(error: Any) -> None:
    """Have an option that a command does not know answered by the one of the same meaning."""
    there = {name for parameter in error.ctx.command.params for name in parameter.opts}
    error.possibilities = sorted(there & VERSION_OPTIONS) or error.possibilities


def _name(entry: Entry) -> str:
    return entry.example.split()[1]


def _load(name: str, entry: Entry) -> Any:
    module, _, attribute = entry.where.partition(":")
    made = getattr(import_module(f"ddl_cli.commands.{module}"), attribute)
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(made, typer.Typer):
        parent.add_typer(made, name=name)
    else:
        parent.command(name)(made)
    command = typer.main.get_group(parent).commands[name]
    for other in ENTRIES:
        if _name(other) == name:
            example = f"Example: {other.example}"
            _named(command, other.example.split()[2:]).epilog = example
            command.epilog = command.epilog or example  # a group's is its first command's
    return command


def _named(command: Any, words: list[str]) -> Any:
    """The command below `command` that `words` begin with."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command
