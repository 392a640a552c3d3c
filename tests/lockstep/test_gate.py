"""Contributions that must not be merged, learners that err: one receipt each, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
import torch
from torch import Tensor

from ddl.config import GateSettings, RoundSettings
from ddl.core import events as e
from ddl.protocol.records import Handin, Order, Round, TensorSpec
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted, seeded
from tests.lockstep.tasks import ConstantGradient

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])


def published(run: Run, commits: int) -> list[str]:
    """Digests of the versions made, in order."""
    steps = [step for record in run.records() for step in record.fragments]
    return [step.published.sha256 for step in steps][:commits]


def two_at_once(num_fragments: int, **sections: msgspec.Struct) -> Run:
    """A run whose rounds close as soon as two contributions are in, whoever else may come."""
    rounds = RoundSettings(
        every_steps=8,
        overlap_steps=2,
        in_flight=min(2, num_fragments),
        quorum=2,
        grace_ratio=0.0,
    )
    return Run(settings_of(num_fragments, round=rounds, **sections), infos(num_fragments))  # type: ignore[arg-type]


@pytest.mark.promise(3)
@pytest.mark.promise(5)
@ONE_AND_MANY
def test_a_refused_contribution_changes_nothing_but_its_receipt(num_fragments: int) -> None:
    """With a third learner whose every payload is refused, the run publishes the very bytes that it
    publishes without it."""
    without = two_at_once(num_fragments)
    for name in "ab":
        Scripted(without, name)
    without.start_coordinator()
    without.go(commits=12)

    with_bad = two_at_once(num_fragments, gate=GateSettings(refusals_max=1000))
    for name in "abc":
        Scripted(with_bad, name, post_s=lambda _: 0.3 if name == "c" else 0.5)  # noqa: B023
    coordinator = with_bad.start_coordinator()

    def refuse(handin: Handin) -> e.Fetched | None:
        reason = "2 of 6 values of 'w0' are not finite"
        return e.Fetched(handin.id, "refused", reason) if handin.learner == "c" else None

    coordinator.outcome = refuse
    with_bad.go(commits=12)
    assert published(without, 12) == published(with_bad, 12)
    bad = with_bad.receipts("c")
    assert bad
    assert {r.fate for r in bad} == {"refused"}
    assert all("not finite" in r.reason for r in bad)
    checked(with_bad)


def test_a_norm_far_off_is_refused_and_the_round_goes_on_without_it() -> None:
    """A contribution a thousand times larger than its peers makes the quorum with one of them, is
    refused when the round would close, and the round waits for the next one: same bytes."""

    def huge_from_c(name: str, round_: Round, spec: TensorSpec) -> Tensor:
        return seeded(name, round_, spec) * (1000.0 if name == "c" else 1.0)

    without = two_at_once(1)
    for name in "ab":
        Scripted(without, name)
    without.start_coordinator()
    without.go(commits=8)

    gate = GateSettings(calm_rounds=0, refusals_max=1000)
    with_bad = two_at_once(1, gate=gate)
    for name, post_s in (("a", 0.5), ("b", 0.7), ("c", 0.6)):
        Scripted(with_bad, name, post_s=lambda _, s=post_s: s, delta=huge_from_c)  # type: ignore[misc]
    with_bad.start_coordinator()
    with_bad.go(commits=8)
    assert published(without, 8) == published(with_bad, 8)
    bad = with_bad.receipts("c")
    assert {r.fate for r in bad} == {"refused"}
    assert all("make likely" in r.reason for r in bad)
    assert torch.isfinite(with_bad.model()["w0"]).all()
    checked(with_bad)


@ONE_AND_MANY
def test_weights_that_are_not_the_run_s_cannot_be_handed_in(num_fragments: int) -> None:
    """A learner whose weights were tampered with reports other hashes; it is refused, takes the
    run's weights anew, and is merged again."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2 * num_fragments)
    odd = run.learners["b"]
    odd.stage_s = 20.0  # so that no newer version takes the place of the odd one
    assert run.time.run(60.0, until=lambda: odd.machine.tracks[0].staged is None)
    odd.machine.tracks[0].hash = "0" * 64
    run.go(commits=8 * num_fragments)
    odd.stage_s = 0.1
    run.go(commits=40 * num_fragments)
    refused = [r for r in run.receipts("b") if r.fate == "refused"]
    assert refused
    assert all("not aligned" in r.reason for r in refused)
    assert odd.machine.realigns == 2
    assert odd.machine.aligned
    assert run.receipts("b")[-1].fate == "merged"
    checked(run)


