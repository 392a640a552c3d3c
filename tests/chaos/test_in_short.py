"""Of the chaos tests, the few that every run of the tests can afford."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.chaos.books import check_books, receipts, spooled
from tests.chaos.forked import ChaosFleet

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
def test_asked_to_leave_while_it_imports(fleet: ChaosFleet) -> None:
    """T26: SIGTERM counts before torch is there: 75, and the run never hears of it."""
    fleet.begin()
    fleet.forks = False
    learner = fleet.learner("early")
    maps = Path(f"/proc/{learner.pid}/maps")
    fleet.until(lambda: "libtorch" in maps.read_text(), "it imports torch")
    learner.send_signal(signal.SIGTERM)
    assert learner.wait(timeout=60) == 75
    assert "early" not in fleet.look().learners


@pytest.mark.slow
def test_training_that_raises(fleet: ChaosFleet) -> None:
    """Exit code 1, one sentence with its place, and a clean leave that shows why."""
    fleet.begin()
    learner, _ = fleet.stuck("faulty", "raise")
    assert learner.wait(timeout=60) == 1
    log = fleet.log_of(learner)
    assert "training raised ZeroDivisionError: the loss is no more" in log
    assert "Traceback" not in log
    view = fleet.view("faulty")
    assert view is not None
    assert view.state == "left"
    assert "ZeroDivisionError: the loss is no more" in view.error
    fleet.until_grown()


def test_killed_with_a_contribution_on_disk(fleet: ChaosFleet) -> None:
    """Its next life announces what was spooled, and it is merged once."""
    fleet.begin(round={"staleness_max": 30})
    failpoint = fleet.fail("spooled", signal.SIGKILL)
    assert fleet.learner("mortal").wait(timeout=60) == -signal.SIGKILL
    assert failpoint.reached
    (left,) = [handin.id for handin in spooled(fleet.spool, "mortal")]
    fleet.learner("mortal")
    fleet.until(lambda: left in receipts(fleet.store, fleet.run), f"the receipt of {left}")
    fleet.finish()
    assert receipts(fleet.store, fleet.run)[left].fate == "merged"
    check_books(fleet.store, fleet.run, fleet.look(), killed=("mortal",))
