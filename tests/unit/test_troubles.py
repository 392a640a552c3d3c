"""What is wrong with a run, told from a snapshot: what, since when, what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl.core.snapshot import snapshot
from ddl.protocol.records import Fact, Order, RunSnapshot, Trouble, Upload
from ddl.registry.base import View
from tests.views import NOW, fact, learner, merged, receipt, view

ALL_WELL: dict[str, Any] = {
    "learners": {name: learner(name) for name in ("anna", "bert")},
    "beats": {"anna": NOW - 0.2, "bert": NOW - 0.4},
    "receipts": {},
}


def healthy(**changes: Any) -> View:
    return view(**(ALL_WELL | changes))


def taken(shown: View) -> RunSnapshot:
    result = snapshot(shown)
    assert result is not None
    return result


def troubles(**changes: Any) -> dict[str, Trouble]:
    return {trouble.name: trouble for trouble in taken(healthy(**changes)).troubles}


def test_a_healthy_run_has_none() -> None:
    """A round that waits for its quorum in time is no trouble."""
    assert troubles() == {}
    assert taken(healthy()).run.eta_s is not None


def test_below_quorum() -> None:
    """Fewer learners can hand in than a round needs: since its opening, and how many there are."""
    found = troubles(
        learners={"anna": learner("anna"), "bert": learner("bert", state="joining")},
    )
    trouble = found["rounds.below_quorum"]
    assert trouble.alarm
    assert trouble.what == (
        "no round can close: each needs 2 contributions, and 1 learner can hand in (1 joining)"
    )
    assert trouble.cure == "start more learners, or `ddl set demo round.quorum=1`"
    assert trouble.since_at == NOW - 1.5


def test_nobody_is_there() -> None:
    """Then no round is even opened, and nobody knows since when none could be; what there is to do is not
    to lower the quorum."""
    trouble = troubles(learners={}, rounds=())["rounds.below_quorum"]
    assert trouble.what == (
        "no round can open: each needs 2 contributions, and 0 learners can hand in"
    )
    assert trouble.cure == "start learners: `ddl learner join`"
    assert trouble.since_at is None


def test_learners_enough_but_no_round_yet_is_no_trouble() -> None:
    """The first rounds open when they have trained for a while."""
    assert troubles(rounds=()) == {}


def test_nothing_is_left_of_an_eta_when_nothing_moves() -> None:
    """Learners train on, but their pace is not the run's."""
    shown = taken(healthy(beats={"anna": NOW - 0.2, "bert": NOW - 60.0}))
    assert shown.run.eta_s is None


def test_the_store_refuses() -> None:
    """Whom, why, and since when; an alarm if it is everybody."""
    cut = learner("anna", store_down_s=31.0, error="no space left on device")
    found = troubles(learners={"anna": cut, "bert": learner("bert")})
    trouble = found["store.refuses"]
    assert trouble.what == (
        "anna cannot use the store, so no round can close, which needs 2: no space left on device"
    )
    assert (trouble.alarm, trouble.since_at) == (True, NOW - 31.0)
    assert "rounds.below_quorum" not in found, "more learners are not what it lacks"
    enough = {"anna": cut, "bert": learner("bert"), "cleo": learner("cleo")}
    trouble = troubles(learners=enough, beats=dict.fromkeys(enough, NOW - 0.2))["store.refuses"]
    assert trouble.what == "anna cannot use the store: no space left on device"
    assert not trouble.alarm
    alone = troubles(learners={"anna": cut})
    assert "1 without the store" in alone["rounds.below_quorum"].what
    both = troubles(learners={"anna": cut, "bert": learner("bert", store_down_s=4.0)})
    assert both["store.refuses"].alarm
    assert both["store.refuses"].learners == ("anna", "bert")


def test_a_store_that_ailed_a_learner_that_left_is_no_trouble() -> None:
    """Who is not there any more does not need it."""
    left = learner("bert", state="left", store_down_s=31.0)
    assert "store.refuses" not in troubles(learners={"anna": learner("anna"), "bert": left})


