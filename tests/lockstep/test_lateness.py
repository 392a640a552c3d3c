"""Late hand-ins, slow learners, rounds without a quorum: each exactly once, each with a reason."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Literal

import msgspec
import pytest
import torch

from ddl.config import AdoptSettings, CodecSettings, OuterSettings, RoundSettings
from ddl.merge.inspect import describe_model
from ddl.protocol.records import LogRecord, Receipt, Round
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import ConstantGradient, Regression, make_regression_model

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])


@ONE_AND_MANY
@pytest.mark.parametrize("lag_s", [0.1, 3.0, 7.0])
@pytest.mark.parametrize("codec", ["fp32", "int4"])
def test_alone_a_learner_goes_its_own_way_however_slow_its_links(
    num_fragments: int, lag_s: float, codec: Literal["fp32", "int4"]
) -> None:
    """One learner, lr 1, no momentum: every version is where it has been itself, so that it must come to the
    weights that it comes to without any run. Its hand-ins and its versions take up to 7 steps on their way,
    rounds open every 8: much of what it adopts lacks what it has handed in meanwhile."""
    described = describe_model(make_regression_model())
    settings = settings_of(
        num_fragments,
        outer=OuterSettings(preset="fixed", lr=1.0, momentum=0.0),
        codec=CodecSettings(up=codec),
    )
    run = Run(settings, described.infos, start=described.tensors)
    run.start_coordinator()
    task, alone = Regression(seed=1), Regression(seed=1)
    learner = run.add_learner("a", task, lag_s=lag_s, stage_s=lag_s)
    run.go(commits=20 * num_fragments)
    for _ in range(learner.machine.local_steps):
        alone.step()
    for name, value in alone.tensors.items():
        assert torch.allclose(task.tensors[name], value, rtol=0, atol=1e-4), name
    adopted = Counter(adoption.in_flight for adoption in learner.adoptions)
    assert adopted[False] > num_fragments  # more than the start
    if lag_s > 3.0:
        assert adopted[True] > 0
    checked(run)


def by_launch(run: Run) -> dict[int, LogRecord]:
    return {record.launch: record for record in run.records() if record.kind == "step"}


def fate_of(run: Run, learner: Scripted) -> list[tuple[int, Receipt, LogRecord]]:
    """Every settled hand-in of a scripted learner: launch, receipt, and the record it stands in."""
    rows = []
    launches = {handin.id: handin.launch for handin in learner.handins}
    for record in run.records():
        rows += [(launches[r.id], r, record) for r in record.receipts if r.learner == learner.name]
    return rows


def openings(run: Run) -> dict[int, float]:
    """When each round opened that is shown from now on, by launch."""
    opened_at: dict[int, float] = {}

    def note() -> None:
        opened_at.update({r.launch: r.opened_at for r in run.services.rounds})

    run.services.listeners.append(note)
    return opened_at


@ONE_AND_MANY
@pytest.mark.parametrize("staleness_max", [0, 4])
def test_posts_around_a_deadline(num_fragments: int, staleness_max: int) -> None:
    """Four learners post 3 s and 1 s before each deadline, 0.05 s and 28 s after it, with jitter,
    over 50 rounds. The first two are in every round; the third is carried into the next round of
    the fragment; the fourth is merged late or expires; all exactly once, and the ledger says so."""
    deadline_s = 12.0
    rounds = RoundSettings(
        every_steps=24 * num_fragments,
        overlap_steps=2,
        in_flight=min(2, num_fragments),
        quorum=2,
        deadline_s=deadline_s,
        staleness_max=staleness_max,
    )
    run = Run(settings_of(num_fragments, round=rounds), infos(num_fragments))
    jitter = random.Random(1)

    def posting(offset_s: float) -> Callable[[Round], float]:
        return lambda round_: deadline_s + offset_s + jitter.uniform(-0.02, 0.02)

    offsets = {"a": -3.0, "b": -1.0, "c": 0.05, "d": 28.0}
    learners = {
        name: Scripted(run, name, post_s=posting(offset), step_s=1.0)
        for name, offset in offsets.items()
    }
    run.start_coordinator(merge_s=0.2)
    run.go(commits=50)

    steps = by_launch(run)
    settled = list(steps)[2 * num_fragments :]  # the arrival lags are known by then
    for name in ("a", "b"):
        for launch, receipt, record in fate_of(run, learners[name]):
            assert (receipt.fate, record.launch) == ("merged", launch)
    late = {name: fate_of(run, learners[name]) for name in ("c", "d")}
    for launch, receipt, record in late["c"]:
        assert receipt.fate == "merged"
        if launch in settled:
            assert record.launch > launch
            assert str(receipt.id) in steps[launch].carried
            assert record.fragments[0].fragment == receipt.fragment
    fates = {receipt.fate for _, receipt, _ in late["d"]}
    assert fates <= {"merged", "expired"}
    if staleness_max == 0 and num_fragments == 1:
        assert all("staleness" in r.reason for _, r, _ in late["d"] if r.fate == "expired")
        assert "expired" in fates
    assert all(record.launch > launch for launch, r, record in late["d"] if r.fate == "merged")

    for name, learner in learners.items():
        ids = [receipt.id for _, receipt, _ in fate_of(run, learner)]
        unsettled = [h.id for h in learner.handins if h.id not in ids]
        assert len(ids) == len(set(ids))
        assert len(unsettled) <= num_fragments, f"{name}: at most one outstanding a fragment"
    checked(run)


def test_stale_work_expires_with_a_receipt() -> None:
    """Work begun more than `staleness_max` + 1 versions ago expires, and its receipt says why."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, staleness_max=1)
    run = Run(settings_of(1, round=rounds), infos(1))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.add_learner("slow", ConstantGradient(run.layout, lr=0.1), lag_s=40.0)
    run.go(commits=14)
    slow = run.receipts("slow")
    assert {r.fate for r in slow} == {"expired"}
    assert all(r.staleness > 1 for r in slow)
    assert all("round.staleness_max = 1" in r.reason for r in slow)
    checked(run)


