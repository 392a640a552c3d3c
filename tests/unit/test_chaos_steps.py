"""Arithmetic of steps and of the time that there was for them, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl_cli.chaos.steps import (
    Span,
    Step,
    count_in,
    living_s,
    lost_steps,
    next_after,
    read_steps,
    seconds_without,
    starting_s,
    starts_s,
)

WINDOW = Span(100.0, 110.0)


def steps(*instants: float, life: int = 1) -> list[Step]:
    return [Step(at, life, 2.5) for at in instants]


def test_steps_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A line each; a learner that never stepped has no file."""
    file = tmp_path / "learner-1.steps"
    assert read_steps(file) == []
    file.write_text("100.250 1 5.5432\n100.350 2 5.4000\n")
    assert read_steps(file) == [Step(100.25, 1, 5.5432), Step(100.35, 2, 5.4)]


def test_steps_of_a_span_without_its_end() -> None:
    """Of 99, 100, 105 and 110, two lie in 100 to 110."""
    assert count_in(steps(99.0, 100.0, 105.0, 110.0), WINDOW) == 2
    assert count_in([], WINDOW) == 0


def test_living_time_is_without_what_is_outside_and_without_halts() -> None:
    """There from 90 to 103 and from 106 on: 3 + 4 s. Halted from 102 to 107: 1 + 1 s less."""
    alive = [Span(90.0, 103.0), Span(106.0, 120.0)]
    assert living_s(alive, [], WINDOW) == pytest.approx(7.0)
    assert living_s(alive, [Span(102.0, 107.0)], WINDOW) == pytest.approx(5.0)
    assert living_s([], [], WINDOW) == 0.0


def test_starting_time_is_that_before_the_first_step_of_each_process() -> None:
    """From 90, stepping before the window; from 103, at 105: 2 s; from 108, never: 2 s."""
    alive = [Span(90.0, 102.0), Span(103.0, 107.0), Span(108.0, 111.0)]
    assert starting_s(alive, steps(91.0, 101.0, 105.0, 106.0), WINDOW) == pytest.approx(4.0)


def test_starts_are_those_of_the_window_that_led_to_a_step() -> None:
    """From 90: before it. From 103, at 105: 2 s. From 108, never."""
    alive = [Span(90.0, 102.0), Span(103.0, 107.0), Span(108.0, 111.0)]
    taken = steps(91.0, 101.0, 105.0, 106.0)
    assert starts_s(alive, taken, WINDOW) == pytest.approx([2.0])


def test_seconds_in_which_nobody_stepped() -> None:
    """Ten seconds; one learner steps in the first three, another in the last five."""
    one = steps(100.5, 101.1, 102.9)
    other = steps(105.0, 106.2, 107.3, 108.4, 109.99, 110.5)
    assert seconds_without([one, other], WINDOW) == 2
    assert seconds_without([one], WINDOW) == 7
    assert seconds_without([steps(99.9)], WINDOW) == 10


def test_the_first_step_after_an_instant() -> None:
    """One at that very instant counts; after the last there is none."""
    taken = steps(1.0, 2.0)
    assert next_after(taken, 1.0) == 1.0
    assert next_after(taken, 1.5) == 2.0
    assert next_after(taken, 2.5) is None


def test_lost_steps_are_those_that_came_to_no_use() -> None:
    """5 steps, 3.5 of them merged; 2 steps, all of use; rounding never makes it negative."""
    taken = steps(1, 2, 3, 4, 5) + steps(6, 7, life=2)
    assert lost_steps(taken, {1: 3.5, 2: 2.0}) == pytest.approx(1.5)
    assert lost_steps(taken, {1: 5.1, 2: 0.0}) == pytest.approx(2.0)
    assert lost_steps(taken, {}) == pytest.approx(7.0)
