"""What the steps of compressed publication are added to, on local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl.errors import StoreFullError
from ddl.learner.bases import Bases


def test_each_fragment_has_the_version_kept_last(tmp_path: Path) -> None:
    """Longer or shorter than the one before, and apart from other fragments."""
    bases = Bases(tmp_path)
    assert bases.read(0) is None
    for data in (b"first", b"a longer second one", b"3rd"):
        bases.keep(0, data)
        bases.keep(7, data[::-1])
        assert bases.read(0) == bytearray(data)
        assert bases.read(7) == bytearray(data[::-1])
    bases.close()
    assert bases.read(0) is None


def test_nothing_is_left_behind_even_by_a_killed_process(tmp_path: Path) -> None:
    """The files have no names, so they are gone with the process that holds them."""
    bases = Bases(tmp_path)
    bases.keep(0, b"data")
    assert list(tmp_path.iterdir()) == []
    bases.close()


def test_a_version_that_cannot_be_kept_is_not_read_back(tmp_path: Path) -> None:
    """Neither is the one before it: it would be the wrong base."""
    bases = Bases(tmp_path)
    bases.keep(0, b"version 1")
    folder = tmp_path / "no such folder"
    bases._folder = folder
    with pytest.raises(StoreFullError, match=r"fragment 1 .*whole"):
        bases.keep(1, b"another fragment")
    assert bases.read(1) is None
    bases._files[0].close()
    bases._files[0] = Path("/dev/full").open("w+b")  # noqa: SIM115 - closed by `close`
    with pytest.raises(StoreFullError, match="No space left"):
        bases.keep(0, b"version 2")
    assert bases.read(0) is None
    bases.close()
