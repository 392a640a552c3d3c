"""The baseline's arithmetic by hand: how far it came, restarts, checkpoints, and the recomputed tape."""

from __future__ import annotations

import math

import pytest

from ddl.simulate.tape import Fault
from ddl_cli.chaos.baseline import best_interval, judge, replayed, rows_of
from ddl_cli.chaos.gang import Drill, Tick
from ddl_cli.chaos.schedule import tape_of
from ddl_cli.chaos.steps import Span

KILL = Fault(time_s=10.0, learner=0, duration_s=5.0)


def drill() -> Drill:
    """A step a second from 1 to 10 s; a death at 10.5 s; back to step 8 at 20 s; a death at 23.2 s that
    a step under way outlives, and no further restart."""
    first = [Tick(float(at), 0, at) for at in range(1, 11)]
    second = [Tick(20.0 + number, 1, 8 + number) for number in range(4)] + [Tick(23.25, 1, 12)]
    return Drill(5.0, Span(1.0, 31.0), first + second, [10.5, 23.2], 0.02)


def test_steps_that_are_taken_again_lead_no_further() -> None:
    """From step 1 at the window's begin to step 12: 11; taken were 15."""
    assert drill().useful_steps == 11
    report = judge(
        tape_of([KILL], learners=1, horizon_s=30.0), drill(), rate=1.0, every=4, start_s=5
    )
    assert (report.steps, report.useful_steps, report.deaths) == (15, 11, 2)
    assert report.goodput_ratio == pytest.approx(11 / 30)


def test_a_restart_ends_with_a_step_of_the_next_life() -> None:
    """9.5 s; a step that was under way when its neighbour died is none of the next life."""
    assert drill().restarts_s == pytest.approx([9.5])


@pytest.mark.parametrize(
    ("cost_s", "mtbf_s", "step_s", "steps"),
    [(0.02, 25.0, 0.1, 10), (0.0, 25.0, 0.1, 1), (2.0, 100.0, 0.5, 40), (0.02, math.inf, 0.1, 20)],
)
def test_the_best_interval(cost_s: float, mtbf_s: float, step_s: float, steps: int) -> None:
    """sqrt(2 x 0.02 x 25) = 1 s of steps of 0.1 s; at least one step; any where nothing fails."""
    assert best_interval(cost_s, mtbf_s, step_s) == steps


def replay(*faults: Fault, start_s: float = 5.0, checkpoint_s: float = 4.0) -> float:
    tape = tape_of(faults, learners=2, horizon_s=30.0)
    return replayed(tape, start_s=start_s, checkpoint_s=checkpoint_s)


def test_a_tape_recomputed() -> None:
    """Killed at 10 s: 8 of 10 s are kept, the restart takes until 15 s, 15 s are left: 23 of 30."""
    assert replay() == 1.0
    assert replay(KILL) == pytest.approx(23 / 30)


def test_what_is_starting_is_not_hit() -> None:
    """A second kill, at 12 s, finds nobody; one at 18 s finds 3 s of work: 8 of 11 s are kept, then 7."""
    assert replay(KILL, Fault(time_s=12.0, learner=1, duration_s=5.0)) == pytest.approx(23 / 30)
    assert replay(KILL, Fault(time_s=18.0, learner=1, duration_s=5.0)) == pytest.approx(15 / 30)


def test_nobody_steps_while_a_rank_is_stopped() -> None:
    """Two stops that overlap, from 10 to 14 and from 12 to 16 s: 24 of 30. The rest does nothing."""
    stops = [
        Fault(time_s=10.0, learner=0, kind="stop", duration_s=4.0),
        Fault(time_s=12.0, learner=1, kind="stop", duration_s=4.0),
    ]
    others = [
        Fault(time_s=5.0, learner=0, kind="cut", duration_s=4.0),
        Fault(time_s=5.0, kind="kill-coordinator", duration_s=4.0),
    ]
    assert replay(*stops, *others) == pytest.approx(24 / 30)


def test_a_baseline_that_never_came_back_is_told_so() -> None:
    """No restart was finished: there is no time to tell."""
    dead = drill()._replace(deaths=[23.2])
    report = judge(tape_of([KILL], learners=1, horizon_s=30.0), dead, rate=1.0, every=4, start_s=5)
    assert report.median_restart_s is None
    assert ("restarts", "1 deaths; no restart was finished") in rows_of(report)
