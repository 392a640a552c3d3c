"""Which round opens next, and what past rounds teach."""

from __future__ import annotations

import pytest

from ddl.config import RoundSettings
from ddl.core.pace import LAGS_KEPT, LAUNCHES_PER_EPOCH, Pace
from ddl.core.rounds import OpenRound
from ddl.protocol.records import Waits

SETTINGS = RoundSettings(every_steps=8, overlap_steps=2, grace_ratio=0.5)


def opening(pace: Pace, now: float, fragment: int = 0) -> OpenRound:
    return pace.open(fragment, version_before=0, line=0, now=now, deadline_s=5.0)


def test_fragments_take_turns() -> None:
    """Cyclic order from the one after the last merged, without those that are busy."""
    pace = Pace(epoch=1, num_fragments=3, last_fragment=1)
    assert pace.due_fragment(()) == 2
    assert pace.due_fragment({2}) == 0
    assert pace.due_fragment({0, 1, 2}) is None
    opening(pace, 100.0, fragment=2)
    assert pace.due_fragment({2}) == 0


def test_launch_numbers_are_never_shared_between_epochs() -> None:
    """A later coordinator's launches are all above an earlier one's."""
    first, second = (Pace(epoch=e, num_fragments=1, last_fragment=-1) for e in (1, 2))
    launches = [opening(first, 100.0).launch for _ in range(3)]
    assert launches == [LAUNCHES_PER_EPOCH + 1, LAUNCHES_PER_EPOCH + 2, LAUNCHES_PER_EPOCH + 3]
    assert opening(second, 100.0).launch == 2 * LAUNCHES_PER_EPOCH + 1


def test_openings_keep_their_distance() -> None:
    """The first may open at once, the next H * step_s / P = 8 * 1 / 4 = 2 s later."""
    pace = Pace(epoch=1, num_fragments=4, last_fragment=-1)
    assert pace.opens_at(8, 1.0, 100.0) == 100.0
    opening(pace, 100.0)
    assert pace.has_opened
    assert pace.opens_at(8, 1.0, 100.0) == 102.0
    assert [pace.opened_at(p) for p in (0, 1)] == [100.0, None]
    pace.shift(50.0)
    assert pace.opens_at(8, 1.0, 150.0) == 152.0
    assert [pace.opened_at(p) for p in (0, 1)] == [150.0, None]


def test_grace_learns_from_arrivals_in_time_and_late() -> None:
    """A lag counts from the opening that asked for it, even if its round has closed; hand-ins of an
    unknown round (another coordinator's) teach nothing."""
    pace = Pace(epoch=1, num_fragments=1, last_fragment=-1)
    first = opening(pace, 100.0)
    second = opening(pace, 110.0)
    pace.note_arrival(7, 111.0)
    assert pace.grace_end(second, SETTINGS, now=110.5, step_s=1.0) == pytest.approx(111.5)
    pace.note_arrival(first.launch, 113.0)  # 13 s; the cap is H * step_s / 2 = 4 s
    assert pace.grace_end(second, SETTINGS, now=110.5, step_s=1.0) == pytest.approx(114.0)
    assert pace.grace_end(second, SETTINGS, now=110.5, step_s=5.0) == pytest.approx(123.0)


def test_grace_gives_way_to_what_rounds_take() -> None:
    """After a round of 0.4 s to quorum and 0.1 + 0.2 + 0.3 s of sync: 0.5 + 0.5 * (2 - 0.4 - 0.6)."""
    pace = Pace(epoch=1, num_fragments=1, last_fragment=-1)
    round_ = opening(pace, 100.0)
    pace.note_waits(Waits(quorum_s=0.4, fetch_s=0.1, merge_s=0.2, publish_s=0.3))
    assert pace.grace_end(round_, SETTINGS, now=100.5, step_s=1.0) == pytest.approx(101.0)


def test_only_recent_openings_are_remembered() -> None:
    """Memory is bounded: a hand-in for a round of long ago teaches nothing."""
    pace = Pace(epoch=1, num_fragments=1, last_fragment=-1)
    rounds = [opening(pace, 100.0 + i) for i in range(LAGS_KEPT + 1)]
    pace.note_arrival(rounds[0].launch, 500.0)
    assert pace.grace_end(rounds[-1], SETTINGS, now=165.0, step_s=100.0) == pytest.approx(265.0)
