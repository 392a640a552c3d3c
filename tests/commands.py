"""`ddl` commands run within the test's process: as fast as functions, and as users call them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ddl_cli import app


class Outcome(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


Ddl = Callable[..., Outcome]


@pytest.fixture
def ddl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ddl:
    """Runs `ddl ARGUMENTS` in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ddl", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        told = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, told.out, told.err)

    return run
