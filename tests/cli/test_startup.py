"""What every command brings in, and its help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ddl_cli.app import app
from ddl_cli.catalogue import ENTRIES, Entry


def walk(node: object, words: list[str]) -> Iterator[list[str]]:
    """Every command and group below `node`, as the words one types."""
    yield words
    for name, child in getattr(node, "commands", {}).items():
        yield from walk(child, [*words, name])


COMMANDS = list(walk(typer.main.get_command(app), []))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help(words: list[str]) -> None:
    """With -h as with --help: exit code 0, a sentence on what it does, its options and an example; in
    80 columns, and in letters that every terminal has."""
    for option in ("-h", "--help"):
        shown = CliRunner().invoke(app, [*words, option], terminal_width=80)
        assert shown.exit_code == 0
        assert shown.output.isascii()
        assert "range>" not in shown.output, "a value is called N, X or what it is"
        assert max(map(len, shown.output.splitlines())) <= 80
        assert not words or f"Example: ddl {words[0]}" in shown.output
        assert "Usage" in shown.output
        described = [line for line in shown.output.splitlines() if line.strip().endswith(".")]
        assert described


def test_help_lists_every_command_by_an_example() -> None:
    """Each one that there is, below whom it is for; on 80 columns each takes one line."""
    lines = CliRunner().invoke(app, ["--help"], terminal_width=80).output.splitlines()
    for words in COMMANDS:
        if words and not any(
            longer[: len(words)] == words for longer in COMMANDS if longer > words
        ):
            assert any(line.startswith(f"  ddl {' '.join(words)}") for line in lines), words
    for entry in ENTRIES:
        assert any(
            re.fullmatch(f"  {re.escape(entry.example)}  +{re.escape(entry.summary)}", line)
            for line in lines
        )


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.example)
def test_examples_can_be_typed(entry: Entry) -> None:
    """There is such a command with these options, and its own help shows the example."""
    node: Any = typer.main.get_command(app)
    words = entry.example.split()[1:]
    while hasattr(node, "commands"):
        node = node.commands[words.pop(0)]
    node.make_context(node.name, words)
    assert node.epilog == f"Example: {entry.example}"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ddl sta", ["status"]),
        ("ddl learner d", ["drain"]),
        ("ddl events --s", ["--since", "--store"]),
    ],
)
def test_a_shell_completes_what_is_typed(typed: str, offered: list[str]) -> None:
    """Commands, those of a group, and options, though each is imported only when it is asked for."""
    asked = {
        "_DDL_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    told = CliRunner().invoke(app, [], prog_name="ddl", env=asked)
    assert (told.exit_code, told.stdout.split()) == (0, offered)


def modules_after(*arguments: str) -> set[str]:
    """All modules that `ddl ARGUMENTS` imports, whatever it ends with."""
    program = (
        "import sys, ddl_cli.app\n"
        f"sys.argv = ['ddl', *{list(arguments)!r}]\n"
        "try:\n    ddl_cli.app.main()\n"
        "finally:\n    print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    modules = set(ended.stderr.splitlines())
    assert "ddl_cli.app" in modules, ended.stderr
    return modules


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_brings_in_neither_torch_nor_a_client(words: list[str]) -> None:
    """torch alone would take two seconds; help needs no connection either."""
    assert modules_after(*words, "--help").isdisjoint({"torch", "redis", "boto3", "numpy"})


def test_status_never_brings_in_torch(
    published: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From Redis and from a store alike; boto3 only for s3://."""
    assert modules_after("status", published, "--once").isdisjoint({"torch", "boto3", "numpy"})
    store = tmp_path_factory.mktemp("store").as_uri()
    assert modules_after("status", f"{store}/demo").isdisjoint({"torch", "boto3", "numpy"})