def test_one_learner_is_refused() -> None:
    """Its last hand-in with the reason, and that the run stands still where it is needed; then that it
    was put aside, for as long as that is so."""
    refused = receipt("bert", 1, 4, fate="refused", reason="3 of 250 values are not finite")
    names = ("anna", "bert", "cleo")
    enough = {
        "learners": {name: learner(name) for name in names},
        "beats": dict.fromkeys(names, NOW - 0.2),
    }
    trouble = troubles(receipts={"bert/1/1": refused}, **enough)["handin.refused"]
    assert trouble.what == "the last hand-in of bert was refused: 3 of 250 values are not finite"
    assert (trouble.alarm, trouble.learners) == (False, ("bert",))
    told = [fact(age, "contribution.refused", "no", learner="bert") for age in (3, 1)]
    early = troubles(receipts={"bert/1/1": refused}, facts=told[:1])["handin.refused"]
    assert not early.alarm, "a version was made 2 s ago, after it"
    trouble = troubles(receipts={"bert/1/1": refused}, facts=told)["handin.refused"]
    assert trouble.what == (
        "the last hand-in of bert was refused, and no round has closed since, which needs 2: "
        "3 of 250 values are not finite"
    )
    assert trouble.cure.endswith("its precision, or `ddl set demo round.quorum=1`")
    assert (trouble.alarm, trouble.learners) == (True, ("bert",))
    order = Order(kind="realign", incarnation=1, reason="3 of 250 values are not finite")
    found = troubles(receipts={"bert/1/1": refused}, orders={"bert": order})
    assert "handin.refused" not in found
    assert found["learner.aside"].what == (
        "bert is put aside, nothing of it is merged: 3 of 250 values are not finite"
    )


def test_a_kicked_learner() -> None:
    """Waits for a person, and the cure says for which word."""
    order = Order(kind="kick", incarnation=1, reason="its fan is dead")
    trouble = troubles(orders={"bert": order})["learner.kicked"]
    assert trouble.what == "bert was kicked: its fan is dead"
    assert trouble.cure == "`ddl learner allow demo bert` lets it in again"
    left = learner("bert", state="left", error="RefusedError: kicked: its fan is dead")
    learners = {"anna": learner("anna"), "bert": left}
    found = troubles(orders={"bert": order}, learners=learners)
    trouble = found["learner.kicked"]
    assert trouble.what == "bert was kicked: its fan is dead"
    assert (
        trouble.cure == "`ddl learner allow demo bert` lets it in again, when it is started there"
    )
    assert "1 learner can hand in (1 kicked)" in found["rounds.below_quorum"].what


def test_a_kick_that_was_taken_back() -> None:
    """Work that was refused for it is no trouble any more, whether or not the learner has come back,
    and is not what an open round waits for."""
    refused = receipt("bert", 1, 4, fate="refused", reason="kicked: its fan is dead (by ann)")
    told = (fact(1, "contribution.refused", "no", learner="bert"),)
    assert troubles(receipts={"bert/1/1": refused}, facts=told) == {}
    left = learner("bert", state="left", why="kicked: its fan is dead (by ann)")
    enough = {"anna": learner("anna"), "bert": left, "cleo": learner("cleo")}
    beats = dict.fromkeys(enough, NOW - 0.2)
    assert troubles(receipts={"bert/1/1": refused}, learners=enough, beats=beats) == {}


def test_what_a_former_life_met_is_no_trouble_of_the_next() -> None:
    """It was started anew, and has handed in nothing since."""
    refused = receipt("bert", 1, 4, fate="refused", reason="3 of 250 values are not finite")
    again = {"anna": learner("anna"), "bert": learner("bert", incarnation=2)}
    assert troubles(receipts={"bert/1/1": refused}, learners=again) == {}


GONE: dict[str, Any] = {"lease": None, "lease_left_s": None}


def test_no_coordinator() -> None:
    """Since its last sign of life, with the command that starts one."""
    trouble = troubles(**GONE, facts=(merged(12, 14, 0, "anna/1/f0/8"),))["coordinator.gone"]
    assert trouble.alarm
    assert trouble.what == (
        "nothing is merged, learners train on and keep that in memory: no coordinator is alive"
    )
    alone = troubles(**GONE, learners={}, beats={})["coordinator.gone"]
    assert alone.what == "nothing is merged: no coordinator is alive"
    assert trouble.cure == "start one: `ddl coordinator start run.toml`"
    assert trouble.since_at == NOW - 2  # the newest record


