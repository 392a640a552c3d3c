"""Commands that are printed to be copied."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddl_cli import typed


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of an environment below the current folder, with this process's Python."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python3", "ddl"):
        (programs / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(programs / "python3"))
    monkeypatch.setenv("PATH", "/nowhere")
    return programs


def test_programs_that_the_shell_does_not_find_are_called_by_path(environment: Path) -> None:
    """README's first command installs into .venv and changes no PATH."""
    assert typed.program("ddl") == ".venv/bin/ddl"
    assert typed.python() == ".venv/bin/python3"


def test_programs_that_the_shell_finds_are_called_by_name(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it finds those very ones, and not those of another environment."""
    monkeypatch.setenv("PATH", str(environment))
    assert (typed.program("ddl"), typed.python()) == ("ddl", "python3")
    other = environment.parent / "other"
    other.mkdir()
    (other / "ddl").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{other}:{environment}")
    assert typed.program("ddl") == ".venv/bin/ddl"


def test_a_program_is_called_from_the_folder_where_it_will_be_typed(
    environment: Path, tmp_path: Path
) -> None:
    """`ddl init DIR` tells what to do in DIR."""
    assert typed.program("ddl", here=tmp_path / "run") == str(environment / "ddl")


def test_a_program_that_is_kept_elsewhere_is_called_by_name(environment: Path) -> None:
    """As after `pip install --user`."""
    (environment / "ddl").unlink()
    assert typed.program("ddl") == "ddl"


def test_places_are_short_and_quoted(environment: Path, tmp_path: Path) -> None:
    """From the current folder on if they are below it; a blank does not make two words of one."""
    assert typed.place(Path("a/b")) == "a/b"
    assert typed.place(tmp_path / "a b") == "'a b'"
    assert typed.place(tmp_path.parent) == str(tmp_path.parent)


def test_all_that_is_below_a_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"123")
    (tmp_path / "below" / "two").write_bytes(b"45")
    assert typed.bytes_of(tmp_path) == 5
