"""How long rounds wait, and when they open and close: the numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ddl.config import RoundSettings
from ddl.core.rounds import (
    Ema,
    OpenRound,
    close_decision,
    deadline_s,
    grace_end,
    opening_gap_s,
    percentile,
)

SETTINGS = RoundSettings(every_steps=24, overlap_steps=2, grace_ratio=0.5)


def opened(**changes: Any) -> OpenRound:
    """A round opened at 100, with its deadline at 110."""
    round_ = OpenRound(fragment=3, version_before=7, launch=5, line=0, now=100.0, deadline_s=10.0)
    for name, value in changes.items():
        setattr(round_, name, value)
    return round_


def grace(
    quorum_at: float,
    *,
    step_s: float | None = 1.0,
    quorum_s: float | None = None,
    sync_s: float | None = None,
    lags_s: tuple[float, ...] = (),
    settings: RoundSettings = SETTINGS,
) -> float:
    return grace_end(
        settings,
        opened_at=100.0,
        quorum_at=quorum_at,
        step_s=step_s,
        quorum_s=quorum_s,
        sync_s=sync_s,
        lags_s=lags_s,
    )


def test_grace_is_a_part_of_the_slack_that_a_round_leaves() -> None:
    """tau = 2 steps of 1 s; 0.3 s to quorum and 0.5 s to fetch, merge and publish, on average:
    slack 2 - 0.3 - 0.5 = 1.2 s, half of it is grace: quorum after 0.4 s, so 0.4 + 0.6 = 1.0 s."""
    assert grace(100.4, quorum_s=0.3, sync_s=0.5) == pytest.approx(101.0)


def test_without_averages_the_whole_overlap_is_slack() -> None:
    """The first round: 0.4 + 0.5 * 2 = 1.4 s."""
    assert grace(100.4) == pytest.approx(101.4)


def test_no_slack_is_no_grace() -> None:
    """When quorum and sync take longer than tau steps, the round does not wait beyond its quorum."""
    assert grace(100.4, quorum_s=1.5, sync_s=0.6) == pytest.approx(100.4)


def test_grace_reaches_to_where_nine_of_ten_arrive() -> None:
    """Lags 1.1, 1.2, .. 2.0 s: the 90 % point is 2.0 s, later than the 1.0 s of the slack."""
    lags = tuple(1.0 + 0.1 * (i + 1) for i in range(10))
    assert grace(100.4, quorum_s=0.3, sync_s=0.5, lags_s=lags) == pytest.approx(102.0)


def test_grace_never_takes_more_than_half_an_interval() -> None:
    """H * step_s / 2 = 12 s from the opening, however late others come or the quorum was."""
    assert grace(100.4, lags_s=(60.0,) * 10) == pytest.approx(112.0)
    assert grace(115.0) == pytest.approx(112.0)


def test_gamma_zero_turns_grace_off() -> None:
    """With `grace_ratio` 0 neither slack nor lags make a round wait."""
    off = RoundSettings(every_steps=24, overlap_steps=2, grace_ratio=0.0)
    assert grace(100.4, lags_s=(5.0,) * 10, settings=off) == pytest.approx(100.4)


def test_nothing_known_is_no_grace() -> None:
    """Without any step time the round does not wait for what may never come."""
    assert grace(100.4, step_s=None, lags_s=(5.0,)) == 100.4


@pytest.mark.parametrize(("step_s", "num_fragments", "gap_s"), [(1.0, 24, 1.0), (0.5, 1, 12.0)])
def test_each_fragment_is_due_once_in_h_steps(
    step_s: float, num_fragments: int, gap_s: float
) -> None:
    """Openings are H * step_s / P apart."""
    assert opening_gap_s(24, step_s, num_fragments) == gap_s


@pytest.mark.parametrize(
    ("given", "step_s", "expected"),
    [(0.0, None, 5.0), (0.0, 0.5, 5.0), (0.0, 2.0, 16.0), (3, 2, 3)],
)
def test_deadline(given: float, step_s: float | None, expected: float) -> None:
    """As set, or max(5, 4 * tau * step_s)."""
    assert deadline_s(RoundSettings(overlap_steps=2, deadline_s=given), step_s) == expected


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [((), 0.9, 0.0), ((3.0,), 0.9, 3.0), ((4.0, 1.0, 3.0, 2.0), 0.5, 3.0), ((1.0, 2.0), 1.0, 2.0)],
)
def test_percentile(values: tuple[float, ...], share: float, expected: float) -> None:
    """By rank, no matter the order; 0 for nothing."""
    assert percentile(values, share) == expected


def test_a_moving_average_starts_at_its_first_value() -> None:
    """1, then 0.8 * 1 + 0.2 * 2 = 1.2."""
    ema = Ema()
    assert ema.value is None
    ema.add(1.0)
    ema.add(2.0)
    assert ema.value == pytest.approx(1.2)


def test_a_clock_s_jump_moves_every_instant() -> None:
    """All instants of a round move along; those that are not set stay so."""
    round_ = opened(quorum_at=101.0, grace_until=103.0)
    round_.shift(50.0)
    assert (round_.opened_at, round_.deadline_at) == (150.0, 160.0)
    assert (round_.quorum_at, round_.grace_until, round_.retry_at) == (151.0, 153.0, None)
    assert round_.instants() == [160.0, 153.0]


@pytest.mark.parametrize(
    ("round_", "counts", "awaited", "now", "expected"),
    [
        # all are in: no wait, carried ones count
        ({}, (2, 0, 0), "", 101.0, ("close", "all live learners are in (2)")),
        ({}, (1, 1, 0), "", 101.0, ("close", "all live learners are in (2)")),
        # quorum, and grace under way or over
        ({"grace_until": 105.0}, (2, 0, 0), "c", 104.0, ("wait", "waiting for c")),
        ({"grace_until": 105.0}, (2, 0, 0), "c", 105.0, ("close", "grace are over; not in: c")),
        # a hand-in of this round that is being fetched is not cut off by grace, but by the deadline
        ({"grace_until": 105.0}, (2, 0, 1), "c", 106.0, ("wait", "waiting for c")),
        ({"grace_until": 105.0}, (2, 0, 1), "c", 110.0, ("close", "deadline; not in: c")),
        # carried ones alone never end a round before its deadline, and do at it
        ({}, (1, 1, 0), "c", 109.0, ("wait", "waiting for c")),
        ({}, (1, 1, 0), "cdef", 110.0, ("close", "deadline; not in: c, d, e and 1 more")),
        # below quorum
        ({}, (1, 0, 0), "c", 109.0, ("wait", "needs 2 contributions, 1 in")),
        ({}, (1, 0, 0), "c", 110.0, ("extend", "needs 2 contributions, 1 in")),
        ({}, (1, 0, 0), "", 101.0, ("wait", "needs 2 contributions, 1 in")),
        # a merge that failed is not tried again before its time
        ({"retry_at": 103.0, "reason": "store full"}, (2, 0, 0), "", 102.0, ("wait", "store full")),
        ({"retry_at": 103.0}, (2, 0, 0), "", 103.0, ("close", "all live learners are in (2)")),
    ],
)
def test_closing(
    round_: dict[str, Any],
    counts: tuple[int, int, int],
    awaited: str,
    now: float,
    expected: tuple[str, str],
) -> None:
    """Every way in which a round of quorum 2 goes on or ends, and the sentence that says why."""
    fresh, carried, coming = counts
    decision = close_decision(
        opened(**round_),
        quorum=2,
        live=2,
        fresh=fresh,
        carried=carried,
        coming=coming,
        awaited=list(awaited),
        now=now,
    )
    kind, reason = expected
    assert decision.kind == kind
    assert decision.reason.endswith(reason)


def test_a_quorum_above_the_live_learners_says_so() -> None:
    """The sentence names what is needed, what is there and what is in."""
    decision = close_decision(
        opened(), quorum=3, live=2, fresh=2, carried=0, coming=0, awaited=[], now=120.0
    )
    assert decision.kind == "extend"
    assert decision.reason == "needs 3 contributions, but only 2 learners can hand in now (2 in)"
