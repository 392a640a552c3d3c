"""A learner is killed, stopped or asked to leave at every point of a contribution's way out.

Whatever the point: its next life takes up what it had spooled, every contribution gets one receipt,
and the books balance.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest

from ddl.protocol.records import HandinId
from tests.chaos.books import check_books, receipts, spooled
from tests.chaos.forked import ChaosFleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

POINTS = ("snapshot", "encoded", "spooled", "put", "announced")


@pytest.mark.parametrize("num_fragments", [1, 4])
def test_killed_at_any_point(fleet: ChaosFleet, num_fragments: int) -> None:
    """SIGKILL. What was spooled is merged by the help of the next life, what was not never counts."""
    _begin(fleet, num_fragments)
    left: list[HandinId] = []
    for point in POINTS:
        failpoint = fleet.fail(point, signal.SIGKILL, nth=num_fragments + 1)
        life = fleet.learner("mortal")
        assert life.wait(timeout=60) == -signal.SIGKILL
        assert failpoint.reached
        left += [handin.id for handin in spooled(fleet.spool, "mortal")]
    assert left, "at least those that died after `spooled` left something behind"
    fleet.learner("mortal")
    _until_receipted(fleet, left)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look(), killed=("mortal",))
    assert {receipts(fleet.store, fleet.run)[id_].fate for id_ in left} == {"merged"}


@pytest.mark.parametrize("num_fragments", [1, 4])
def test_asked_to_leave_at_any_point(fleet: ChaosFleet, num_fragments: int) -> None:
    """T26: SIGTERM. It ends with 75 and has handed in every step that it took."""
    _begin(fleet, num_fragments)
    for point in POINTS:
        failpoint = fleet.fail(point, signal.SIGTERM, nth=num_fragments + 1)
        life = fleet.learner("leaver")
        assert life.wait(timeout=60) == 75
        assert failpoint.reached
        record = fleet.record("leaver")
        assert record.state == "left"
        assert record.tokens > 0
        assert (record.in_u.tokens, record.discarded.tokens) == (0, 0)
        assert record.handed_in.tokens == pytest.approx(record.tokens)
    handed_in = [id_ for id_ in fleet.look().handins if id_.startswith("leaver/")]
    fleet.until(
        lambda: not fleet.look().handins.keys() & set(handed_in), "all of it has its receipt"
    )
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_stopped_for_so_long_that_another_takes_its_place(fleet: ChaosFleet) -> None:
    """T30: SIGSTOP between payload and announcement, a second process takes over and announces it.
    Awake again, the first finds itself fenced, and nothing is counted twice."""
    _begin(fleet, 1)
    failpoint = fleet.fail("put", signal.SIGSTOP, nth=2)
    sleeper = fleet.learner("twice")
    fleet.until(lambda: failpoint.reached, "it is stopped with a payload stored")
    (waiting,) = [handin.id for handin in spooled(fleet.spool, "twice")]
    assert waiting not in receipts(fleet.store, fleet.run)
    fleet.learner("twice", "--takeover")
    _until_receipted(fleet, [waiting])
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(timeout=60) == 4
    fleet.until_grown()
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look(), killed=("twice",))


def _begin(fleet: ChaosFleet, num_fragments: int) -> None:
    fleet.begin(
        fragments={"num": num_fragments},
        round={"in_flight": num_fragments, "staleness_max": 30},
    )


def _until_receipted(fleet: ChaosFleet, ids: Iterable[HandinId]) -> None:
    wanted = set(ids)
    fleet.until(
        lambda: wanted <= receipts(fleet.store, fleet.run).keys(), f"receipts of {sorted(wanted)}"
    )
