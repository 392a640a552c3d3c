"""Who counts: states by what was heard and when."""

from __future__ import annotations

from typing import Any

import pytest

from ddl.config import LivenessSettings
from ddl.core.membership import Member, Membership, stall_limit_s
from tests.core_records import genesis, learner, receipt

LIVENESS = LivenessSettings(beat_s=1.0, suspect_s=5.0, gone_s=15.0, max_offline_s=60.0)


def heard(*names: str, now: float = 100.0, **changes: Any) -> Membership:
    membership = Membership()
    for name in names:
        member, _ = membership.hear(learner(name, **changes), now)
        assert member is not None
        membership.judge(member, now, LIVENESS)
    return membership


@pytest.mark.parametrize(
    ("age_s", "state"),
    [(0.0, "training"), (5.0, "training"), (5.1, "suspect"), (15.0, "suspect"), (15.1, "gone")],
)
def test_silence_makes_suspect_then_gone(age_s: float, state: str) -> None:
    """Beats alone decide; the limits themselves are still good."""
    member = Member(learner(step_s=10.0), 100.0)
    assert member.judge(100.0 + age_s, LIVENESS) == state


@pytest.mark.parametrize("state", ["joining", "draining", "paused"])
def test_what_a_learner_says_of_itself_counts_while_it_beats(state: Any) -> None:
    """And a goodbye counts for ever."""
    member = Member(learner(state=state), 100.0)
    assert member.judge(101.0, LIVENESS) == state
    assert not member.expected
    left = Member(learner(state="left"), 100.0)
    assert left.judge(10_000.0, LIVENESS) == "left"
    left.state = "left"
    assert not left.present


@pytest.mark.parametrize(("step_s", "limit_s"), [(None, 5.0), (0.1, 5.0), (2.0, 20.0)])
def test_a_learner_that_beats_without_stepping_is_stalled(
    step_s: float | None, limit_s: float
) -> None:
    """After ten of its own steps, at least `suspect_s`; a step makes it train again."""
    assert stall_limit_s(step_s, LIVENESS) == limit_s
    member = Member(learner(step_s=step_s), 100.0)
    member.hear(learner(step_s=step_s), 100.0 + limit_s)
    assert member.judge(100.0 + limit_s, LIVENESS) == "training"
    member.hear(learner(step_s=step_s), 100.5 + limit_s)
    assert member.judge(100.5 + limit_s, LIVENESS) == "stalled"
    member.hear(learner(step_s=step_s, step=11), 101.0 + limit_s)
    assert member.judge(101.0 + limit_s, LIVENESS) == "training"


def test_a_late_copy_of_an_old_beat_makes_nobody_older() -> None:
    """Instants only rise: what is read twice, or out of order, does no harm."""
    member = Member(learner(), 100.0)
    member.hear(learner(), 90.0)
    assert member.beat_at == 100.0


def test_rounds_wait_for_those_that_train_and_reach_their_store() -> None:
    """`expected` follows states and `store_down_s` as they come."""
    membership = heard("a", "b", "c")
    assert membership.expected == {"a", "b", "c"}
    membership.hear(learner("b", store_down_s=2.0), 101.0)
    assert membership.expected == {"a", "c"}
    membership.hear(learner("b", store_down_s=0.0), 102.0)
    late = membership.members["c"]
    assert membership.judge(late, 106.0, LIVENESS) == "training"
    assert late.state == "suspect"
    assert membership.expected == {"a", "b"}


def test_a_new_life_replaces_the_old_one_for_good() -> None:
    """Beats of an older incarnation are of no interest once a newer one is known."""
    membership = heard("a")
    member, is_new = membership.hear(learner("a", incarnation=2), 101.0)
    assert is_new
    assert member is membership.members["a"]
    assert membership.expected == set()  # until it is judged
    assert membership.hear(learner("a", incarnation=1), 102.0) == (None, False)


