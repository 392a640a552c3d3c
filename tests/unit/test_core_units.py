"""Finished units in the log: ranges of tickets, folded record by record, none twice."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.core import events as e
from ddl.core.machine import Machine
from ddl.core.units import UnitsInbox, fold, holds, misfit, ranges_of, size, union
from ddl.errors import IntegrityError
from ddl.protocol.records import LogRecord, Request
from ddl.protocol.units import UnitsDone
from ddl.protocol.wire import canonical, digest
from tests.core_records import apply, genesis, other_record, step_record

TICKETS = st.frozensets(st.integers(0, 60), max_size=40)


def done(*tickets: int, plan: str = "p", **repeated: int) -> UnitsDone:
    return UnitsDone(plan=plan, finished=ranges_of(tickets), repeated=repeated)


@given(TICKETS, TICKETS)
def test_ranges_are_sets(some: frozenset[int], others: frozenset[int]) -> None:
    """As few as can be, and with the members, size and union of the sets they stand for."""
    ranges = ranges_of(some)
    assert {t for t in range(62) if holds(ranges, t)} == some
    assert size(ranges) == len(some)
    assert all(end < after for (_, end), (after, _) in pairwise(ranges))
    assert union(ranges, ranges_of(others)) == ranges_of(some | others)


@given(st.lists(TICKETS, max_size=6))
def test_what_is_unlogged_is_logged_once(readings: list[frozenset[int]]) -> None:
    """Whatever Redis names, in whatever order, the records add each ticket once and lose none."""
    inbox, logged = UnitsInbox(), dict[str, UnitsDone]()
    added = 0
    for reading in readings:
        inbox.told = {"train": done(*reading)}
        more = inbox.unlogged(logged)
        assert misfit(logged, more) == ""
        added += sum(size(units.finished) for units in more.values())
        logged = fold(logged, more)
        assert inbox.unlogged(logged) == {}
    everything = frozenset[int]().union(*readings)
    assert added == len(everything)
    if everything:
        assert logged["train"].finished == ranges_of(everything)


def test_totals_never_fall() -> None:
    """A Redis that was lost begins to count anew from what it was shown, which may be behind."""
    logged = {"train": done(1, late=3, returned=1)}
    inbox = UnitsInbox()
    inbox.told = {"train": done(1, late=2, unclaimed=1)}
    assert inbox.unlogged(logged) == {"train": done(late=3, returned=1, unclaimed=1)}


def test_data_cut_in_another_way_is_not_taken_for_the_run_s() -> None:
    """Redis knows a plan that the log does not: it is about to be rebuilt."""
    inbox = UnitsInbox()
    inbox.told = {"train": done(1, plan="other")}
    assert inbox.unlogged({"train": done(0)}) == {}


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (done(1, 2), "finished before"),
        (done(5, plan="other"), "is cut as other, not as p"),
        (UnitsDone(plan="p", finished=((7, 8), (5, 6))), "no ascending ranges"),
        (UnitsDone(plan="p", finished=((5, 5),)), "no ascending ranges"),
        (UnitsDone(plan="p", finished=((5, 6), (6, 7))), "no ascending ranges"),
    ],
)
def test_a_record_that_repeats_a_unit_does_not_fit(added: UnitsDone, message: str) -> None:
    """Neither a ticket again, nor another plan, nor ranges that are none."""
    assert message in misfit({"train": done(0, 1)}, {"train": added})


def test_the_log_lists_finished_units_and_shows_all_of_them() -> None:
    """Record by record; a checkpoint and the head in Redis hold the sum."""
    log = genesis()
    apply(log, step_record(log, units={"train": done(0, 2)}))
    apply(log, other_record(log, "receipts", units={"train": done(1, 3, late=1)}))
    assert log.units == {"train": UnitsDone(plan="p", finished=((0, 4),), repeated={"late": 1})}
    assert log.head().units == log.units
    assert msgspec.json.decode(canonical(log), type=type(log)) == log


def test_a_record_that_finishes_a_unit_again_is_refused() -> None:
    """And changes nothing."""
    log = genesis()
    apply(log, step_record(log, units={"train": done(0)}))
    again = step_record(log, units={"train": done(0)})
    before = canonical(log)
    with pytest.raises(IntegrityError, match="finished before"):
        log.apply(again, digest(canonical(again)))
    assert canonical(log) == before


def test_the_coordinator_writes_what_it_was_told_into_its_next_record() -> None:
    """Of whatever kind; once it is written, not again."""
    machine = Machine(run="demo", log=genesis(), epoch=1, holder="c1", ddl_version="0")
    machine.step(e.UnitsTold({"train": done(0, 1)}), 1001.0)
    records = [_change(machine, quorum) for quorum in (2, 3)]
    assert [record.units for record in records] == [{"train": done(0, 1)}, {}]
    machine.step(e.UnitsTold({"train": done(1, 2, returned=1)}), 1003.0)
    assert _change(machine, 4).units == {"train": done(2, returned=1)}
    assert machine.log.units["train"].finished == ((0, 3),)


def _change(machine: Machine, quorum: int) -> LogRecord:
    """Let the machine write a settings record, and put it into the log."""
    request = Request(id=f"set-{quorum}", kind="set", who="me", changes={"round.quorum": quorum})
    commands = machine.step(e.Requested(request), 1002.0)
    (record,) = (c.record for c in commands if isinstance(c, e.WriteRecord))
    machine.step(e.RecordWritten(record, digest(canonical(record))), 1002.0)
    return record
