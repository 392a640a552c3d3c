"""The learner's rules at a step boundary: what is handed in, adopted, or ends it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl.config import AdoptSettings, LivenessSettings, Settings, StopSettings
from ddl.core.invariants import check_learner
from ddl.core.learner import UNASKED, LearnerMachine, Staged
from ddl.protocol.records import (
    Amount,
    BeatReply,
    FragmentState,
    HandinId,
    Head,
    Order,
    Receipt,
    Round,
    Work,
    held_digest,
)
from tests.core_records import apply, genesis, handin, ref, step_record


def machine(num_fragments: int = 2, **settings: Any) -> LearnerMachine:
    return LearnerMachine(
        learner="a",
        incarnation=2,
        shares=(0.75, 0.25)[:num_fragments] if num_fragments == 2 else (1.0,),
        settings=msgspec.structs.replace(Settings(), **settings),
        now=100.0,
    )


def state(fragment: int, version: int, line: int = 0) -> FragmentState:
    published = ref(f"f{fragment}v{version}")
    return FragmentState(fragment=fragment, version=version, line=line, published=published)


def stage(learner: LearnerMachine, fragment: int, version: int, line: int = 0) -> None:
    learner.on_fragments([state(fragment, version, line)])
    learner.on_staged(fragment, Staged(version, line, ref(f"f{fragment}v{version}").sha256))


def aligned(**settings: Any) -> LearnerMachine:
    """A learner that holds version 0 of both fragments."""
    learner = machine(**settings)
    stage(learner, 0, 0)
    stage(learner, 1, 0)
    learner.begin(learner.plan(100.0))
    assert learner.aligned
    return learner


def head(seq: int = 1, **changes: Any) -> Head:
    record = Head(
        seq=seq, global_version=seq, line=0, epoch=1, digest="", progress=0.0, lineage="lineage"
    )
    return msgspec.structs.replace(record, **changes)


def reply(**changes: Any) -> BeatReply:
    record = BeatReply(now=0.0, boot="boot", registered=True, incarnation=2)
    return msgspec.structs.replace(record, **changes)


def open_round(fragment: int, launch: int, line: int = 0) -> Round:
    return Round(
        fragment=fragment,
        version_before=0,
        launch=launch,
        line=line,
        opened_at=0.0,
        deadline_at=5.0,
    )


def steps(learner: LearnerMachine, count: int, tokens: int = 100) -> None:
    for _ in range(count):
        learner.on_step(tokens)


def hand_in(learner: LearnerMachine, *fragments: int) -> None:
    """Carry out what is due, to the end: these fragments are announced."""
    learner.begin(learner.plan(100.0))
    for fragment in fragments:
        learner.on_encoded(fragment)
        learner.on_announced(fragment)


def receipt(
    seq: int, fragment: int = 0, fate: Any = "merged", incarnation: int = 2, version: int = 0
) -> Receipt:
    return Receipt(
        learner="a",
        incarnation=incarnation,
        fragment=fragment,
        seq=seq,
        fate=fate,
        version=version,
        steps=3,
        tokens=300,
    )


# ---- the first model --------------------------------------------------------------------------


def test_the_first_model_is_taken_whole_or_not_at_all() -> None:
    """Half a model is no model: nothing is adopted until every fragment of one line is staged."""
    learner = machine()
    stage(learner, 0, 3)
    assert not learner.plan(100.0)
    stage(learner, 1, 2, line=1)
    assert not learner.plan(100.0)
    stage(learner, 1, 2)
    plan = learner.plan(100.0)
    assert [(a.fragment, a.version, a.realign) for a in plan.adoptions] == [
        (0, 3, True),
        (1, 2, True),
    ]
    learner.begin(plan)
    assert learner.held == (3, 2)
    assert learner.realigns == 1


def test_a_slow_link_gathers_a_whole_model() -> None:
    """Until it has one, what is not staged at all goes before newer versions of what is."""
    learner = machine()
    learner.on_fragments([state(0, 1), state(1, 1)])
    assert [s.fragment for s in learner.wanted()] == [0, 1]
    stage(learner, 0, 1)
    learner.on_fragments([state(0, 2)])
    assert [(s.fragment, s.version) for s in learner.wanted()] == [(1, 1), (0, 2)]
    learner.on_staged(1, Staged(1, 0, "h"))
    learner.begin(learner.plan(100.0))
    assert learner.held == (1, 1)
    assert [(s.fragment, s.version) for s in learner.wanted()] == [(0, 2)]


def by_step(fragment: int, version: int, line: int = 0) -> FragmentState:
    """A version that is also published as the step from the one before."""
    return msgspec.structs.replace(state(fragment, version, line), step=ref(f"s{version}"))


def test_a_step_is_taken_from_the_version_staged_last() -> None:
    """Adopted or not; never over a missed version, and never where no step was published."""
    learner = aligned()
    assert learner.takes_step(by_step(0, 1))
    assert not learner.takes_step(by_step(0, 2)), "version 1 was missed"
    assert not learner.takes_step(state(0, 1)), "it was published whole only"
    stage(learner, 0, 1)
    assert learner.takes_step(by_step(0, 2))
    assert not learner.takes_step(by_step(0, 1))


def test_no_step_is_taken_across_a_line_or_to_realign() -> None:
    """A joiner and a learner that must re-align take whole fragments, and so does everyone after a
    rollback; the versions after that come as steps again."""
    assert not machine().takes_step(by_step(0, 0)), "a joiner has nothing to step from"
    learner = aligned()
    assert not learner.takes_step(by_step(0, 1, line=1))
    learner.on_beat(reply(head=head(line=1)))
    assert not learner.takes_step(by_step(0, 1)), "it trusts nothing that it has"
    stage(learner, 0, 1, line=1)
    stage(learner, 1, 1, line=1)
    learner.begin(learner.plan(101.0))
    assert learner.takes_step(by_step(0, 2, line=1))
    assert not learner.takes_step(by_step(0, 2, line=0))


def test_before_it_is_aligned_a_learner_hands_nothing_in() -> None:
    """Steps on a model of its own making are of no use to the run."""
    learner = machine()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 1),)))
    assert not learner.plan(100.0).snapshots


# ---- handing in -------------------------------------------------------------------------------


def test_an_open_round_pulls_what_there_is() -> None:
    """The snapshot names launch, base, versions held, and all work so far, this included."""
    learner = aligned()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    (snapshot,) = learner.plan(100.0).snapshots
    assert (snapshot.fragment, snapshot.seq, snapshot.launch, snapshot.oldest_base) == (0, 1, 7, 0)
    assert (snapshot.steps, snapshot.tokens) == (3, 300)
    assert snapshot.total == Amount(steps=3, tokens=300)
    assert snapshot.held == (0, 0)
    hashes = {p: ref(f"f{p}v0").sha256 for p in (0, 1)}
    assert snapshot.held_digest == held_digest(hashes)


def test_planning_changes_nothing() -> None:
    """A plan that is not begun may be made again."""
    learner = aligned()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    assert learner.plan(100.0) == learner.plan(100.0)


def test_nothing_to_hand_in_without_a_step() -> None:
    """A pull waits for the first applied step; a skipped one counts nothing."""
    learner = aligned()
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    assert not learner.plan(100.0).snapshots
    learner.on_step(100, applied=False)
    assert not learner.plan(100.0).snapshots
    learner.on_step(100)
    assert learner.plan(100.0).snapshots


def test_one_outstanding_contribution_a_fragment() -> None:
    """Until its receipt is known there is no further one; newer steps stay in u."""
    learner = aligned()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    hand_in(learner, 0)
    steps(learner, 2)
    learner.on_beat(reply(rounds=(open_round(0, 8),)))
    assert not learner.plan(100.0).snapshots
    assert learner.outstanding == [(2, 0, 1)]
    learner.on_beat(reply(rounds=(open_round(0, 8),), receipts=(receipt(1),)))
    (snapshot,) = learner.plan(100.0).snapshots
    assert (snapshot.seq, snapshot.steps, snapshot.total) == (2, 2, Amount(steps=5, tokens=500))
    assert not check_learner(learner)


def outstanding_one(announced: bool = True) -> LearnerMachine:
    """A learner that holds version 0, has handed in fragment 0, and has heard of record 5."""
    learner = aligned()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 7),), head=head(seq=5)))
    learner.begin(learner.plan(100.0))
    learner.on_encoded(0)
    if announced:
        learner.on_announced(0)
    return learner


def stage_made_by(learner: LearnerMachine, version: int, seq: int) -> None:
    """A version of fragment 0 that record `seq` made lies ready."""
    learner.on_fragments([state(0, version)])
    learner.on_staged(0, Staged(version, 0, ref(f"f0v{version}").sha256, seq))


NAMED = HandinId("a", 2, 0, 1)


@pytest.mark.parametrize(
    ("answer", "asked", "in_flight"),
    [
        (reply(head=head(seq=6)), {NAMED}, True),  # record 6 does not have it
        (reply(head=head(seq=6)), set(), None),  # that beat did not ask
        (reply(head=head(seq=5)), {NAMED}, None),  # nor did anybody ask of record 6
        (reply(head=head(seq=6), receipts=(receipt(1, version=1),)), {NAMED}, False),
        (reply(head=head(seq=7), receipts=(receipt(1, version=2),)), {NAMED}, True),
        (reply(head=head(seq=6), receipts=(receipt(1, fate="expired"),)), {NAMED}, False),
    ],
    ids=["not in it", "not asked", "not heard of", "in it", "in a later one", "in none"],
)
def test_what_is_in_flight_is_told_with_the_version_that_lacks_it(
    answer: BeatReply, asked: set[HandinId], in_flight: bool | None
) -> None:
    """Version 1 of record 6 lies ready, and something is outstanding. Whether it is in that version is
    known from its receipt, or from a beat that asked for it when the log was as far; None: it waits."""
    learner = outstanding_one()
    stage_made_by(learner, 1, seq=6)
    assert not learner.plan(100.0).adoptions
    learner.on_beat(answer, asked)
    told = [adoption.in_flight for adoption in learner.plan(100.0).adoptions]
    assert told == ([] if in_flight is None else [in_flight])


def test_what_is_not_announced_yet_is_in_no_version() -> None:
    """Nobody need be asked; nor of a version from before the announcement."""
    learner = outstanding_one(announced=False)
    stage_made_by(learner, 1, seq=6)
    assert [a.in_flight for a in learner.plan(100.0).adoptions] == [True]
    learner = outstanding_one()
    stage_made_by(learner, 1, seq=5)
    assert [a.in_flight for a in learner.plan(100.0).adoptions] == [True]


def test_what_is_in_flight_stays_until_a_version_has_it() -> None:
    """Through adoptions of versions that lack it, and with its receipt known; not beyond a re-alignment."""
    learner = outstanding_one()
    for version, seq in ((1, 6), (2, 7)):
        learner.on_beat(reply(head=head(seq=seq)), {NAMED})
        stage_made_by(learner, version, seq)
        (adoption,) = learner.plan(100.0).adoptions
        assert adoption.in_flight
        learner.begin(learner.plan(100.0))
    learner.on_beat(reply(head=head(seq=9), receipts=(receipt(1, version=4),)), {NAMED})
    stage_made_by(learner, 3, seq=8)
    assert learner.plan(100.0).adoptions[0].in_flight
    learner.begin(learner.plan(100.0))
    stage_made_by(learner, 4, seq=9)
    assert not learner.plan(100.0).adoptions[0].in_flight
    learner = outstanding_one()
    learner.on_beat(reply(order=Order(kind="realign", incarnation=2)))
    stage_made_by(learner, 1, seq=6)
    stage(learner, 1, 1)
    learner.begin(learner.plan(100.0))
    stage_made_by(learner, 2, seq=7)
    assert [a.in_flight for a in learner.plan(100.0).adoptions] == [False]


def test_the_log_tells_of_what_is_in_flight_while_redis_is_away() -> None:
    """Records that follow each other name all receipts, so one that is not there is in none of them."""
    learner = outstanding_one()
    log = genesis()
    for _ in range(6):
        record = step_record(log)
        apply(log, record)
        learner.on_record(record, "digest")
    stage_made_by(learner, 6, seq=6)
    assert [a.in_flight for a in learner.plan(100.0).adoptions] == [True]


def test_a_round_is_answered_once() -> None:
    """Even if the receipt comes while the round is still shown."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    hand_in(learner, 0)
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),), receipts=(receipt(1),)))
    assert not learner.plan(100.0).snapshots