@pytest.mark.parametrize(
    ("name", "words"), [("lease.unsure", "is cut off"), ("lease.released", "has ended")]
)
def test_a_coordinator_that_said_why(name: str, words: str) -> None:
    """It may be alive and cut off from the store: starting another one here would not help."""
    said = fact(41, name, "host-a-77: the lease is let go: store directory /srv is gone")
    trouble = troubles(**GONE, facts=(said,))["coordinator.gone"]
    assert words in trouble.what
    assert "store directory /srv is gone" in trouble.what
    assert trouble.since_at == NOW - 41


def test_a_standby_is_named() -> None:
    """Nobody need do anything then."""
    trouble = troubles(**GONE, standbys=("host-b-5",))["coordinator.gone"]
    assert trouble.cure == "host-b-5 will take over"


def test_redis_is_full() -> None:
    """Nobody can beat, so nothing is said of those who seem silent: that would mislead."""
    found = troubles(beats={}, used_bytes=104_000_000, max_bytes=100_000_000)
    assert list(found) == ["redis.full"]
    assert "104.0 MB of maxmemory 100.0 MB" in found["redis.full"].what


def test_held_and_paused_with_their_reason() -> None:
    """Who did it, why and when stands in the head, so it is never too old to be told."""
    for state, cure in (("held", "ddl rollback demo --to N"), ("paused", "ddl resume demo")):
        head = view().head
        assert head is not None
        changed = msgspec.structs.replace(
            head, state=state, why="the loss doubled (health)", state_at=NOW - 300
        )
        trouble = troubles(head=changed)[f"run.{state}"]
        assert trouble.alarm
        assert "the loss doubled (health)" in trouble.what
        assert trouble.since_at == NOW - 300
        assert cure in trouble.cure


def test_a_merge_that_fails() -> None:
    """It is tried again, and nobody need guess why nothing comes of it."""
    reason = "fragment f0001: digest differs"
    round_ = msgspec.structs.replace(view().rounds[0], reason=reason, failed=True)
    trouble = troubles(rounds=(round_,))["rounds.failing"]
    assert (
        trouble.what == "the round of fragment 1 cannot be merged: fragment f0001: digest differs"
    )


def test_a_learner_that_failed_stays_named() -> None:
    """With its error, and not one that left in peace."""
    failed = learner("bert", state="left", error="TaskError: no such file")
    peace = learner("cleo", state="left")
    found = troubles(learners={"anna": learner("anna"), "bert": failed, "cleo": peace})
    assert found["learner.failed"].what == "bert ended with an error: TaskError: no such file"
    assert found["learner.failed"].learners == ("bert",)


def test_a_full_spool() -> None:
    """Trouble that a learner reports of itself while it trains on."""
    found = troubles(
        learners={"anna": learner("anna"), "bert": learner("bert", error="spool: no space left")}
    )
    assert found["learner.trouble"].what == "bert: spool: no space left"
    assert not found["learner.trouble"].alarm


def test_a_learner_that_stands_still() -> None:
    """It beats, so its process is there."""
    found = troubles(learners={"anna": learner("anna"), "bert": learner("bert", idle_s=90.0)})
    assert found["learner.stalled"].since_at == pytest.approx(NOW - 90.4)


def test_few_of_many() -> None:
    """Rounds that close again and again with a fraction of those who are there."""
    names = [f"l{n}" for n in range(8)]
    few = tuple(merged(10.0 - n, n, 0, "l0/1/f0/8", "l1/1/f0/8") for n in range(4))
    many: dict[str, Any] = {
        "learners": {name: learner(name) for name in names},
        "beats": dict.fromkeys(names, NOW),
    }
    trouble = troubles(**many, facts=few)["rounds.few"]
    assert trouble.what == "the last 4 rounds closed with at most 2 of 8 learners"
    enough = (*few[:3], merged(1.0, 9, 0, *(f"{name}/1/f0/8" for name in names)))
    assert "rounds.few" not in troubles(**many, facts=enough)


