"""What learners and the coordinator say in their logs when they end: each why, and where it stood."""

from __future__ import annotations

import json
import signal

import pytest

from tests.chaos.forked import ChaosFleet
from tests.processes import Process

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


def test_whoever_ends_says_why(fleet: ChaosFleet) -> None:
    """Asked by a signal or by a person, at its limit, when the run is over, or because it was."""
    steady = fleet.begin()
    drained, interrupted = fleet.learner("drained"), fleet.learner("interrupted")
    short = fleet.learner("short", "--max-steps", "12", "--json")
    for name in ("drained", "interrupted"):
        fleet.until_merged(name)
    drained.send_signal(signal.SIGTERM)
    interrupted.send_signal(signal.SIGINT)
    sent = fleet.learner("sent")
    fleet.until_merged("sent")
    away = ["learner", "drain", fleet.address, "sent", "--why", "the machine is needed"]
    assert fleet.ddl(*away).wait(timeout=60) == 0
    for process, code in ((drained, 75), (interrupted, 130), (short, 0), (sent, 75)):
        assert process.wait(timeout=60) == code
    assert fleet.ddl("stop", fleet.address, "--why", "enough of it").wait(timeout=60) == 0
    late = fleet.learner("late", "--wait", "0")
    coordinator = fleet.processes[0]
    for process in (steady, late, coordinator):
        assert process.wait(timeout=60) == 0

    assert _last(fleet, drained).endswith("SIGTERM")
    assert "Ctrl-C" in _last(fleet, interrupted)
    assert _last(fleet, sent).endswith("asked to leave: the machine is needed")
    assert "the run is over: enough of it (" in _last(fleet, steady)
    assert f"the run {fleet.run!r} is over: enough of it (" in _last(fleet, late)
    said = json.loads(_last(fleet, short))
    assert (said["name"], said["step"]) == ("learner.ended", 12)
    assert "--max-steps = 12" in said["why"]
    version = fleet.version()
    assert f"{fleet.run} stands at version {version}, record" in _last(fleet, coordinator)
    assert "the run is over: enough of it" in _last(fleet, coordinator)
    for name in ("joined", "started", "ended"):
        assert fleet.log_of(steady).count(f"learner.{name}") == 1
    assert fleet.log_of(steady).count("contribution.first") == 1


@pytest.mark.parametrize(
    ("number", "word", "code"), [(signal.SIGTERM, "SIGTERM", 0), (signal.SIGINT, "Ctrl-C", 130)]
)
def test_a_coordinator_that_is_ended_says_by_whom(
    fleet: ChaosFleet, number: signal.Signals, word: str, code: int
) -> None:
    """And where the run stands, of which it has told its share of tokens; its successor repeats nothing."""
    fleet.begin()
    gone = fleet.learner("gone")
    fleet.until_merged("gone")
    gone.kill()
    fleet.until(lambda: "gone is gone" in fleet.log(1), "it is missed")
    fleet.until_grown(2)
    first = fleet.processes[0]
    first.send_signal(number)
    assert first.wait(timeout=60) == code
    assert f"coordinator.ended        {word}. {fleet.run} stands at version" in _last(fleet, first)
    assert " merged; start a coordinator to go on with it" in _last(fleet, first)
    second = fleet.coordinator()
    fleet.until_grown(3)
    log = fleet.log_of(second)
    assert "learner." not in log
    assert f"learners join by {fleet.address}" in log


def _last(fleet: ChaosFleet, process: Process) -> str:
    return fleet.log_of(process).splitlines()[-1]