def test_a_pull_outlives_its_round() -> None:
    """A round that closed between two boundaries is answered late; a newer one takes its place."""
    learner = aligned()
    learner.on_beat(reply(rounds=(open_round(0, 7), open_round(1, 8))))
    learner.on_beat(reply(rounds=()))
    learner.on_beat(reply(rounds=(open_round(0, 9),)))
    steps(learner, 1)
    assert sorted(s.launch for s in learner.plan(100.0).snapshots) == [8, 9]


def test_a_learner_that_was_late_once_is_in_time_again() -> None:
    """What it handed in late was merged by the fragment's next round: that has its answer, and the one
    after it is answered when it opens. To answer each round when its receipt came kept a learner of a real
    run a version late for good."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    hand_in(learner, 0)  # arrives when round 7 has closed
    steps(learner, 1)
    after = msgspec.structs.replace(open_round(0, 9), version_before=1)
    learner.on_beat(reply(rounds=(after,)))
    assert not learner.plan(100.0).snapshots
    # round 9 has merged it, and is closed
    learner.on_beat(reply(rounds=(), receipts=(receipt(1, version=2),)))
    assert not learner.plan(100.0).snapshots
    steps(learner, 1)
    last = msgspec.structs.replace(open_round(0, 11), version_before=2)
    learner.on_beat(reply(rounds=(last,)))
    assert [(s.launch, s.steps) for s in learner.plan(100.0).snapshots] == [(11, 2)]


def test_a_receipt_of_an_older_round_answers_none_that_redis_has_lost() -> None:
    """Round 9 is open, Redis loses its rounds, and the receipt of what round 7 has merged comes then: round
    9, shown again, still waits. All learners took it for answered once, and it never closed (seed 1102132)."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    hand_in(learner, 0)
    steps(learner, 1)
    again = msgspec.structs.replace(open_round(0, 9), version_before=1)
    learner.on_beat(reply(rounds=(again,)))
    learner.on_beat(reply(rounds=(), receipts=(receipt(1, version=1),)))
    learner.on_beat(reply(rounds=(again,)))
    assert [s.launch for s in learner.plan(100.0).snapshots] == [9]