def test_refusals_in_a_row_put_a_learner_aside_until_it_has_realigned() -> None:
    """After `refusals_max` refusals the learner is ordered to re-align and everything it hands in is
    refused unread; once it says that it has re-aligned, it is as any other."""
    run = Run(settings_of(1, gate=GateSettings(refusals_max=2)), infos(1))
    good, bad = Scripted(run, "good"), Scripted(run, "bad")
    coordinator = run.start_coordinator()
    broken = True

    def outcome(handin: Handin) -> e.Fetched | None:
        if broken and handin.learner == "bad":
            return e.Fetched(handin.id, "refused", "w0 has other shapes")
        return None

    coordinator.outcome = outcome
    run.go(commits=6)

    def state() -> str:
        return coordinator.machine.membership.members["bad"].state

    assert state() == "aside"
    assert run.services.orders["bad"] == Order(
        kind="realign", incarnation=1, reason="w0 has other shapes"
    )
    reasons = [r.reason for r in run.receipts("bad")]
    assert reasons[:2] == ["w0 has other shapes"] * 2
    assert set(reasons[2:]) == {"set aside until it re-aligns: w0 has other shapes"}

    broken = False
    run.time.run(3.0)
    assert state() == "aside"
    bad.realigns += 1
    run.go(commits=12)
    assert state() == "training"
    assert "bad" not in run.services.orders
    assert run.receipts("bad")[-1].fate == "merged"
    assert good.alive
    checked(run)


@pytest.mark.parametrize("outcome", ["damaged", "missing"])
def test_a_payload_that_is_not_whole_is_put_again(outcome: str) -> None:
    """A damaged or missing payload of a living learner is asked for again, and merged."""
    run = Run(settings_of(1), infos(1))
    Scripted(run, "a")
    coordinator = run.start_coordinator()
    tries: dict[int, int] = {}

    def fetched(handin: Handin) -> e.Fetched | None:
        tries[handin.seq] = tries.get(handin.seq, 0) + 1
        return e.Fetched(handin.id, outcome, "cut short") if tries[handin.seq] < 3 else None  # type: ignore[arg-type]

    coordinator.outcome = fetched
    run.go(commits=3)
    assert [r.fate for r in run.receipts("a")] == ["merged"] * 3
    assert set(tries.values()) == {3}
    said = [s for s in coordinator.said if s.name == "contribution.asked_again"]
    assert len(said) == 6
    checked(run)


@pytest.mark.parametrize(("outcome", "fate"), [("damaged", "refused"), ("missing", "lost")])
def test_asking_again_has_an_end(outcome: str, fate: str) -> None:
    """A payload that stays bad is given up, with a receipt of its own record."""
    run = Run(settings_of(1), infos(1))
    Scripted(run, "a")
    coordinator = run.start_coordinator()
    coordinator.outcome = lambda handin: e.Fetched(handin.id, outcome, "cut short")  # type: ignore[arg-type]
    assert run.time.run(60.0, until=lambda: bool(run.receipts("a")))
    (receipt,) = run.receipts("a")
    assert (receipt.fate, receipt.reason) == (fate, "cut short")
    assert [record.kind for record in run.records()] == ["receipts"]
    checked(run)