def test_rounds_that_come_seldom() -> None:
    """H = 24 at 0.1 s a step and two fragments asks for one every 1.2 s; one long gap, a pause, is no trouble."""
    every = {"learners": {"anna": learner("anna", step_s=0.1)}, "beats": {"anna": NOW}}
    seldom = tuple(merged(40.0 - 4.0 * n, n, n % 2, "anna/1/f0/8") for n in range(9))
    trouble = troubles(**every, facts=seldom)["rounds.seldom"]
    assert trouble.what.startswith("a version comes every 4.0 s, not every 1.2 s as")
    assert trouble.since_at == NOW - 40.0
    often = tuple(merged(9.0 - n, n, n % 2, "anna/1/f0/8") for n in range(8))
    paused = (merged(100.0, 0, 0, "anna/1/f0/8"), *often)
    assert "rounds.seldom" not in troubles(**every, facts=paused)


def test_who_came_after_the_rounds_is_not_missed_in_them() -> None:
    """One learner was alone while they closed; seven joined since: nothing is wrong."""
    names = [f"l{n}" for n in range(8)]
    alone = tuple(merged(10.0 - n, n, 0, "l0/1/f0/8") for n in range(4))
    late = {
        name: msgspec.structs.replace(learner(name), started_at=NOW - 5.0) for name in names[1:]
    }
    learners = {"l0": learner("l0")} | late
    found = troubles(learners=learners, beats=dict.fromkeys(names, NOW), facts=alone)
    assert "rounds.few" not in found


def test_uploads_that_starve() -> None:
    """By their own speed, told once for all."""
    slow = Upload(bytes=100_000_000, done_bytes=1_000_000, bytes_per_s=500_000.0)
    found = troubles(learners={n: learner(n, upload=slow) for n in ("anna", "bert")})
    assert found["uploads.starve"].what == "uploads of anna, bert take longer than 60 s each"
    fast = msgspec.structs.replace(slow, bytes_per_s=5e6)
    assert not troubles(learners={n: learner(n, upload=fast) for n in ("anna", "bert")})


def test_outer_steps_that_run_hot() -> None:
    """Outer gradients against the momentum take back what the last steps did; one alone may."""

    def published(*cosines: float) -> tuple[Fact, ...]:
        return tuple(
            fact(
                20 - at, "version.published", "version", learners=["anna", "bert"], cos_prev=cosine
            )
            for at, cosine in enumerate(cosines)
        )

    trouble = troubles(facts=published(-0.6, -0.8, -0.4, -0.6))["outer.hot"]
    assert "the last 4 point against those before (cosine -0.60)" in trouble.what
    assert trouble.since_at == NOW - 20
    assert "outer.hot" not in troubles(facts=published(0.5, 0.4, 0.6, -0.9))
    assert "outer.hot" not in troubles(facts=published(-0.9, -0.9, -0.9))


def test_a_clock_that_jumped() -> None:
    """For a while; then it is an event like others."""
    jumped = fact(20, "clock.jumped", "the clock of Redis moved by +30.0 s")
    assert troubles(facts=(jumped,))["clock.jumped"].what == jumped.text
    assert troubles(facts=(msgspec.structs.replace(jumped, at=NOW - 400),)) == {}


def test_alarms_come_first() -> None:
    """What stops the run stands above what only slows it."""
    shown = taken(
        healthy(
            learners={"anna": learner("anna"), "bert": learner("bert", state="left", error="x")},
            **GONE,
        )
    )
    assert [trouble.alarm for trouble in shown.troubles] == [True, False]


def test_who_is_gone_from_a_run_that_is_over_is_no_trouble() -> None:
    """There is nothing to start it again for; who ended with an error still has it."""
    head = view().head
    assert head is not None
    over = msgspec.structs.replace(head, state="stopped")
    gone = {"beats": {"anna": NOW - 0.2, "bert": NOW - 60.0}}
    assert "learner.gone" in troubles(**gone)
    assert troubles(head=over, **gone) == {}
    failed = {"anna": learner("anna"), "bert": learner("bert", state="left", error="no disk")}
    assert set(troubles(head=over, learners=failed)) == {"learner.failed"}
