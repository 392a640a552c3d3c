"""The coordinator is killed at every point of a version's way out; learners train on meanwhile."""

from __future__ import annotations

import signal

import pytest

from tests.chaos.books import check_books
from tests.chaos.forked import ChaosFleet
from tests.processes import kill

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

POINTS = ("published", "outer", "logged", "shown")


@pytest.mark.parametrize("num_fragments", [1, 4])
def test_killed_at_any_point(fleet: ChaosFleet, num_fragments: int) -> None:
    """T23: the next one completes or repeats the round; no version is lost, none counts twice."""
    fleet.begin(
        fragments={"num": num_fragments}, round={"in_flight": num_fragments, "staleness_max": 30}
    )
    fleet.learner("second")
    fleet.processes[0].send_signal(signal.SIGTERM)
    assert fleet.processes[0].wait(timeout=60) == 0
    for point in POINTS:
        before = fleet.version()
        failpoint = fleet.fail(point, signal.SIGKILL, nth=2)
        coordinator = fleet.coordinator()
        assert coordinator.wait(timeout=60) == -signal.SIGKILL
        assert failpoint.reached
        assert fleet.version() > before, "the one before was of use, too"
        fleet.until_steps("steady")
        fleet.until_steps("second")
    fleet.coordinator()
    fleet.until_merged("steady")
    fleet.until_merged("second")
    fleet.until_grown(3)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_a_dead_one_s_lease_need_not_run_out_on_its_own_machine(fleet: ChaosFleet) -> None:
    """Who starts beside the remains of a killed holder takes its lease at once, not in ten minutes."""
    fleet.begin(liveness={"lease_s": 600.0})
    kill(fleet.processes[0])
    left_s = fleet.look().lease_left_s
    assert left_s is not None
    assert left_s > 500.0
    fleet.coordinator()
    fleet.until_grown(3)


def test_gone_for_too_long(fleet: ChaosFleet) -> None:
    """T15: learners train on for `max_offline_s`, then stand still, saying why, until one is back."""
    steady = fleet.begin(liveness={"max_offline_s": 2.0})
    kill(fleet.processes[0])
    fleet.until_steps("steady")
    fleet.until(
        lambda: "no word from a coordinator for 2 s" in fleet.log_of(steady), "it stands still"
    )
    fleet.until(lambda: fleet.record("steady").state == "paused", "it says so")
    fleet.coordinator()
    fleet.until_steps("steady")
    fleet.until_grown(3)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())