def test_rounds_with_lower_launch_numbers_are_answered() -> None:
    """A coordinator that wrote no record and then Redis were lost: the next one's epoch is no higher,
    and its launch numbers may begin below those that learners have answered."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 2_000_003), open_round(1, 2_000_004))))
    hand_in(learner, 0, 1)
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 1_000_001),), receipts=(receipt(1), receipt(1, 1))))
    assert [(s.fragment, s.launch) for s in learner.plan(100.0).snapshots] == [(0, 1_000_001)]


@pytest.mark.parametrize("fate", ["expired", "refused", "lost"])
def test_a_round_is_answered_again_if_the_answer_came_to_nothing(fate: str) -> None:
    """It still waits. Where the answers of all learners were too late, nobody would ever close it
    (seed 70849 of the simulated world)."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    hand_in(learner, 0)
    learner.on_beat(reply(rounds=(open_round(0, 7),), receipts=(receipt(1, fate=fate),)))
    if fate == "refused":
        stage(learner, 0, 0)
        stage(learner, 1, 0)
        learner.begin(learner.plan(100.0))
    steps(learner, 1)
    assert [(s.fragment, s.launch, s.seq) for s in learner.plan(100.0).snapshots] == [(0, 7, 2)]


def test_a_round_from_another_version_is_another_round() -> None:
    """Redis fell back to a copy from before an epoch was given out: two coordinators have it, and both
    begin with the same launch number (found by seed 40234 of the simulated world)."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 2_000_001),)))
    hand_in(learner, 0)
    steps(learner, 1)
    again = msgspec.structs.replace(open_round(0, 2_000_001), version_before=1)
    learner.on_beat(reply(rounds=(again,), receipts=(receipt(1),)))
    assert [(s.fragment, s.launch) for s in learner.plan(100.0).snapshots] == [(0, 2_000_001)]


def test_the_fragment_that_is_most_behind_is_staged_first() -> None:
    """In the order of their numbers the last ones waited for ever, over a link that is too slow for all."""
    learner = aligned()
    learner.on_fragments([state(0, 1), state(1, 1)])
    assert [s.fragment for s in learner.wanted()] == [0, 1]
    learner.on_staged(0, Staged(1, 0, ref("f0v1").sha256))
    learner.on_fragments([state(0, 2), state(1, 2)])
    assert [s.fragment for s in learner.wanted()] == [1, 0]


def test_the_most_overdue_fragments_go_first_and_few_at_a_time() -> None:
    """At most two uploads wait, those with the most steps not handed in; a drain takes all."""
    learner = LearnerMachine(
        learner="a", incarnation=2, shares=(0.25,) * 4, settings=Settings(), now=100.0
    )
    for p in range(4):
        stage(learner, p, 0)
    learner.begin(learner.plan(100.0))
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(2, 1),)))
    hand_in(learner, 2)
    learner.on_beat(reply(receipts=(receipt(1, 2),)))
    steps(learner, 1)
    learner.on_beat(reply(rounds=tuple(open_round(p, 10 + p) for p in (2, 3, 0, 1))))
    assert [s.fragment for s in learner.plan(100.0).snapshots] == [0, 1]
    learner.drain()
    assert [s.fragment for s in learner.plan(100.0).snapshots] == [0, 1, 3, 2]


def test_rounds_of_another_line_pull_nothing() -> None:
    """After a rollback the learner re-aligns first."""
    learner = aligned()
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7, line=1),)))
    assert not learner.plan(100.0).snapshots


def test_weights_that_are_not_finite_are_given_up() -> None:
    """Nothing was handed in: the number is used again, the steps are discarded, and the run's
    weights are taken anew. The round still waits, and gets what is trained on those."""
    learner = aligned()
    steps(learner, 3)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    learner.begin(learner.plan(100.0))
    learner.on_spoiled(0)
    assert learner.outstanding == []
    assert learner.tracks[0].seq == 0
    assert learner.tracks[0].discarded == Amount(steps=3, tokens=300)
    assert not learner.aligned
    assert not check_learner(learner)
    for fragment in (0, 1):
        stage(learner, fragment, 0)
    learner.begin(learner.plan(100.0))
    steps(learner, 1)
    assert [(s.launch, s.seq) for s in learner.plan(100.0).snapshots] == [(7, 1)]


def test_a_predecessor_s_contribution_blocks_its_fragment() -> None:
    """What the old life announced must have its receipt before the new one hands in that fragment."""
    learner = aligned()
    learner.on_inherited(handin(genesis(), "a", 0))
    steps(learner, 1)
    rounds = (open_round(0, 7), open_round(1, 8))
    learner.on_beat(reply(rounds=rounds))
    assert [s.fragment for s in learner.plan(100.0).snapshots] == [1]
    learner.on_beat(reply(rounds=rounds, receipts=(receipt(1, incarnation=1),)))
    assert sorted(s.fragment for s in learner.plan(100.0).snapshots) == [0, 1]


# ---- adopting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "kept", "base"), [("carry", 5, 0), ("blend", 2, 0), ("overwrite", 0, 1)]
)
def test_adoption_in_the_middle_of_an_interval(mode: Any, kept: int, base: int) -> None:
    """5 steps of 100 on v0, then v1: carry keeps all under the older base, blend int(5/2) of them,
    overwrite none, so that the next step is on v1. What is not kept is discarded."""
    learner = aligned(adopt=AdoptSettings(mode=mode, alpha=0.5))
    steps(learner, 5)
    stage(learner, 0, 1)
    learner.begin(learner.plan(100.0))
    track = learner.tracks[0]
    assert track.in_u.steps == kept
    assert track.discarded.steps == 5 - kept
    assert learner.tracks[1].in_u.steps == 5
    steps(learner, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    (snapshot,) = learner.plan(100.0).snapshots
    assert (snapshot.oldest_base, snapshot.steps, snapshot.held) == (base, kept + 1, (1, 0))
    assert not check_learner(learner)


def test_a_fragment_is_not_adopted_while_its_anchor_moves() -> None:
    """Neither at the boundary of its snapshot nor until that is encoded; others are."""
    learner = aligned()
    steps(learner, 1)
    stage(learner, 0, 1)
    stage(learner, 1, 1)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    plan = learner.plan(100.0)
    assert [s.fragment for s in plan.snapshots] == [0]
    assert [a.fragment for a in plan.adoptions] == [1]
    learner.begin(plan)
    assert not learner.plan(100.0).adoptions
    learner.on_encoded(0)
    assert [(a.fragment, a.realign) for a in learner.plan(100.0).adoptions] == [(0, False)]


@pytest.mark.parametrize("how", ["refusal", "order", "rollback"])
def test_realigning_throws_u_away(how: str) -> None:
    """After a refusal, an order or a rollback the whole model is taken anew, and u is discarded
    even in carry mode."""
    learner = aligned()
    steps(learner, 3)
    line = 0
    if how == "refusal":
        learner.on_beat(reply(rounds=(open_round(0, 7),)))
        learner.begin(learner.plan(100.0))
        learner.on_encoded(0)
        learner.on_announced(0)
        learner.on_beat(reply(receipts=(receipt(1, fate="refused"),)))
    elif how == "order":
        order = Order(kind="realign", incarnation=2, reason="norm")
        learner.on_beat(reply(order=order))
    else:
        line = 1
        stage(learner, 0, 1)
        learner.on_beat(reply(head=head(line=1)))
        assert learner.tracks[0].staged is None
    assert not learner.plan(100.0)
    steps(learner, 1)
    stage(learner, 0, 5, line)
    assert not learner.plan(100.0)
    stage(learner, 1, 5, line)
    learner.begin(learner.plan(100.0))
    assert learner.aligned
    assert learner.realigns == 2
    assert [track.in_u.steps for track in learner.tracks] == [0, 0]
    assert not check_learner(learner)


def test_an_order_is_obeyed_once() -> None:
    """It stands in every reply until it is withdrawn; it is not for another incarnation."""
    learner = aligned()
    learner.on_beat(reply(order=Order(kind="realign", incarnation=1)))
    assert learner.aligned
    order = Order(kind="realign", incarnation=2)
    learner.on_beat(reply(order=order))
    stage(learner, 0, 0)
    stage(learner, 1, 0)
    learner.begin(learner.plan(100.0))
    learner.on_beat(reply(order=order))
    assert learner.aligned


def test_a_laggard_s_answer_is_not_followed() -> None:
    """An older head (a stale replica) does not take the learner back."""
    learner = aligned()
    learner.on_beat(reply(head=head(seq=5)))
    learner.on_beat(reply(head=head(seq=4)))
    assert learner.next_seq == 6
    learner.on_fragments([state(0, 4), state(0, 3)])
    assert [s.version for s in learner.wanted()] == [4]


# ---- ending and pausing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"incarnation": 3}, "fenced", "incarnation 3 of a has taken over"),
        ({"order": Order(kind="kick", incarnation=2, reason="bad data")}, "kicked", "bad data"),
        ({"head": head(state="stopped")}, "ended", "the run is over"),
        ({"head": head(state="stopped", why="enough (eve)")}, "ended", "over: enough (eve)"),
        (
            {"order": Order(kind="drain", incarnation=2, reason="reboot")},
            "drained",
            "to leave: reboot",
        ),
    ],
)
def test_reasons_to_stop(changes: dict[str, Any], kind: str, reason: str) -> None:
    """Each says who or what."""
    learner = aligned()
    assert learner.plan(100.0).stop is None
    learner.on_beat(reply(**changes))
    stop = learner.plan(100.0).stop
    assert stop is not None
    assert stop.kind == kind
    assert reason in stop.reason


def test_who_leaves_hands_in_unasked_what_it_has() -> None:
    """What a round has asked for is labelled with it; the rest is handed in without an open round."""
    learner = aligned()
    steps(learner, 2)
    learner.on_beat(reply(rounds=(open_round(0, 7),), order=Order(kind="drain", incarnation=2)))
    plan = learner.plan(100.0)
    assert [(s.fragment, s.launch, s.steps) for s in plan.snapshots] == [(0, 7, 2), (1, UNASKED, 2)]
    assert plan.stop is None
    learner.begin(plan)
    assert learner.plan(100.0).stop is None, "still uploading"
    for fragment in (0, 1):
        learner.on_encoded(fragment)
        learner.on_announced(fragment)
    stop = learner.plan(100.0).stop
    assert stop is not None
    assert stop.kind == "drained"


def test_who_leaves_waits_for_receipts_to_hand_in_the_rest() -> None:
    """It stands still meanwhile: what it trained on now would be lost. Without a receipt it goes
    when its time is over."""
    learner = aligned(liveness=LivenessSettings(drain_s=10.0))
    steps(learner, 2)
    learner.on_beat(reply(rounds=(open_round(0, 7), open_round(1, 8))))
    hand_in(learner, 0, 1)
    steps(learner, 3)
    learner.drain()
    plan = learner.plan(200.0)
    assert (plan.snapshots, plan.stop) == ((), None)
    assert plan.pause
    learner.on_beat(reply(receipts=(receipt(1, 1),)))
    plan = learner.plan(201.0)
    assert [(s.fragment, s.launch, s.steps) for s in plan.snapshots] == [(1, UNASKED, 3)]
    learner.begin(plan)
    learner.on_encoded(1)
    learner.on_announced(1)
    assert learner.plan(207.9).stop is None, "the receipt of fragment 0 may still come"
    stop = learner.plan(208.0).stop
    assert stop is not None
    assert stop.kind == "drained"


def test_who_leaves_without_the_runs_model_goes_at_once() -> None:
    """What was trained on a model given up is thrown away in any case."""
    learner = aligned()
    steps(learner, 2)
    learner.on_beat(reply(order=Order(kind="realign", incarnation=2)))
    learner.drain()
    stop = learner.plan(100.0).stop
    assert stop is not None
    assert stop.kind == "drained"


@pytest.mark.parametrize("action", ["pause", "exit"])
def test_offline_for_too_long(action: Any) -> None:
    """Beyond `max_offline_s` a learner pauses or ends, as set; an answer makes it go on."""
    learner = aligned(liveness=LivenessSettings(max_offline_s=60.0, offline_action=action))
    learner.on_beat(reply())
    learner.on_silence(200.0)
    learner.on_silence(230.0)
    assert not learner.plan(260.0)
    plan = learner.plan(260.5)
    assert bool(plan.pause) == (action == "pause")
    assert (plan.stop is not None and plan.stop.kind == "offline") == (action == "exit")
    learner.begin(plan)
    assert learner.paused == (action == "pause")
    learner.on_beat(reply())
    assert not learner.plan(261.0)


def test_a_run_without_a_coordinator_counts_as_offline() -> None:
    """T15: beats that are answered by Redis alone do not keep a learner training for ever."""
    learner = aligned(liveness=LivenessSettings(max_offline_s=60.0))
    learner.on_beat(reply())
    for now in (200.0, 230.0, 260.5):
        learner.on_beat(reply(coordinated=False))
        learner.on_silence(now)
        assert bool(learner.plan(now).pause) == (now > 260.0)
    learner.on_beat(reply())
    assert not learner.plan(261.0)


def test_redis_rebuilt_means_register_again() -> None:
    """A new boot, or not being known, asks for a registration."""
    learner = aligned()
    asked = []
    for answer in (
        reply(),
        reply(boot="other"),
        reply(boot="other"),
        reply(boot="", registered=False),
    ):
        learner.on_beat(answer)
        asked.append(learner.must_register)
    assert asked == [False, True, False, True]


# ---- the clock --------------------------------------------------------------------------------


def test_the_clock_counts_the_unmerged_work_of_all_by_one_s_own() -> None:
    """Progress 1000 at the head, 200 own tokens since. A third of the tokens merged lately were its
    own, so 600 of all; a share below its equal part does not make the clock run ahead."""
    learner = aligned()
    steps(learner, 2)
    third = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
    learner.on_beat(reply(head=head(progress=1000.0, shares=third)))
    assert learner.progress_tokens() == 1600
    for shares, expected in (
        ({"a": 0.5, "b": 0.5}, 1400),
        ({"a": 0.8, "b": 0.2}, 1250),
        ({"a": 0.1, "b": 0.9}, 1400),
        ({"b": 0.5, "c": 0.5}, 1600),
        ({}, 1200),
    ):
        learner = aligned()
        steps(learner, 2)
        learner.on_beat(reply(head=head(progress=1000.0, shares=shares)))
        assert learner.progress_tokens() == expected, shares


def test_the_clock_never_falls_but_on_a_new_line() -> None:
    """An estimate that was too high is held until the run has caught up."""
    learner = aligned()
    steps(learner, 2)
    learner.on_beat(reply(head=head(progress=1000.0, shares={"b": 0.5, "c": 0.5})))
    assert learner.progress_tokens() == 1600
    learner.on_beat(reply(head=head(seq=2, progress=1100.0, shares={"a": 1.0})))
    assert learner.progress_tokens() == 1600
    learner.on_beat(reply(head=head(seq=3, line=1, progress=500.0)))
    stage(learner, 0, 9, line=1)
    stage(learner, 1, 9, line=1)
    learner.begin(learner.plan(100.0))
    assert learner.progress_tokens() == 500


def test_the_fraction_of_the_budget() -> None:
    """The larger of tokens and commits used, at most 1; 0 without a budget."""
    learner = aligned()
    learner.on_beat(reply(head=head(progress=400.0, global_version=30)))
    assert learner.progress_fraction() == 0.0
    learner.settings = msgspec.structs.replace(
        learner.settings, stop=StopSettings(tokens=1000, commits=60)
    )
    assert learner.progress_fraction() == 0.5
    learner.on_beat(reply(head=head(seq=2, progress=4000.0, global_version=30)))
    assert learner.progress_fraction() == 1.0


def test_work_is_weighted_by_the_fragments_shares() -> None:
    """Fragment 0 (3/4 of the parameters) handed in, fragment 1 (1/4) still in u: 3 steps in all."""
    learner = aligned()
    steps(learner, 4)
    learner.on_beat(reply(rounds=(open_round(0, 7),)))
    learner.begin(learner.plan(100.0))
    assert learner.work("handed_in") == Work(steps=3.0, tokens=300.0)
    assert learner.work("in_u") == Work(steps=1.0, tokens=100.0)
    assert learner.work("discarded") == Work()