@ONE_AND_MANY
def test_a_slow_learner_s_part_is_smaller_and_nothing_else(num_fragments: int) -> None:
    """A machine four times slower hands in a quarter of the steps and holds nobody up."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name, step_s in (("fast", 1.0), ("quick", 1.0), ("slow", 4.0)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), step_s=step_s)
    run.go(commits=20 * num_fragments)
    steps = {
        name: sum(r.steps for r in run.receipts(name) if r.fate == "merged")
        for name in run.learners
    }
    assert steps["slow"] == pytest.approx(steps["fast"] / 4, rel=0.2)
    gap_s = 8 * 1.0 / num_fragments
    elapsed = run.records()[-1].written_at - run.records()[0].written_at
    assert elapsed == pytest.approx(gap_s * (run.versions - 1), rel=0.15)
    checked(run)


def test_fragments_come_in_turn_whoever_is_late_new_or_slow() -> None:
    """Which fragment is due is the coordinator's word alone: with a learner that joins late, one
    that restarts and one at half the pace, no record mixes fragments and none is starved."""
    run = Run(settings_of(4), infos(4))
    run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.add_learner("c", ConstantGradient(run.layout, lr=0.1))
    run.add_learner("d", ConstantGradient(run.layout, lr=0.1), step_s=2.0)

    def join_late() -> None:
        run.add_learner("b", ConstantGradient(run.layout, lr=0.1))

    run.time.after(7.0, join_late)
    run.go(commits=6)
    run.add_learner("c", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=40)
    for record in run.records():
        moved = {step.fragment for step in record.fragments}
        assert {r.fragment for r in record.receipts if r.fate == "merged"} == moved
    versions = sorted(state.version for state in run.services.fragments.values())
    assert versions[-1] - versions[0] <= 1
    assert {r.learner for r in run.receipts()} == set("abcd")
    checked(run)


@pytest.mark.parametrize("mode", ["carry", "blend"])
def test_work_on_two_versions_is_labelled_with_the_older(mode: str) -> None:
    """A learner that adopts in the middle of an interval hands in under the version it began on, so
    that staleness counts from there; its steps are all on the label (in carry mode)."""
    adopt = msgspec.convert({"mode": mode, "alpha": 0.5}, AdoptSettings)
    run = Run(settings_of(1, adopt=adopt), infos(1))
    run.start_coordinator()
    learner = run.add_learner("a", ConstantGradient(run.layout, lr=0.125), stage_s=3.5)
    run.go(commits=6)
    versions = {r.seq: r.fragments[0].version_before for r in run.records() if r.fragments}
    mixed = [h for h in learner.handins if h.oldest_base < h.held[0]]
    assert len(mixed) >= 4
    for record in run.records():
        for receipt in record.receipts:
            (handin,) = [h for h in learner.handins if h.id == receipt.id]
            behind = versions[record.seq] - handin.oldest_base - 1
            assert receipt.staleness == max(0, behind)
    if mode == "carry":
        assert sum(h.steps for h in learner.handins) + learner.machine.tracks[0].in_u.steps == (
            learner.machine.trained.steps
        )
    checked(run)


def test_joining_may_take_longer_than_rounds() -> None:
    """A learner whose link needs 2.5 rounds for one version joins all the same, hands in under the
    version it truly holds, gets every receipt with a reason, and delays nobody."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=2, staleness_max=1)

    def run_with(slow: bool) -> Run:
        run = Run(settings_of(4, round=rounds), infos(4))
        run.start_coordinator()
        for name in "ab":
            run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
        if slow:
            run.add_learner("b-slow", ConstantGradient(run.layout, lr=0.1), stage_s=20.0)
        run.go(commits=60)
        return run

    alone, together = run_with(slow=False), run_with(slow=True)
    slow = together.learners["b-slow"]
    assert slow.machine.started
    assert slow.handins
    assert all(h.oldest_base <= h.held[h.fragment] for h in slow.handins)
    for receipt in together.receipts("b-slow"):
        assert receipt.fate == "merged" or receipt.reason
    assert together.time.now - alone.time.now < 8.0
    checked(together)


