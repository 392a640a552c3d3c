"""The command as a whole: version, help, exit codes, and how an error is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

import ddl
import ddl.errors
from ddl.errors import ConfigError, DdlError, StoreUnavailableError, TrainingError
from ddl_cli import app
from ddl_cli.exits import EXPLAINED, Exit, exit_code


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of `ddl ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["ddl", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command `fail` whose setting cannot work."""

    def fail() -> None:
        raise ConfigError("round.quorum = 0: must be at least 1", hint="Use 1 [or more]")

    registered = list(app.app.registered_commands)
    app.app.command("fail")(fail)
    yield
    app.app.registered_commands[:] = registered


@pytest.mark.parametrize(
    ("command", "given", "right"),
    [
        ("export", "--version", "--at"),
        ("evaluate", "--to", "--at"),
        ("fork", "--version", "--at"),
        ("rollback", "--version", "--to"),
        ("rollback", "--at", "--to"),
    ],
)
def test_an_option_for_a_version_is_answered_by_that_of_the_command(
    command: str,
    given: str,
    right: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not by what is spelt alike."""
    assert run(monkeypatch, command, "demo", given, "12") == Exit.USAGE
    assert f"No such option: {given} (Possible options: {right})" in capsys.readouterr().err


ERRORS = [
    kind
    for kind in vars(ddl.errors).values()
    if isinstance(kind, type)
    and issubclass(kind, DdlError)
    and kind is not DdlError
    and kind is not TrainingError  # what the user's own code raised is the one plain failure
]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_an_exit_code(error: type[DdlError]) -> None:
    """No error of ours ends as a bare `1`, which means that something broke; the user's code may."""
    code = exit_code(error("x"))
    assert code != Exit.OK
    assert (code == Exit.FAILED) == (error is TrainingError)


def test_the_codes_that_scripts_rely_on() -> None:
    """Written out, because changing one breaks somebody's supervisor."""
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(StoreUnavailableError("x")) == 3
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "REFUSED": 4,
        "LEASE_LOST": 5,
        "INTEGRITY": 6,
        "START_AGAIN": 75,
        "INTERRUPTED": 130,
    }


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stdout, the version of the library."""
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"ddl {ddl.__version__}\n"


def test_an_unknown_command_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, on stderr."""
    assert run(monkeypatch, "lerner") == 2
    told = capsys.readouterr()
    assert "lerner" in told.err
    assert told.out == ""


@pytest.mark.usefixtures("failing")
def test_an_error_is_one_sentence_and_a_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, as it was written, without a traceback."""
    assert run(monkeypatch, "fail") == 2
    told = capsys.readouterr()
    assert told.err == "ddl: config: round.quorum = 0: must be at least 1. Use 1 [or more]\n"
    assert told.out == ""


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("words", [("--debug", "fail"), ("fail", "--debug")], ids=" ".join)
def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """With `--debug` before the command, or behind it; the sentence still comes last."""
    assert run(monkeypatch, *words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("ddl: config: round.quorum")


def test_exit_codes_explain_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a meaning and something to do; one that is no code of ours is a mistake."""
    assert set(EXPLAINED) == set(Exit)
    assert run(monkeypatch, "exits", "75") == 0
    assert capsys.readouterr().out == (
        " 75  drained or offline for too long; nothing is wrong with it\n"
        "     To do: start it again: it takes up what it had.\n"
    )
    assert run(monkeypatch, "exits") == 0
    assert capsys.readouterr().out.count("To do: ") == len(Exit)
    assert run(monkeypatch, "exits", "137") == 2
    assert "137 is SIGKILL" in capsys.readouterr().err


def test_exit_codes_and_errors_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a supervisor's script: all, a code with its errors, or an error with its code."""

    def document(*words: str) -> tuple[list[int], list[str]]:
        assert run(monkeypatch, "exits", *words, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["schema"] == 1
        return [row["code"] for row in told["exits"]], [row["name"] for row in told["errors"]]

    codes, names = document()
    assert codes == [code.value for code in Exit]
    assert {kind.code for kind in ERRORS} <= set(names)
    assert document("75") == ([75], [])
    assert document("store-unavailable") == ([3], ["store-unavailable"])
    unreachable = document("3")
    assert unreachable[0] == [3]
    assert "store-unavailable" in unreachable[1]
    assert "config" not in unreachable[1]
    assert run(monkeypatch, "exits", "137", "--json") == 2


def test_every_error_has_a_name_that_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands before a message leads to its meaning and exit code; the list has them all."""
    names = [*(kind.code for kind in ERRORS), TrainingError.code, DdlError.code]
    assert len(set(names)) == len(names)
    assert run(monkeypatch, "exits") == 0
    told = capsys.readouterr().out
    assert all(f"\n     {name}: " in told for name in names)
    assert run(monkeypatch, "exits", "store-unavailable") == 0
    told = capsys.readouterr().out
    assert told.startswith("store-unavailable: The store cannot be reached")
    assert "goes on by itself" in told
    assert "\n  3  Redis or the store" in told
    assert run(monkeypatch, "exits", "store-unavailabel") == 2
    assert "Did you mean store-unavailable?" in capsys.readouterr().err
