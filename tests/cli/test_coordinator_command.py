"""`ddl coordinator start`, `ddl stop`, `ddl export`: what is wrong is said in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddl_cli import app
from tests.coordinating import write_run

NOWHERE = "redis://127.0.0.1:1/0"
"""A port that nothing listens on."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of `ddl ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["ddl", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return write_run(tmp_path, redis_url=NOWHERE)


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Exit code and the one line on stderr; nothing is on stdout, and no traceback anywhere."""
    code = run(monkeypatch, *arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.count("\n") == 1
    return code, err


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (
            ["--set", "round.qourum=3"],
            2,
            "unknown setting 'round.qourum'. Did you mean 'round.quorum'?",
        ),
        (["--set", "round.quorum"], 2, "--set 'round.quorum' is not KEY=VALUE"),
        (
            ["--set", "round.quorum=many"],
            2,
            "command line: round.quorum = 'many': must be a whole number",
        ),
        (["--set", "round.overlap_steps=9"], 2, "must be less than round.every_steps (4)"),
        (["--store", "s4://bucket"], 2, "unknown scheme 's4'"),
        (["--store", "file:///no/such/folder/anywhere"], 2, "/no/such/folder does not exist"),
        (["--redis", "http://host"], 2, "http"),
        ([], 3, "127.0.0.1:1"),
    ],
    ids=["misspelt", "no value", "no number", "impossible", "scheme", "folder", "redis", "refused"],
)
def test_a_start_that_cannot_work_says_why(
    flags: list[str],
    code: int,
    sentence: str,
    toml: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the setting or address, and the exit code that scripts can tell apart."""
    got, err = refusal(monkeypatch, capsys, "coordinator", "start", str(toml), *flags)
    assert (got, sentence in err) == (code, True), err


def test_a_settings_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, and how to get one."""
    missing = tmp_path / "run.toml"
    code, err = refusal(monkeypatch, capsys, "coordinator", "start", str(missing))
    assert code == 2
    assert f"{missing} does not exist. `ddl init` writes one" in err


def test_a_password_is_in_no_message(
    toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither that of an address in a flag nor that of one in the environment."""
    address = "redis://user:hunter2@127.0.0.1:1/0"
    _, err = refusal(monkeypatch, capsys, "coordinator", "start", str(toml), "--redis", address)
    assert "hunter2" not in err
    monkeypatch.setenv("DDL_REDIS", address)
    _, err = refusal(monkeypatch, capsys, "coordinator", "start", str(toml))
    assert "hunter2" not in err


def test_an_export_of_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store's address alone is enough to tell."""
    (tmp_path / "store").mkdir()
    address = (tmp_path / "store" / "nobody").as_uri()
    _, err = refusal(monkeypatch, capsys, "export", address, "--out", str(tmp_path))
    assert "no run 'nobody'" in err


def test_a_stop_without_a_redis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = refusal(monkeypatch, capsys, "stop", "demo", "--redis", NOWHERE)
    assert code == 3
    assert "127.0.0.1:1" in err
