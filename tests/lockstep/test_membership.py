"""Learners that die, sleep, come back and leave."""

from __future__ import annotations

import pytest

from ddl.config import LivenessSettings, RoundSettings
from ddl.core import events as e
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import ConstantGradient

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])


def quorum_of(quorum: int, num_fragments: int) -> RoundSettings:
    return RoundSettings(
        every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), quorum=quorum
    )


@ONE_AND_MANY
def test_dead_learners_cost_their_share_and_no_more(num_fragments: int) -> None:
    """Of four learners two are killed and one is put to sleep: within `gone_s` and a tick they are
    no longer waited for, rounds go on at the same pace, and the sleeper is welcome back."""
    run = Run(settings_of(num_fragments, round=quorum_of(1, num_fragments)), infos(num_fragments))
    coordinator = run.start_coordinator()
    for name in ("alive", "dead-1", "dead-2", "sleeper"):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3 * num_fragments)
    killed_at = run.time.now
    for name in ("dead-1", "dead-2", "sleeper"):
        run.learners[name].kill()
    members = coordinator.machine.membership.members
    liveness = run.record.settings.liveness
    run.time.run(liveness.suspect_s + liveness.beat_s)
    assert {m.state for m in members.values()} == {"training", "suspect"}
    assert coordinator.machine.membership.expected == {"alive"}
    run.time.run(liveness.gone_s - liveness.suspect_s + liveness.beat_s)
    assert {id_: m.state for id_, m in members.items() if id_ != "alive"} == dict.fromkeys(
        ("dead-1", "dead-2", "sleeper"), "gone"
    )

    commits = run.versions
    run.time.run(80.0)
    assert run.versions - commits == pytest.approx(10 * num_fragments, abs=1)
    assert all(r.waits.grace_s == 0.0 for r in run.records() if r.written_at > killed_at + 20)
    run.learners["sleeper"].wake()
    run.go(commits=run.versions + 6 * num_fragments)
    assert run.receipts("sleeper")[-1].fate == "merged"
    checked(run)


@ONE_AND_MANY
def test_shares_of_a_global_batch_follow_who_is_in(num_fragments: int) -> None:
    """Two learners take a half each; one joins, and one of the three dies: a third, then a half."""
    run = Run(settings_of(num_fragments, round=quorum_of(1, num_fragments)), infos(num_fragments))
    run.start_coordinator()

    def shares() -> dict[str, float]:
        return {name: learner.machine.share for name, learner in run.learners.items()}

    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    assert shares() == {"a": 1.0, "b": 1.0}, "nobody has told them yet"
    run.go(commits=3 * num_fragments)
    assert shares() == {"a": 0.5, "b": 0.5}
    run.add_learner("c", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=6 * num_fragments)
    assert shares() == dict.fromkeys("abc", 1 / 3)
    run.learners.pop("b").kill()
    run.time.run(run.record.settings.liveness.gone_s + 20.0)
    assert shares() == {"a": 0.5, "c": 0.5}


@ONE_AND_MANY
def test_the_log_tells_why_a_round_closed_and_who_came_last(num_fragments: int) -> None:
    """Of two that are both waited for, the one whose upload takes longer."""
    run = Run(settings_of(num_fragments, round=quorum_of(2, num_fragments)), infos(num_fragments))
    run.start_coordinator()
    run.add_learner("slow", ConstantGradient(run.layout, lr=0.1), lag_s=0.8)
    run.add_learner("fast", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=4 * num_fragments)
    steps = [record.why for record in run.records() if record.kind == "step"]
    assert steps[-1] == "all live learners are in (2); slow came last"
    checked(run)


def test_the_dead_are_not_counted_into_a_quorum() -> None:
    """With a quorum of two and one learner left alive, rounds wait, and say how many there are."""
    run = Run(settings_of(1, round=quorum_of(2, 1)), infos(1))
    run.start_coordinator()
    for name in "abcd":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3)
    for name in "bcd":
        run.learners[name].kill()
    run.time.run(60.0)
    commits = run.versions
    run.time.run(60.0)
    assert run.versions == commits
    (shown,) = run.services.rounds
    assert shown.reason == "needs 2 contributions, but only 1 learner can hand in now (1 in)"
    run.add_learner("b", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=commits + 3, seconds=60.0)
    checked(run)


