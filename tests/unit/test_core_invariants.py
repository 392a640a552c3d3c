"""The invariants see what they are for: each planted mistake is told, a good state is not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from ddl.config import OuterSettings, RoundSettings, Settings
from ddl.core import events as e
from ddl.core.invariants import Watch, check, check_learner
from ddl.core.learner import LearnerMachine, Staged
from ddl.core.machine import Machine
from ddl.protocol import wire
from ddl.protocol.records import Amount, FragmentStep, Health, LedgerRow, Waits
from tests.core_records import genesis, handin, learner, receipt, ref


def machine() -> Machine:
    """Two rounds open, one contribution ready, one refused, one record in the log; nothing wrong."""
    settings = Settings(
        round=RoundSettings(every_steps=4, overlap_steps=1, quorum=2, deadline_s=50.0),
        outer=OuterSettings(preset="fixed"),
    )
    core = Machine(run="demo", log=genesis(settings), epoch=1, holder="c1", ddl_version="0")
    for name in "ab":
        core.step(e.Beat(learner(name), 100.0), 100.0)
    for name in "ab":
        given = handin(core.log, name, 0, launch=core.board.rounds[0].launch)
        core.step(e.Announced(given), 100.1)
        core.step(e.Fetched(given.id, "ok", norm=1.0), 100.2)
    job = core.job
    assert job is not None
    assert job.round is not None
    step = FragmentStep(fragment=0, version_before=0, version_after=1, published=ref("f0v1"))
    merged = e.Merged(job.round.launch, step, Health(), "torch/1", Waits())
    (write,) = [c for c in core.step(merged, 100.4) if isinstance(c, e.WriteRecord)]
    digest = wire.digest(wire.canonical(write.record))
    core.step(e.RecordWritten(write.record, digest), 100.5)
    for now in (102.5, 105.0):  # a round each
        for name in "ab":
            core.step(e.Beat(learner(name, held=(1, 0)), now), now)
    waiting = handin(core.log, "a", 1, launch=core.board.rounds[1].launch)
    core.step(e.Announced(waiting), 105.1)
    core.step(e.Fetched(waiting.id, "ok", norm=1.0), 105.2)
    core.step(e.Announced(handin(core.log, "b", 1, codec="int4/1")), 105.3)
    assert check(core) == []
    assert sorted(core.board.rounds) == [0, 1]
    assert len(core.inbox.pending) == len(core.inbox.unlogged) == 1
    return core


def forget_account(core: Machine) -> None:
    del core.log.accounts["a/1/0"]


def cook_ledger(core: Machine) -> None:
    core.log.ledger[0] = LedgerRow(merged=Amount(steps=1, tokens=1))


def skip_version(core: Machine) -> None:
    core.log.fragments[1].version = 7


def swap_payload(core: Machine) -> None:
    core.log.fragments[0].published = ref("other")


def cook_shares(core: Machine) -> None:
    core.log.lately["a"] += 1


def lose_from_fragment(core: Machine) -> None:
    core.inbox._by_fragment[1].clear()


def settle_and_keep(core: Machine) -> None:
    (pending,) = core.inbox.pending.values()
    core.inbox.unlogged[pending.handin.id] = receipt(core.log, "a", 1, fate="lost")


def merge_without_a_job(core: Machine) -> None:
    (pending,) = core.inbox.pending.values()
    pending.phase = "merging"


def report_more(core: Machine) -> None:
    (pending,) = core.inbox.pending.values()
    pending.handin = msgspec.structs.replace(pending.handin, total=Amount(steps=99, tokens=99))


def promise_a_merge(core: Machine) -> None:
    (id_,) = core.inbox.unlogged
    core.inbox.unlogged[id_] = msgspec.structs.replace(core.inbox.unlogged[id_], fate="merged")


def open_too_many(core: Machine) -> None:
    core.log.settings = msgspec.structs.replace(
        core.log.settings, round=RoundSettings(every_steps=4, overlap_steps=1, in_flight=1)
    )


def open_twice(core: Machine) -> None:
    core.board.rounds[5] = core.board.rounds[0]


def open_from_an_old_version(core: Machine) -> None:
    core.board.rounds[0].version_before = 0


def grace_without_quorum(core: Machine) -> None:
    core.board.rounds[0].grace_until = 200.0


def follow_a_later_epoch(core: Machine) -> None:
    core.log.epoch = 9


def wait_for_a_stranger(core: Machine) -> None:
    core.membership.expected.add("nobody")


PLANTED: list[tuple[Callable[[Machine], None], str]] = [
    (forget_account, "ledger of f0 sums to"),
    (cook_ledger, "ledger of f0 sums to"),
    (skip_version, "f1 is at version 7 after 0 merges"),
    (swap_payload, "the hash on record is not that of its payload"),
    (cook_shares, "tokens merged lately"),
    (lose_from_fragment, "not with its fragment"),
    (settle_and_keep, "has a fate and is pending as well"),
    (merge_without_a_job, "marked as merging are [HandinId(learner='a'"),
    (report_more, "reports Amount(steps=99, tokens=99) in all"),
    (promise_a_merge, "waits for a record with receipt"),
    (open_too_many, "2 rounds are open, round.in_flight is 1"),
    (open_twice, "3 rounds are under way for 2 fragments"),
    (open_from_an_old_version, "starts from v0 line 0, the log is at v1"),
    (grace_without_quorum, "has a quorum or a grace, but not both"),
    (follow_a_later_epoch, "the log is at epoch 9, this coordinator at 1"),
    (wait_for_a_stranger, "rounds wait for ['a', 'b', 'nobody']"),
]


@pytest.mark.parametrize(("plant", "told"), PLANTED, ids=[p.__name__ for p, _ in PLANTED])
def test_a_planted_mistake_is_told(plant: Callable[[Machine], None], told: str) -> None:
    """Every rule that is checked can be broken, and is then named."""
    core = machine()
    plant(core)
    assert any(told in sentence for sentence in check(core)), check(core)


def test_durable_state_moves_by_records_alone() -> None:
    """A watch knows how it was before: progress, versions or accounts that change without one."""
    core = machine()
    watch = Watch()
    assert watch.check(core) == []
    core.step(e.Tick(), 105.9)
    assert watch.check(core) == []
    core.log.progress += 1.0
    assert any("changed without a record" in sentence for sentence in watch.check(core))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seq", 0, "seq fell"),
        ("global_version", 0, "global version fell"),
        ("progress", 0.0, "fell"),
    ],
)
def test_nothing_falls(field: str, value: float, told: str) -> None:
    """What counts upwards never comes down on one line."""
    core = machine()
    watch = Watch()
    watch.check(core)
    setattr(core.log, field, value)
    if field != "seq":
        core.log.seq += 1
    assert any(told in sentence for sentence in watch.check(core))


def test_a_learner_s_mistakes_are_told() -> None:
    """Steps that are counted nowhere, a base that is not held, a lost contribution."""

    def sound() -> LearnerMachine:
        core = LearnerMachine(
            learner="a", incarnation=1, shares=(1.0,), settings=Settings(), now=0.0
        )
        core.on_staged(0, Staged(0, 0, "hash"))
        core.begin(core.plan(0.0))
        core.on_step(100)
        assert check_learner(core) == []
        return core

    def told(core: LearnerMachine) -> str:
        (sentence,) = check_learner(core)
        return sentence

    lost = sound()
    lost.tracks[0].in_u = Amount()
    assert "was trained" in told(lost)
    ahead = sound()
    ahead.tracks[0].oldest_base = 5
    assert "holds v0, and steps on v5" in told(ahead)
    adrift = sound()
    adrift.tracks[0].encoding = True
    assert "none is outstanding" in told(adrift)
    odd = sound()
    odd.tracks[0].hash = ""
    assert "no version was adopted" in told(odd)
