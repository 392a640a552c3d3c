"""What is to fail when: drawn by lot, written by hand, and as acts on processes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from ddl.errors import ConfigError
from ddl.simulate.tape import Fault, Tape
from ddl_cli.chaos.acts import Act, acts
from ddl_cli.chaos.schedule import Odds, check, cut_short, draw, parse_fault, tape_of


def test_a_seed_gives_one_tape_and_another_seed_another() -> None:
    """The same call twice is the same tape, in the order of time."""
    tape = draw(Odds(), learners=4, horizon_s=100.0, seed=1)
    assert tape == draw(Odds(), learners=4, horizon_s=100.0, seed=1)
    assert tape != draw(Odds(), learners=4, horizon_s=100.0, seed=2)
    times = [fault.time_s for fault in tape.faults]
    assert times == sorted(times)
    assert 0.0 <= times[0] < times[-1] < 100.0


def test_one_more_learner_changes_no_other_s_faults() -> None:
    """Those of the first four are the same among four as among five."""
    few = draw(Odds(), learners=4, horizon_s=500.0, seed=3)
    many = draw(Odds(), learners=5, horizon_s=500.0, seed=3)
    assert few.faults == tuple(fault for fault in many.faults if fault.learner != 4)


def test_a_learner_fails_once_in_mtbf_and_down_time() -> None:
    """Away for 10 s after every 40 s there: in 100,000 s about 2,000 times, and never twice at once."""
    odds = Odds(mtbf_s=40.0, down_s=10.0, weights={"kill": 3.0, "stop": 1.0}, services={})
    faults = draw(odds, learners=1, horizon_s=100_000.0, seed=0).faults
    assert len(faults) == pytest.approx(2000, rel=0.05)
    assert all(b.time_s > a.time_s + 10.0 for a, b in pairwise(faults))
    kinds = Counter(fault.kind for fault in faults)
    assert kinds["kill"] == pytest.approx(3 * kinds["stop"], rel=0.15)


def test_services_fail_as_often_as_said_and_in_each_part_of_the_time() -> None:
    """Three times in 100 s: once in each third of 10 to 90 s."""
    odds = Odds(weights={"kill": 1.0}, services={"kill-coordinator": 3, "flush-redis": 1})
    for seed in range(20):
        tape = draw(odds, learners=0, horizon_s=100.0, seed=seed)
        killed = [fault for fault in tape.faults if fault.kind == "kill-coordinator"]
        thirds = [int((fault.time_s - 10.0) / (80.0 / 3)) for fault in killed]
        assert thirds == [0, 1, 2]
        assert all(fault.learner is None and fault.duration_s == 1.0 for fault in killed)
        (flush,) = (fault for fault in tape.faults if fault.kind == "flush-redis")
        assert flush.duration_s == 0.0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("30:kill:2:5", Fault(time_s=30.0, learner=1, kind="kill", duration_s=5.0)),
        ("1.5:corrupt:1", Fault(time_s=1.5, learner=0, kind="corrupt", duration_s=0.0)),
        ("40:flush-redis", Fault(time_s=40.0, kind="flush-redis", duration_s=0.0)),
        ("50:kill-coordinator:2", Fault(time_s=50.0, kind="kill-coordinator", duration_s=2.0)),
    ],
)
def test_a_fault_by_hand(text: str, fault: Fault) -> None:
    """Time, kind, learner from 1, and how long."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        *("", "30", "x:kill:1:5", "30:kill", "30:kill:1", "30:burn:1:2", "30:kill:0:5"),
        *("30:flush-redis:3", "-1:kill:1:5", "30:kill:1:5:6", "inf:kill:1:5"),
    ],
)
def test_a_fault_that_cannot_be_read_is_named(text: str) -> None:
    """The option, the text, and an example."""
    with pytest.raises(ConfigError, match="--fault") as raised:
        parse_fault(text)
    assert raised.value.hint is not None
    assert "30:kill:2:5" in raised.value.hint


def test_a_tape_that_cannot_be_played_is_refused() -> None:
    """A learner that is not there; a learner's fault of nobody; a service's fault of a learner."""
    good = Fault(time_s=1.0, learner=1, duration_s=1.0)
    assert check(Tape(learners=2, horizon_s=9.0, faults=(good,))).faults == (good,)
    with pytest.raises(ConfigError, match="of 1 learners, and there is a fault of learner 2"):
        check(Tape(learners=1, horizon_s=9.0, faults=(good,)))
    for bad in (
        Fault(time_s=1.0, duration_s=1.0),
        Fault(time_s=1.0, learner=0, kind="flush-redis", duration_s=0.0),
    ):
        with pytest.raises(ConfigError, match="whose is it"):
            check(Tape(learners=2, horizon_s=9.0, faults=(bad,)))


def test_nothing_happens_to_the_redis_of_others() -> None:
    """Drawn tapes leave it alone, and one that does not is refused."""
    odds = Odds().without_redis()
    tape = draw(odds, learners=8, horizon_s=1000.0, seed=0)
    assert check(tape, own_redis=False) == tape
    assert sum(fault.kind == "kill-coordinator" for fault in tape.faults) == 3
    flush = tape_of([parse_fault("4:flush-redis")], learners=1, horizon_s=9.0)
    with pytest.raises(ConfigError, match="flush-redis at 4 s is for a Redis of our own"):
        check(flush, own_redis=False)


def test_the_beginning_of_a_tape() -> None:
    """What comes later is left out, and the horizon is never longer than the tape's."""
    tape = tape_of([_kill(at) for at in (1.0, 5.0, 9.0)], learners=1, horizon_s=10.0)
    assert [fault.time_s for fault in cut_short(tape, 9.0).faults] == [1.0, 5.0]
    assert cut_short(tape, 9.0).horizon_s == 9.0
    assert cut_short(tape, 99.0) == tape


def _kill(at: float) -> Fault:
    return Fault(time_s=at, learner=0, duration_s=1.0)


def test_faults_as_acts_in_the_order_of_time() -> None:
    """Each begins and ends; a slow learner stands still for the first half of each second."""
    tape = tape_of(
        [
            Fault(time_s=3.0, learner=1, kind="slow", duration_s=2.0),
            Fault(time_s=1.0, learner=0, kind="kill", duration_s=3.25),
            Fault(time_s=2.0, kind="restart-redis", duration_s=0.5),
            Fault(time_s=9.0, kind="flush-redis", duration_s=0.0),
        ],
        learners=2,
        horizon_s=10.0,
    )
    assert acts(tape) == [
        Act(1.0, "kill", "learner-1", 0),
        Act(2.0, "kill", "redis", 1),
        Act(2.5, "start", "redis", 1),
        Act(3.0, "halt", "learner-2", 2),
        Act(3.5, "resume", "learner-2", 2),
        Act(4.0, "halt", "learner-2", 2),
        Act(4.25, "start", "learner-1", 0),
        Act(4.5, "resume", "learner-2", 2),
        Act(9.0, "flush", "redis", 3),
    ]
