"""Learners that are asked to leave while they are busy, that hang, that hold the GIL."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

import pytest

from tests.chaos.books import check_books, receipts, spooled
from tests.chaos.forked import ChaosFleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

DRAIN_S = 4.0
PHASES = ("build", "download", "step", "step in C", "upload")


def test_asked_to_leave_in_every_phase(fleet: ChaosFleet) -> None:
    """T26: it ends with 75 within `drain_s`, says goodbye, and what it had encoded is not lost."""
    _begin(fleet)
    for phase in PHASES:
        learner, mark = fleet.stuck("busy", phase)
        fleet.until(mark.exists, f"it is stuck in: {phase}")
        asked_at = time.monotonic()
        learner.send_signal(signal.SIGTERM)
        assert learner.wait(timeout=60) == 75, phase
        assert time.monotonic() - asked_at < DRAIN_S + 5.0, phase  # seconds for a loaded machine
        if phase == "build":  # before it joins: the run never hears of it
            assert "busy" not in fleet.look().learners
        else:
            assert fleet.record("busy").state == "left", phase
    left = [handin.id for handin in spooled(fleet.spool, "busy")]
    assert left, "the upload was cut off"
    fleet.learner("busy")
    fleet.until(
        lambda: set(left) <= receipts(fleet.store, fleet.run).keys(), "its next life announces it"
    )
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look(), killed=("busy",))


def test_a_step_that_holds_the_gil(fleet: ChaosFleet) -> None:
    """T17: three times `suspect_s` without a beat: seen as suspect, never as gone, and what it hands
    in afterwards is merged."""
    _begin(fleet, liveness={"gone_s": 60.0})
    _, mark = fleet.stuck("busy", "step with the GIL", "seconds=3")
    fleet.until(mark.exists, "it holds the GIL")
    seen = set()

    def back() -> bool:
        view = fleet.view("busy")
        seen.add(view.state if view else "")
        return "suspect" in seen and view is not None and view.state == "training"

    fleet.until(back, "suspect, then training again")
    assert "gone" not in seen
    fleet.until_merged("busy")
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_a_learner_that_stands_still_holds_nobody_up(fleet: ChaosFleet) -> None:
    """T11: alive, but without a step, it is stalled: rounds go on and do not wait for it."""
    _begin(fleet, round={"deadline_s": 60.0})
    _, mark = fleet.stuck("stuck", "step")
    fleet.until(mark.exists, "it stands still")
    fleet.until(lambda: _state(fleet, "stuck") == "stalled", "it is seen to stand still")
    beat = fleet.look().beats["stuck"]
    fleet.until_grown(4)
    assert all("stuck" not in round_.awaited for round_ in fleet.look().rounds)
    assert fleet.look().beats["stuck"] > beat


def test_beats_go_on_during_a_long_upload(fleet: ChaosFleet) -> None:
    """T17: an upload of some seconds delays no beat, and what it brings is merged."""
    _begin(
        fleet,
        **{
            "round": {"in_flight": 1, "staleness_max": 30},
            "fragments": {"num": 1},
            "task.args": {"width": 9000},
        },
    )
    fleet.learner("slow", "--up-mbit", "0.8")
    seen = set()

    def is_uploading() -> bool:
        view = fleet.view("slow")
        seen.add(view.state if view else "")
        return view is not None and view.upload is not None

    fleet.until(is_uploading, "it is uploading")
    since = fleet.look().beats["slow"]
    fleet.until(
        lambda: is_uploading() and fleet.look().beats["slow"] > since + 1.0, "it beats meanwhile"
    )
    fleet.until_merged("slow")
    assert "suspect" not in seen


def _begin(fleet: ChaosFleet, **sections: Mapping[str, object]) -> None:
    """A run whose learners have little time to leave."""
    settings: dict[str, Mapping[str, object]] = {
        "liveness": {
            "beat_s": 0.2,
            "suspect_s": 1.0,
            "gone_s": 3.0,
            "lease_s": 2.0,
            "drain_s": DRAIN_S,
        },
    }
    for name, values in sections.items():
        settings[name] = {**settings.get(name, {}), **values}
    fleet.begin(**settings)


def _state(fleet: ChaosFleet, learner: str) -> str:
    view = fleet.view(learner)
    return view.state if view else ""
