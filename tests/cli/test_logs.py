"""In what form a log is written."""

from __future__ import annotations

import io
import sys

import pytest

from ddl_cli.logs import open_log


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "as_json", "begin"),
    [
        (Screen(), {}, False, "\033["),
        (Screen(), {"NO_COLOR": "1"}, False, ""),
        (Screen(), {"TERM": "dumb"}, False, ""),
        (Screen(), {}, True, "{"),
        (io.StringIO(), {}, False, ""),
        (io.StringIO(), {}, True, "{"),
    ],
)
def test_colours_are_for_terminals(
    stream: io.StringIO,
    environment: dict[str, str],
    as_json: bool,
    begin: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file, a pipe, a terminal without them and whoever does not want them get plain lines."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", stream)
    open_log(as_json=as_json).tell("a.b", "text")
    line = stream.getvalue()
    assert line.startswith(begin)
    assert ("\033[" in line) == (begin == "\033[")