def test_more_than_the_live_learners_is_never_enough() -> None:
    """Quorum 3 with two learners: the round stays open, says what it needs and what there is, holds
    no slot, and closes as soon as a third learner comes; the quorum is never lowered."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, quorum=3)
    run = Run(settings_of(1, round=rounds), infos(1))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.time.run(120.0)
    assert run.versions == 0
    (shown,) = run.services.rounds
    assert shown.quorum == 3
    assert shown.arrived == ("a", "b")
    assert shown.reason == "needs 3 contributions, but only 2 learners can hand in now (2 in)"
    assert run.coordinator is not None
    (said,) = [s for s in run.coordinator.said if s.name == "round.extended"]
    assert shown.reason.split(" (")[0] in said.text
    run.add_learner("c", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3, seconds=60.0)
    assert all(len(r.receipts) == 3 for r in run.records() if r.kind == "step")
    checked(run)


def test_rounds_without_a_quorum_free_their_slots() -> None:
    """While a quorum is out of reach every fragment's round ends up open and extended, and when it
    is in reach again they all close."""
    rounds = RoundSettings(every_steps=8, overlap_steps=2, in_flight=1, quorum=2)
    run = Run(settings_of(4, round=rounds), infos(4))
    run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.time.run(120.0)
    assert [r.fragment for r in run.services.rounds] == [0, 1, 2, 3]
    run.add_learner("b", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=8, seconds=120.0)
    checked(run)


def test_a_learner_without_its_store_is_not_waited_for() -> None:
    """A learner that cannot reach its store says so with its beat, and rounds go on without it."""
    run = Run(settings_of(1), infos(1))
    Scripted(run, "a")
    Scripted(run, "b", store_down_s=3.0).forge = lambda _: None
    run.start_coordinator()
    run.go(commits=5, seconds=60.0)
    assert all(record.waits.grace_s == 0 for record in run.records())
    checked(run)


def test_posting_is_spread_by_lags_that_grace_has_learned() -> None:
    """A learner that always comes half a step late is waited for once its lag is known."""
    run = Run(settings_of(1), infos(1))

    def half_a_step_late(_: Round) -> float:
        return 2.4

    Scripted(run, "a")
    Scripted(run, "b", post_s=half_a_step_late)
    run.start_coordinator()
    run.go(commits=10)
    last = [r for r in run.records() if r.kind == "step"][-1]
    assert [r.learner for r in last.receipts] == ["a", "b"]
    assert all(r.staleness == 0 for r in last.receipts)
    checked(run)


@ONE_AND_MANY
@pytest.mark.parametrize("num_slow", [1, 3])
def test_versions_spread_before_the_next_is_made(num_fragments: int, num_slow: int) -> None:
    """Links that take 2.5 H for a version of all fragments: where half of the learners have them, no
    round opens before they train on the newest version, and nothing is late; one slow link of three holds
    nobody up."""
    quorum = 3 if num_slow == 3 else 1  # so that none is late for the grace window
    rounds = RoundSettings(
        every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), quorum=quorum
    )
    run = Run(settings_of(num_fragments, round=rounds), infos(num_fragments))
    run.start_coordinator()
    for n, name in enumerate("abc"):
        stage_s = 20.0 / num_fragments if n < num_slow else 0.1
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), stage_s=stage_s)
    run.go(commits=12 * num_fragments)
    settled = [r for r in run.records() if r.kind == "step"][4 * num_fragments :]
    elapsed_s = settled[-1].written_at - settled[0].written_at
    per_cycle_s = num_fragments * elapsed_s / (len(settled) - 1)
    staleness = {r.staleness for record in settled for r in record.receipts}
    if num_slow == 3:
        assert staleness == {0}
        assert 20.0 < per_cycle_s < 32.0
    else:
        assert max(r.staleness for r in run.receipts("c")) == 0
        assert per_cycle_s == pytest.approx(8.0, rel=0.1)
    checked(run)


@ONE_AND_MANY
def test_no_version_is_waited_for_longer_than_four_times_h(num_fragments: int) -> None:
    """Links that take 60 steps for all fragments at H = 8: from one round of a fragment to its next it is 32."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name in "abc":
        stage_s = 60.0 / num_fragments
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), stage_s=stage_s)
    opened_at = openings(run)
    run.go(commits=12 * num_fragments)
    settled = sorted(opened_at.values())[6 * num_fragments :]
    again_at = settled[num_fragments:]
    apart_s = [after - at for after, at in zip(again_at, settled, strict=False)]
    assert 31.0 < median(apart_s) < 40.0  # or as soon as a slot is free
    for learner in run.learners.values():  # no fragment waits for ever behind those before it
        versions = [state.version for state in run.services.fragments.values()]
        assert all(new - old <= 6 for new, old in zip(versions, learner.machine.held, strict=True))
    checked(run)


@ONE_AND_MANY
def test_work_that_expires_makes_rounds_come_no_faster(num_fragments: int) -> None:
    """With everyone's last hand-in expired nobody's step time was trusted, and without one rounds opened
    as fast as they closed: what came next was later still."""
    rounds = RoundSettings(
        every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), staleness_max=0
    )
    run = Run(settings_of(num_fragments, round=rounds), infos(num_fragments))
    run.start_coordinator()
    for name, lag_s in (("a", 0.1), ("b", 30.0), ("c", 30.0)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), lag_s=lag_s)
    run.go(commits=2 * num_fragments)
    opened_at = openings(run)
    run.go(commits=10 * num_fragments)
    run.learners["a"].kill()
    run.time.run(200.0)
    assert any(r.fate == "expired" for r in run.receipts())
    gaps = [after - before for before, after in pairwise(sorted(opened_at.values()))]
    assert min(gaps) >= 8.0 / num_fragments - 1e-6
    checked(run)
