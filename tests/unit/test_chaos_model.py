"""The protocol model under a tape of `ddl chaos`, by hand: two learners for 100 s, steps of 0.1 s."""

from __future__ import annotations

import pytest

from ddl.config import Settings
from ddl.simulate.tape import Fault
from ddl_cli.chaos.model import predicted_ratio
from ddl_cli.chaos.schedule import parse_fault, tape_of


def ratio(*faults: str, starts_s: tuple[float, ...] = (3.0, 5.0, 9.0)) -> float:
    read: list[Fault] = [parse_fault(fault) for fault in faults]
    return predicted_ratio(
        tape_of(read, learners=2, horizon_s=100.0),
        settings=Settings(),
        parameters=10_000,
        step_s=0.1,
        starts_s=starts_s,
    )


@pytest.mark.parametrize(
    ("fault", "absent_s"),
    [
        ("40:kill:2:20", 20 + 5),  # and the median of the starts
        ("40:stop:2:20", 20),
        ("40:slow:2:20", 10),
        ("40:cut:2:20", 0),
        ("40:kill-coordinator:20", 0),
        ("40:flush-redis", 0),
    ],
)
def test_what_a_fault_costs(fault: str, absent_s: float) -> None:
    """Only the learner that was hit, and only while it cannot step; to a few steps."""
    assert ratio(fault) == pytest.approx((200 - absent_s) / 200, abs=0.01)


def test_without_a_start_that_was_measured_one_is_assumed() -> None:
    assert ratio("40:kill:2:20", starts_s=()) == pytest.approx((200 - 25) / 200, abs=0.01)