def test_step_s_is_the_median_of_those_that_are_merged() -> None:
    """Expected learners whose last hand-in was merged; before that only what all report."""
    membership = Membership()
    for name, step_s in (("a", 1.0), ("b", 2.0), ("c", 9.0), ("d", None)):
        member, _ = membership.hear(learner(name, step_s=step_s), 100.0)
        assert member is not None
        membership.judge(member, 100.0, LIVENESS)
    assert membership.step_s() is None
    assert membership.reported_step_s() == 2.0
    log = genesis()
    for name in "abd":
        membership.take_receipt(receipt(log, name))
    assert membership.step_s() == 1.5
    membership.take_receipt(receipt(log, "b", fate="expired"))
    assert membership.step_s() == 1.0


def test_a_predecessor_s_receipt_says_nothing_of_its_successor() -> None:
    """A new life is not taken for proven by what the old one had merged."""
    membership = heard("a")
    membership.hear(learner("a", incarnation=2), 101.0)
    membership.take_receipt(receipt(genesis(), "a"))
    assert not membership.members["a"].last_merged


def test_seasoned_are_those_with_enough_steps() -> None:
    """Only expected ones count."""
    membership = heard("a", "b", step=24)
    membership.hear(learner("b", step=24, store_down_s=1.0), 101.0)
    assert membership.num_seasoned(24) == 1
    assert membership.num_seasoned(25) == 0


def test_refusals_in_a_row_set_aside() -> None:
    """The third of three does; a merge in between starts the count anew."""
    membership = heard("a")
    member = membership.members["a"]
    assert [member.count_refusal("bad", refusals_max=3) for _ in range(2)] == [False, False]
    membership.take_receipt(receipt(genesis(), "a"))
    assert [member.count_refusal("bad", refusals_max=3) for _ in range(3)] == [False, False, True]
    assert member.judge(100.0, LIVENESS) == "aside"
    assert not member.count_refusal("again", refusals_max=3)
    assert member.aside_reason == "bad"


def test_a_learner_set_aside_returns_when_it_has_realigned_since() -> None:
    """Only a re-alignment after it was set aside counts, not one before."""
    member = Member(learner(realigns=4), 100.0)
    member.count_refusal("bad", refusals_max=1)
    member.hear(learner(realigns=4), 101.0)
    assert not member.may_return()
    member.hear(learner(realigns=5), 102.0)
    assert member.may_return()
    assert member.judge(102.0, LIVENESS) == "training"
    assert not member.may_return()


def test_those_away_for_very_long_lapse() -> None:
    """Gone for more than `max_offline_s`, counted from when they were; the living never."""
    membership = heard("a", "b")
    for name in "ab":
        membership.judge(membership.members[name], 116.0, LIVENESS)
    membership.hear(learner("a", step=11), 120.0)
    membership.judge(membership.members["a"], 120.0, LIVENESS)
    assert membership.lapsed(175.0, LIVENESS) == []
    assert [m.id for m in membership.lapsed(175.1, LIVENESS)] == ["b"]
    membership.forget(membership.members["b"])
    assert list(membership.members) == ["a"]


def test_those_that_said_goodbye_lapse_sooner() -> None:
    """Ten minutes after it, whenever it is heard of; a crashed one may come back for an hour."""
    liveness = LivenessSettings(suspect_s=5.0, gone_s=15.0, max_offline_s=3600.0)
    membership = heard("left", state="left")
    membership.hear(learner("gone"), 100.0)
    for member in membership.members.values():
        membership.judge(member, 650.0, liveness)
    assert membership.lapsed(700.0, liveness) == []
    assert [m.id for m in membership.lapsed(700.1, liveness)] == ["left"]
    assert {m.id for m in membership.lapsed(3715.1, liveness)} == {"left", "gone"}


@pytest.mark.parametrize(("age_s", "since_at"), [(7.0, 105.0), (99.0, 115.0)])
def test_a_silence_is_dated_from_where_it_began(age_s: float, since_at: float) -> None:
    """However late it is noticed: suspect 5 s after the last beat, gone after 15 s."""
    membership = heard("a")
    member = membership.members["a"]
    assert membership.judge(member, 100.0 + age_s, LIVENESS) == "training"
    assert member.since_at == since_at


def test_a_clock_s_jump_ages_nobody() -> None:
    """All instants move along with the server's clock."""
    membership = heard("a")
    membership.shift(1000.0)
    member = membership.members["a"]
    assert member.judge(1104.0, LIVENESS) == "training"
    assert member.since_at == 1100.0