@ONE_AND_MANY
def test_a_new_incarnation_goes_on_beside_its_predecessor_s_work(num_fragments: int) -> None:
    """A learner that is killed and started again: what the old life had handed in is merged under
    its old id, the new one counts from 1, and nothing is merged twice."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3 * num_fragments)
    run.add_learner("b", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=9 * num_fragments)
    lives = {r.incarnation for r in run.receipts("b")}
    assert lives == {1, 2}
    assert {r.seq for r in run.receipts("b") if r.incarnation == 2} >= {1, 2}
    checked(run)


def test_the_old_life_of_a_learner_is_fenced() -> None:
    """When a new life of its id exists, an old one that wakes up stops and changes nothing."""
    run = Run(settings_of(1), infos(1))
    coordinator = run.start_coordinator()
    old = run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2)
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.time.run(5.0)
    old.wake()
    run.time.run(5.0)
    assert not old.alive
    assert old.machine.fenced_by == 2
    assert coordinator.machine.membership.members["a"].record.incarnation == 2
    run.go(commits=6)
    checked(run)


def test_a_learner_that_leaves_is_not_waited_for() -> None:
    """A goodbye counts at once: the open round closes without that learner."""
    run = Run(settings_of(1), infos(1))
    coordinator = run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2)
    run.learners["b"].leave()
    assert coordinator.machine.membership.expected == {"a"}
    left_at = run.time.now
    run.go(commits=6)
    assert all(r.waits.grace_s == 0.0 for r in run.records() if r.written_at > left_at + 10)
    checked(run)


def test_a_draining_learner_hands_in_what_was_asked_for() -> None:
    """A learner that is to leave answers the pulls it has, ends, and loses nothing of those."""
    run = Run(settings_of(4), infos(4))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=8)
    run.learners["b"].machine.drain()
    assert run.time.run(20.0, until=lambda: not run.learners["b"].alive)
    assert run.learners["b"].machine.plan(run.time.now).stop is not None
    run.go(commits=20)
    settled = {r.id for r in run.receipts("b")}
    assert all(h.id in settled for h in run.learners["b"].handins)
    checked(run)


@ONE_AND_MANY
def test_what_the_last_learner_hands_in_is_merged(num_fragments: int) -> None:
    """Nobody is left to open a round for: what was handed in on the way out, or lay there when the last
    process died, is merged all the same, once."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    coordinator = run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=8)
    run.learners["b"].kill()
    last = run.learners["a"]
    last.machine.drain()
    assert run.time.run(60.0, until=lambda: not last.alive)
    run.time.run(30.0)
    fates = {r.id: r.fate for r in run.receipts("a")}
    assert [fates.get(h.id) for h in last.handins] == ["merged"] * len(last.handins)
    assert last.machine.work("in_u").steps == 0
    assert not coordinator.machine.inbox.pending
    versions = run.versions
    run.time.run(60.0)
    assert run.versions == versions
    checked(run)


def test_learners_long_gone_are_forgotten_and_may_return() -> None:
    """After `max_offline_s` a silent learner is dropped from all lists; if it comes back after all
    it joins again, and its work is counted on from where it was."""
    liveness = LivenessSettings(max_offline_s=60.0)
    run = Run(settings_of(1, liveness=liveness), infos(1))
    coordinator = run.start_coordinator()
    Scripted(run, "a")
    sleeper = Scripted(run, "sleeper")
    run.go(commits=3)
    sleeper.kill()
    run.time.run(100.0)
    assert coordinator.forgotten == ["sleeper"]
    assert "sleeper" not in coordinator.machine.membership.members
    sleeper.alive = True
    sleeper._beat()
    run.go(commits=run.versions + 4)
    assert run.receipts("sleeper")[-1].fate == "merged"
    checked(run)


def test_a_jump_of_the_server_s_clock_kills_nobody() -> None:
    """When Redis's clock leaps by an hour, open instants move along: no learner is judged gone, no
    deadline falls due."""
    run = Run(settings_of(1), infos(1))
    coordinator = run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3)
    assert run.time.run(60.0, until=lambda: bool(coordinator.machine.board.rounds))
    (before,) = coordinator.machine.board.rounds.values()
    left_s = before.deadline_at - run.time.now
    run.time.leap(3600.0)
    coordinator.tell(e.ClockJumped(3600.0))
    assert before.deadline_at - run.time.now == pytest.approx(left_s)
    assert coordinator.machine.membership.expected == {"a", "b"}
    run.go(commits=8, seconds=100.0)
    assert not [s for s in coordinator.said if s.name in ("learner.suspect", "learner.gone")]
    checked(run)