def test_a_dead_learner_s_payload_is_merged_if_it_is_whole_and_lost_if_not() -> None:
    """What a learner had stored and announced before it died is merged like any other; what it had
    announced and not stored is lost at once, because nobody can put it again."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, quorum=2)
    run = Run(settings_of(1, round=rounds), infos(1))
    Scripted(run, "a", post_s=lambda _: 20.0)
    whole = Scripted(run, "whole")
    gone = Scripted(run, "gone")
    gone.store = lambda handin, data: None
    coordinator = run.start_coordinator()
    coordinator.outcome = lambda handin: (
        e.Fetched(handin.id, "unavailable") if run.time.now < 1018.0 else None
    )
    assert run.time.run(30.0, until=lambda: len(run.services.handins) == 2)
    whole.kill()
    gone.kill()
    run.go(commits=1)
    fates = {r.learner: r.fate for r in run.receipts()}
    assert fates == {"a": "merged", "whole": "merged", "gone": "lost"}
    checked(run)


def test_a_store_that_does_not_answer_settles_nothing() -> None:
    """While fetches fail for want of the store, contributions wait; nobody is asked or blamed."""
    run = Run(settings_of(1), infos(1))
    Scripted(run, "a")
    coordinator = run.start_coordinator()
    coordinator.outcome = lambda handin: e.Fetched(handin.id, "unavailable")
    run.time.run(120.0)
    assert run.versions == 0
    assert not run.receipts()
    assert not run.services.asked
    coordinator.outcome = lambda handin: None
    run.go(commits=2)
    checked(run)


def test_a_merge_that_fails_is_tried_again_later_and_not_at_once() -> None:
    """A failed merge leaves everything as it was; the round says why and tries again after a while."""
    run = Run(settings_of(1), infos(1))
    for name in "ab":
        Scripted(run, name)
    coordinator = run.start_coordinator()
    failures: list[float] = []

    def fail(merge: e.Merge) -> e.MergeFailed | None:
        if len(failures) == 3:
            return None
        failures.append(run.time.now)
        return e.MergeFailed(merge.launch, "the store is full")

    coordinator.fail_merge = fail
    assert run.time.run(30.0, until=lambda: len(failures) == 1)
    assert run.services.rounds[0].reason == "the store is full"
    run.go(commits=1)
    assert all(later - sooner >= 2.0 for sooner, later in pairwise(failures))
    assert [r.learner for r in run.receipts()] == ["a", "b"]
    checked(run)


def test_a_merge_names_the_contribution_that_broke_it() -> None:
    """A contribution that the merge itself finds bad is refused, and the others are merged at once."""
    run = Run(settings_of(1), infos(1))
    for name in "abc":
        Scripted(run, name)
    coordinator = run.start_coordinator()

    def fail(merge: e.Merge) -> e.MergeFailed | None:
        bad = [(i.handin.id, "unreadable") for i in merge.inputs if i.handin.learner == "c"]
        return e.MergeFailed(merge.launch, "one is bad", tuple(bad)) if bad else None

    coordinator.fail_merge = fail
    run.go(commits=1)
    assert [(r.learner, r.fate) for r in run.receipts()] == [
        ("a", "merged"),
        ("b", "merged"),
        ("c", "refused"),
    ]
    checked(run)


def test_decay_to_nothing_is_refused_not_merged() -> None:
    """With `staleness_decay` 0 stale work has no weight: it is refused, and never divides by zero."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, staleness_decay=0.0)
    run = Run(settings_of(1, round=rounds), infos(1))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.add_learner("late", ConstantGradient(run.layout, lr=0.1), lag_s=30.0)
    run.go(commits=12)
    late = run.receipts("late")
    assert {r.fate for r in late} == {"refused"}
    assert all("no weight" in r.reason for r in late)
    checked(run)


def test_a_refused_learner_hands_in_to_the_same_round_again() -> None:
    """With a quorum of all, a round whose one contribution was refused would else wait for ever: the
    learner re-aligns and answers the pull with new work."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, quorum=2)
    run = Run(settings_of(1, round=rounds), infos(1))
    coordinator = run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2)
    refused: list[Handin] = []

    def refuse_once(handin: Handin) -> e.Fetched | None:
        if handin.learner != "b" or refused:
            return None
        refused.append(handin)
        return e.Fetched(handin.id, "refused", "not finite")

    coordinator.outcome = refuse_once
    run.go(commits=4, seconds=200.0)
    (receipt,) = [r for r in run.receipts("b") if r.fate == "refused"]
    again = next(h for h in run.learners["b"].handins if h.seq == receipt.seq + 1)
    assert again.launch == refused[0].launch
    checked(run)
