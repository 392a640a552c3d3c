"""`ddl report` without what it draws with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands import Ddl


def test_a_report_without_matplotlib_says_what_to_install(
    ddl: Ddl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before anything is read, and nothing is written."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = ddl("report", (tmp_path / "store" / "run").as_uri(), "--out", str(tmp_path / "page"))
    assert told.code == 2
    assert told.err.startswith("ddl: config: matplotlib is not installed: a report needs it.")
    assert "decoupled-diloco[plot]" in told.err
    assert not (tmp_path / "page").exists()
