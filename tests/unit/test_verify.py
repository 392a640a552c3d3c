"""Verifying a log with all kinds of records, written here without a coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddl.config import KeepSettings, Settings
from ddl.coordinator.history import History
from ddl.coordinator.verify import Verification, verify_run
from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    FragmentStep,
    Head,
    Layout,
    ObjectRef,
    RunRecord,
    TensorSpec,
)
from ddl.store.local import LocalStore

KEYS = ObjectKeys("tiny")
KEEP = KeepSettings(versions=2, every=4)


class Writer:
    """Writes a run of one fragment, record by record; an object holds its own name."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.history = History(store, "tiny")
        spec = TensorSpec(
            name="w", shape=(2,), dtype="float32", kind="parameter", rule="mean", fragment=0
        )
        run = RunRecord(
            ddl_version="0",
            name="tiny",
            lineage="l" * 32,
            created_at=0.0,
            settings=Settings(keep=KEEP),
            layout=Layout(num_fragments=1, tensors=(spec,)),
            task_digest="t",
            fragments=(self.object("tiny/v0"),),
        )
        store.put(KEYS.run_record, wire.canonical(run), mode="create")
        self.log = LogState.genesis(run)

    def object(self, key: str) -> ObjectRef:
        self.store.put(key, key.encode())
        return ObjectRef(key=key, bytes=len(key), sha256=wire.digest(key.encode()))

    def write(self, kind: Any, **more: Any) -> None:
        record = self.log.next_record(
            kind, epoch=1, holder="me", written_at=1.0, ddl_version="0", **more
        )
        entry = self.history.write(record)
        self.log.apply(entry.record, entry.digest)
        if self.log.seq % CHECKPOINT_EVERY == 0:
            self.history.write_checkpoint(self.log.seq, wire.canonical(self.log))

    def step(self, num: int = 1) -> None:
        for _ in range(num):
            version = self.log.fragments[0].version
            self.write(
                "step",
                fragments=[
                    FragmentStep(
                        fragment=0,
                        version_before=version,
                        version_after=version + 1,
                        published=self.object(f"tiny/v{self.log.global_version + 1}"),
                    )
                ],
            )

    def roll_back_to(self, published: ObjectRef) -> None:
        version = self.log.fragments[0].version
        moved = FragmentStep(
            fragment=0,
            version_before=version,
            version_after=version + 1,
            published=published,
        )
        self.write("rollback", fragments=[moved], back_to=5)

    def lose(self, *versions: int) -> list[str]:
        """Delete what was published; the keys of what is then called missing."""
        self.store.delete([f"tiny/v{version}" for version in versions])
        return [row.where for row in self.verify().differences]

    def verify(self, **more: Any) -> Verification:
        return verify_run(self.store, "tiny", **more)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(LocalStore(tmp_path / "store"))


def test_checkpoints_are_those_of_their_records(writer: Writer) -> None:
    """Two of them, in a log with settings and a stop."""
    writer.step(CHECKPOINT_EVERY)
    writer.write("settings", changes={"outer.lr": 0.5}, who="me")
    writer.step(CHECKPOINT_EVERY)
    writer.write("stop", who="me")
    ticks: list[tuple[str, int, int]] = []
    found = writer.verify(tick=lambda *tick: ticks.append(tick))
    assert (found.num_differences, found.num_checkpoints) == (0, 2)
    assert found.num_records == 2 * CHECKPOINT_EVERY + 2
    assert found.global_version == 2 * CHECKPOINT_EVERY
    assert ticks[-1] == ("objects", found.num_objects, found.num_objects)


def test_a_rollback_needs_the_objects_of_the_healthy_version_again(writer: Writer) -> None:
    """They are promised as long as the versions after it stand on them."""
    writer.step(5)
    healthy = writer.log.fragments[0].published
    writer.step(2)
    writer.roll_back_to(healthy)
    assert writer.lose(6) == []  # of the line that was given up, and neither newest nor a 4th
    assert writer.lose(5) == ["tiny/v5"]


def test_keep_settings_are_followed_through_their_changes(writer: Writer) -> None:
    """What a time of keeping one version let go is not missed afterwards."""
    writer.step(3)
    writer.write("settings", changes={"keep.versions": 1, "keep.every": 0}, who="me")
    writer.step(3)
    writer.write("settings", changes={"keep.versions": 100}, who="me")
    writer.step(3)
    found = writer.verify()
    assert (found.num_differences, found.num_objects) == (0, 10)
    assert writer.lose(0, 1, 2, 3, 4, 5) == []
    assert writer.verify().num_gone == 6
    assert writer.lose(6, 7) == ["tiny/v6", "tiny/v7"]


def test_a_run_may_go_on_meanwhile(writer: Writer) -> None:
    """What it lets go while we look is not missed; what it still needs is."""
    writer.step(5)

    def go_on(what: str, done: int, whole: int) -> None:
        if (what, done) == ("records", whole):
            writer.step(3)
            writer.store.delete(["tiny/v5", "tiny/v6"])

    found = writer.verify(tick=go_on)
    assert (found.num_differences, found.num_gone) == (0, 1)
    assert writer.lose(7) == ["tiny/v7"]


def test_redis_is_a_witness_of_its_own_run_only(writer: Writer) -> None:
    """A head of this lineage must be in the log; one of another tells nothing."""
    writer.step(2)
    head = writer.log.head()
    assert writer.verify(head=head).num_differences == 0

    def differences(head: Head) -> list[str]:
        return [row.where for row in writer.verify(head=head).differences]

    other = msgspec.structs.replace(head, digest="0" * 64)
    assert differences(other) == [KEYS.commit(2)]
    assert differences(msgspec.structs.replace(other, lineage="m" * 32)) == []
    assert differences(msgspec.structs.replace(head, seq=5)) == [KEYS.commit(5)]


def test_what_is_no_record_is_told(writer: Writer) -> None:
    """Among the records, and among the checkpoints."""
    writer.step()
    for key in (f"{KEYS.commits}copy-of-1.json", f"{KEYS.checkpoints}note.txt"):
        writer.store.put(key, b"x")
    assert [row.what for row in writer.verify().differences] == [
        "it is not the name of a checkpoint",
        "it is not the name of a log record",
    ]


def test_a_record_that_is_no_json_ends_what_can_be_judged(writer: Writer) -> None:
    """It is named, and how many records stand behind it."""
    writer.step(4)
    writer.store.put(KEYS.commit(2), b"<html>")
    first, second = writer.verify().differences
    assert first.where == second.where == KEYS.commit(2)
    assert "cannot be read" in first.what
    assert second.what == "records 3 to 4 cannot be judged without it"


def test_only_the_first_differences_are_told_one_by_one(writer: Writer) -> None:
    """A whole bucket that is gone does not fill the screen."""
    writer.write("settings", changes={"keep.versions": 1000}, who="me")
    writer.step(50)
    writer.lose(*range(1, 51))
    found = writer.verify()
    assert found.num_differences == 50
    assert len(found.differences) == 20
