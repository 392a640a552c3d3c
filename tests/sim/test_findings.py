"""What the swarm has found, each as the shortest story that leads to it."""

from __future__ import annotations

from typing import TypeVar

import pytest

from ddl.coordinator.mirror import Mirror
from ddl.core import events as e
from ddl.core.log import LogState
from ddl.core.machine import Machine
from ddl.protocol.records import LogRecord, Receipt, Request
from ddl.protocol.wire import canonical, digest
from ddl.sim.clockwork import Timeline
from ddl.sim.redis import CoordinatorSide, Redis
from ddl.sim.world import World
from tests.core_records import apply, genesis, handin, step_record

T = TypeVar("T")


@pytest.fixture
def world() -> World:
    """Only its run is of interest here."""
    return World(0)


def test_a_record_does_not_hide_what_an_old_copy_of_redis_lacks(world: World) -> None:
    """A receipt is shown, Redis fails over to a copy from before it, and the next record comes at
    once. The mirror sees the loss, and shows the receipt again: its learner waits for it."""
    timeline = Timeline()
    redis = Redis(timeline.monotonic)
    log = LogState.genesis(world.run)
    mirror = Mirror(
        CoordinatorSide(redis), run=world.run, log=log, epoch=1, store_url="memory:", clock=timeline
    )
    mirror.flush()
    copy = redis.tables.copy()

    def commit(*receipts: Receipt) -> None:
        record = log.next_record(
            "receipts", epoch=1, holder="one", written_at=0.0, ddl_version="0", receipts=receipts
        )
        log.apply(record, digest(canonical(record)))
        mirror.note_record(e.Show(log.head(), (), receipts))
        mirror.flush()

    lost = Receipt(
        learner="ada", incarnation=1, fragment=0, seq=1, fate="expired", steps=1, tokens=1
    )
    commit(lost)
    redis.fail_over(copy)
    commit()
    timeline.run(timeline.now + 1.0)
    assert mirror.notice_loss(CoordinatorSide(redis).poll(), asked_at=timeline.now)
    mirror.flush()
    assert list(redis.tables.receipts.values()) == [lost]


@pytest.mark.parametrize("read", [0, 1])
def test_a_run_that_stands_still_is_followed_to_the_end_of_its_log(world: World, read: int) -> None:
    """A coordinator finds a record of its predecessor where its own was to go, or has read it at its
    start: the run is paused. It has nothing more to write then, and still has to look for the record
    after it, which may have come late: the run goes on (seed 705331)."""
    predecessor = LogState.genesis(world.run)

    def word(state: str, request: str) -> e.RecordTaken:
        record = predecessor.next_record(
            "settings",
            epoch=1,
            holder="one",
            written_at=0.0,
            ddl_version="0",
            state=state,
            request=request,
        )
        written = e.RecordTaken(record, digest(canonical(record)))
        predecessor.apply(record, written.digest)
        return written

    words = [word("paused", "a"), word("running", "b")]
    log = LogState.genesis(world.run)
    for taken in words[:read]:
        log.apply(taken.record, taken.digest)
    machine = Machine(run="sim", log=log, epoch=2, holder="two", ddl_version="0")
    commands = machine.step(e.Requested(Request(id="a", kind="pause", who="me")), 0.0)
    for taken in words[read:]:
        (ours,) = [c.record for c in commands if isinstance(c, e.WriteRecord)]
        assert ours.seq == taken.record.seq
        commands = machine.step(taken, 0.0)
    assert (log.seq, log.state) == (2, "running")
    assert not [c for c in commands if isinstance(c, e.WriteRecord) and c.record.request]


def successor(*records: LogRecord) -> tuple[Machine, list[e.RecordTaken]]:
    """A coordinator that has read none of its predecessor's records, and what it will find."""
    machine = Machine(run="demo", log=genesis(), epoch=2, holder="c2", ddl_version="0")
    return machine, [e.RecordTaken(record, digest(canonical(record))) for record in records]


def the(kind: type[T], commands: list[e.Command]) -> T:
    """The only command of a kind."""
    (found,) = [command for command in commands if isinstance(command, kind)]
    return found


def test_what_builds_on_a_record_that_is_not_read_yet_waits_for_it() -> None:
    """A predecessor's last record comes into the log after its successor has read it. Learners read
    it there, adopt, get their receipts, and hand in what comes next: both were lost, one refused for
    a version that nobody knew, one ignored for a seq that came too early (seed 862)."""
    there = genesis()
    record = step_record(there)
    apply(there, record)
    machine, (taken,) = successor(record)
    adopted = handin(there, "b", 1)
    second = handin(there, "a", 0)
    commands = machine.step(e.Announced(adopted), 0.0)
    assert the(e.WriteRecord, commands).record.seq == record.seq
    assert machine.step(e.Announced(second), 0.0) == []
    commands = machine.step(taken, 0.0)
    assert [c.handin for c in commands if isinstance(c, e.Fetch)] == [adopted, second]
    assert not machine.inbox.unlogged


def test_what_builds_on_a_record_that_never_was_is_refused() -> None:
    """Once a record of the successor's own stands at the end of the log, nothing can come before it:
    a version that is not known then is none."""
    there = genesis()
    apply(there, step_record(there))
    machine, _ = successor()
    lying = handin(there, "b", 1)
    record = the(e.WriteRecord, machine.step(e.Announced(lying), 0.0)).record
    machine.step(e.RecordWritten(record, digest(canonical(record))), 0.0)
    (receipt,) = machine.inbox.unlogged.values()
    assert (receipt.id, receipt.fate) == (lying.id, "refused")
    assert receipt.reason == "holds version 1 of fragment 0, which is unknown or long gone"
