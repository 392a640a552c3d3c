from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ddl.errors import DdlError, StoreFullError
from ddl.learner.spool import Spool
from ddl.protocol.records import NO_PAYLOAD, Amount, Handin


def spool(root: Path, learner: str = "a") -> Spool:
    return Spool(root, run="demo", lineage="0123456789abcdef", learner=learner)


def handin(seq: int, *, fragment: int = 0, incarnation: int = 1) -> Handin:
    return Handin(
        learner="a",
        incarnation=incarnation,
        fragment=fragment,
        seq=seq,
        lineage="0123456789abcdef",
        line=0,
        launch=1,
        oldest_base=0,
        held=(0,),
        held_digest="",
        steps=1,
        tokens=1,
        total=Amount(steps=1, tokens=1),
        codec="fp32/1",
        payload=NO_PAYLOAD,
    )


def test_what_is_kept_waits_until_it_is_dropped(tmp_path: Path) -> None:
    """Another process under the same id finds it, payload and announcement."""
    kept = handin(3)
    spool(tmp_path).keep(kept, memoryview(b"payload"))
    again = spool(tmp_path)
    assert list(again.waiting()) == [kept]
    assert again.payload(kept.id).read_bytes() == b"payload"
    again.drop(kept.id)
    assert list(spool(tmp_path).waiting()) == []


def test_learners_do_not_see_each_other(tmp_path: Path) -> None:
    """One machine may run several learners of one run."""
    spool(tmp_path).keep(handin(1), memoryview(b"x"))
    assert list(spool(tmp_path, "b").waiting()) == []


def test_oldest_life_comes_first(tmp_path: Path) -> None:
    """In the order of incarnation, fragment and seq: the order in which they were made."""
    rows = [
        handin(2, incarnation=2),
        handin(1, incarnation=1),
        handin(1, fragment=1, incarnation=1),
    ]
    for row in rows:
        spool(tmp_path).keep(row, memoryview(b"x"))
    assert [h.id for h in spool(tmp_path).waiting()] == sorted(h.id for h in rows)


def test_a_payload_without_its_announcement_does_not_count(tmp_path: Path) -> None:
    """A process killed between the two writes leaves nothing to hand in, and no rubbish."""
    one = spool(tmp_path)
    one.payload(handin(1).id).write_bytes(b"half")
    (one.folder / "000001-f0000-00000002.part").write_bytes(b"half")
    assert list(spool(tmp_path).waiting()) == []
    assert list(one.folder.iterdir()) == []


def test_an_announcement_that_cannot_be_read_is_dropped_with_its_payload(tmp_path: Path) -> None:
    """Nobody could ever use it."""
    one = spool(tmp_path)
    one.keep(handin(1), memoryview(b"x"))
    next(one.folder.glob("*.json")).write_bytes(b"{")
    assert list(spool(tmp_path).waiting()) == []
    assert list(one.folder.iterdir()) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload that did not fit is gone, so that others find room."""
    one = spool(tmp_path)

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreFullError, match=r"cannot be spooled.*No space left.*DDL_SPOOL"):
        one.keep(handin(1), memoryview(b"x"))
    assert list(one.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The message says where, and which variable changes it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DdlError, match=r"spool folder .*file.*DDL_SPOOL"):
        spool(tmp_path / "file")
