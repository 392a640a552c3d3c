"""Coordinators that die, meet each other, end and come back; people who ask for things."""

from __future__ import annotations

import pytest
import torch

from ddl.config import RoundSettings, StopSettings
from ddl.core import events as e
from ddl.core import log as log_module
from ddl.core.log import LogState
from ddl.protocol import wire
from ddl.protocol.records import LogRecord, Request
from tests.lockstep.coordinator import Coordinator
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import ConstantGradient

NO_STOP = StopSettings()
ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])


def both_in(num_fragments: int, stop: StopSettings = NO_STOP) -> Run:
    """A run that merges both of its scripted learners each time, whatever the timing."""
    rounds = RoundSettings(
        every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), quorum=2
    )
    run = Run(settings_of(num_fragments, round=rounds, stop=stop), infos(num_fragments))
    for name in "ab":
        Scripted(run, name)
    return run


def state_of(run: Run) -> dict[str, torch.Tensor]:
    """Weights and momentum of the whole model."""
    assert run.coordinator is not None
    tensors = dict(run.model())
    for fragment, head in enumerate(run.log.fragments):
        momentum = run.coordinator.base(fragment, head).momentum
        tensors |= {f"{name}|momentum": value for name, value in (momentum or {}).items()}
    return tensors


@pytest.mark.promise(2)
@pytest.mark.promise(3)
@ONE_AND_MANY
@pytest.mark.parametrize("moment", ["round open", "merging", "writing", "written, not shown"])
def test_a_restart_continues_bit_for_bit(num_fragments: int, moment: str) -> None:
    """Killed at any moment of its third round and started anew, a coordinator ends up with the same
    weights and momentum after six versions of each fragment, bit for bit, as one that lived."""
    whole = both_in(num_fragments)
    whole.start_coordinator()
    whole.go(commits=6 * num_fragments)

    broken = both_in(num_fragments)
    first = broken.start_coordinator(merge_s=0.2, write_s=0.2)
    broken.go(commits=2 * num_fragments)
    assert broken.time.run(60.0, until=lambda: reached(first, moment))
    first.die()
    if moment == "written, not shown":
        assert first.machine.job is not None
        record = first.machine.job.record
        assert record is not None
        broken.services.log[record.seq] = wire.canonical(record)
    broken.time.run(7.0)
    broken.start_coordinator()
    broken.go(commits=6 * num_fragments)

    one, other = state_of(whole), state_of(broken)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert {record.epoch for record in broken.records()} == {1, 2}
    checked(broken)


def reached(coordinator: Coordinator, moment: str) -> bool:
    job = coordinator.machine.job
    if moment == "round open":
        return bool(coordinator.machine.board.rounds) and job is None
    if moment == "merging":
        return job is not None and job.record is None
    return job is not None and job.record is not None and job.record.kind == "step"


@ONE_AND_MANY
def test_real_learners_go_on_through_a_restart(num_fragments: int) -> None:
    """Learners train on while there is no coordinator, and none of their work is lost or repeated."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    first = run.start_coordinator()
    for name, step_s in (("a", 1.0), ("b", 1.4)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), step_s=step_s)
    run.go(commits=3 * num_fragments)
    first.die()
    steps = run.learners["a"].machine.local_steps
    run.time.run(30.0)
    assert run.learners["a"].machine.local_steps >= steps + 29
    run.start_coordinator()
    run.go(commits=9 * num_fragments)
    assert {r.fate for r in run.receipts()} <= {"merged", "expired"}
    checked(run)


def test_a_checkpoint_and_the_tail_are_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding on from any checkpoint gives the very state that folding from record 0 gives."""
    monkeypatch.setattr("ddl.core.machine.CHECKPOINT_EVERY", 5)
    run = both_in(4)
    run.start_coordinator()
    run.go(commits=17)
    assert sorted(run.services.checkpoints) == [5, 10, 15]
    whole = wire.canonical(run.fold())
    for data in run.services.checkpoints.values():
        start = wire.parse(data, LogState, what="checkpoint")
        assert wire.canonical(run.fold(start)) == whole
    assert log_module.CHECKPOINT_EVERY == 256
    checked(run)


def test_shares_told_are_those_of_the_last_merges() -> None:
    """What the head tells of learners' shares are tokens merged in the last four cycles, no more."""
    run = both_in(1)
    run.start_coordinator()
    run.go(commits=3)
    assert run.log.learner_shares() == {"a": 0.5, "b": 0.5}
    run.scripted["b"].kill()
    Scripted(run, "c", tokens=2400)
    run.go(commits=9)
    assert run.log.learner_shares() == {"a": 0.25, "c": 0.75}
    checked(run)


# ---- two coordinators -------------------------------------------------------------------------


def test_a_predecessor_s_last_record_is_followed() -> None:
    """A record of a lower epoch that stands where ours was to go is applied and shown; our own work
    is done again on top of it, and we keep the lease."""
    run = both_in(1)
    old = run.start_coordinator(write_s=0.5)
    run.go(commits=2)
    assert run.time.run(60.0, until=lambda: reached(old, "writing"))
    assert old.machine.job is not None
    last_word = old.machine.job.record
    assert last_word is not None
    new = run.start_coordinator(write_s=2.0)  # it has read the log before the old one's put arrives
    run.time.run(0.6)
    assert wire.parse(run.services.log[3], LogRecord, what="record 3") == last_word
    assert old.quit is None
    old.die()
    run.go(commits=6)
    assert new.quit is None
    assert [r.epoch for r in run.records()] == [1, 1, 1, 2, 2, 2]
    checked(run)


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_record_of_another_holder_ends_a_coordinator(epoch: int) -> None:
    """A record at our seq with a higher epoch, or with ours and another holder, means that the lease
    is lost: nothing more is written."""
    run = both_in(1)
    run.epoch = 1
    mine = run.start_coordinator()
    run.go(commits=1)
    other = mine.machine.log.next_record(
        "settings", epoch=epoch, holder="c9", written_at=run.time.now, ddl_version="0"
    )
    digest = wire.digest(wire.canonical(other))
    mine.tell(e.RecordTaken(other, digest))
    assert mine.quit is not None
    assert mine.quit.outcome == "lease_lost"
    assert mine.quit.reason == f"c9 (epoch {epoch}) holds the run now"
    written = len(run.services.log)
    run.time.run(60.0)
    assert len(run.services.log) == written


# ---- the end ----------------------------------------------------------------------------------


@ONE_AND_MANY
def test_a_run_ends_at_its_budget_of_commits(num_fragments: int) -> None:
    """After `stop.commits` steps a stop record is written, no round is left open, learners end."""
    run = both_in(num_fragments, StopSettings(commits=5))
    run.add_learner("real", ConstantGradient(run.layout, lr=0.1))
    coordinator = run.start_coordinator()
    assert run.time.run(300.0, until=lambda: coordinator.quit is not None)
    assert coordinator.quit == e.Quit("stop.commits = 5 reached", "stopped")
    assert [r.kind for r in run.records() if r.kind != "receipts"] == ["step"] * 5 + ["stop"]
    assert run.services.rounds == ()
    assert run.services.head is not None
    assert run.services.head.state == "stopped"
    run.time.run(5.0)
    assert not run.learners["real"].alive
    checked(run)


def test_a_run_ends_at_its_budget_of_tokens() -> None:
    """Progress counts merged tokens weighted by the fragments' shares: 2 x 800 a round, in quarters."""
    run = both_in(4, StopSettings(tokens=4000))
    coordinator = run.start_coordinator()
    assert run.time.run(300.0, until=lambda: coordinator.quit is not None)
    assert run.versions == 10  # 10 x 1600 / 4 = 4000
    assert run.log.progress == 4000
    checked(run)


def test_a_stopped_run_goes_on_with_a_larger_budget() -> None:
    """A run that ended is not mistaken for one that must end: with a larger budget it goes on, and
    the learners' old goodbye does not end it."""
    run = both_in(1, StopSettings(commits=3))
    coordinator = run.start_coordinator()
    assert run.time.run(300.0, until=lambda: coordinator.quit is not None)
    request = Request(id="1", kind="set", who="ann", changes={"stop.commits": 6})
    again = run.start_coordinator(e.Requested(request))
    assert run.time.run(300.0, until=lambda: again.quit is not None)
    assert run.versions == 6
    assert again.answers == {"1": "done"}
    checked(run)


def test_a_run_at_its_budget_ends_again_without_a_record() -> None:
    """Started on a run whose budget is used up, a coordinator says so and writes nothing."""
    run = both_in(1, StopSettings(commits=3))
    coordinator = run.start_coordinator()
    assert run.time.run(300.0, until=lambda: coordinator.quit is not None)
    before = dict(run.services.log)
    again = run.start_coordinator()
    assert again.quit == e.Quit("stop.commits = 3 reached", "stopped")
    assert run.services.log == before


def test_a_request_stops_a_run_and_a_start_resumes_it() -> None:
    """`stop` takes effect as a record; the next coordinator resumes the run, again by a record."""
    run = both_in(1)
    coordinator = run.start_coordinator()
    run.go(commits=2)
    coordinator.tell(e.Requested(Request(id="1", kind="stop", who="ann", why="enough")))
    assert run.time.run(10.0, until=lambda: coordinator.quit is not None)
    assert coordinator.answers == {"1": "done"}
    assert (run.records()[-1].who, run.records()[-1].why) == ("ann", "enough")
    run.start_coordinator()
    run.go(commits=4)
    assert [r.kind for r in run.records()] == ["step", "step", "stop", "settings", "step", "step"]
    checked(run)


def test_settings_change_by_a_record_and_learners_hear_of_it() -> None:
    """A change of settings is in the log with who and why, in force after it, and shown."""
    run = both_in(1)
    coordinator = run.start_coordinator()
    learner = run.add_learner("real", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2)
    request = Request(
        id="1", kind="set", who="ann", why="slower", changes={"round.every_steps": 16}
    )
    coordinator.tell(e.Requested(request))
    coordinator.tell(e.Requested(request))  # told again until it is removed
    assert run.time.run(10.0, until=lambda: "1" in coordinator.answers)
    (record,) = [r for r in run.records() if r.kind == "settings"]
    assert (record.who, record.why, record.changes) == ("ann", "slower", {"round.every_steps": 16})
    run.time.run(2.0)
    assert learner.machine.settings.round.every_steps == 16
    run.go(commits=5)
    checked(run)


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"merge.method": "mean"}, "refused: merge.method is fixed at genesis"),
        ({"redis.url": "redis://x"}, "refused: redis.url belongs to one machine"),
        ({"round.quorun": 2}, "refused: unknown setting 'round.quorun'. Did you mean"),
        ({"round.quorum": 0}, "refused: round.quorum = 0: must be at least 1"),
    ],
)
def test_impossible_changes_are_refused(changes: dict[str, int | str], answer: str) -> None:
    """What cannot change, or cannot be, is answered with the reason, and no record is written."""
    run = both_in(1)
    coordinator = run.start_coordinator()
    coordinator.tell(e.Requested(Request(id="1", kind="set", who="ann", changes=dict(changes))))
    assert coordinator.answers["1"].startswith(answer)
    run.go(commits=1)
    assert [r.kind for r in run.records()] == ["step"]


def test_a_request_survives_a_record_that_was_taken() -> None:
    """A wish whose record lost its place to a predecessor's is served again, and answered once it
    truly stands in the log."""
    run = both_in(1)
    coordinator = run.start_coordinator(write_s=0.5)
    run.go(commits=1)
    taken = coordinator.machine.log.next_record(
        "settings", epoch=0, holder="c0", written_at=run.time.now, ddl_version="0"
    )
    run.epoch = 1
    machine = coordinator.machine
    assert machine.job is None
    coordinator.tell(
        e.Requested(Request(id="1", kind="set", who="ann", changes={"round.quorum": 1}))
    )
    run.services.log[taken.seq] = wire.canonical(
        wire.parse(wire.canonical(taken).replace(b'"epoch":0', b'"epoch":1'), LogRecord, what="r")
    )
    machine.epoch = 2
    assert run.time.run(10.0, until=lambda: "1" in coordinator.answers)
    changed = [r for r in run.records() if r.changes]
    assert [r.seq for r in changed] == [taken.seq + 1]
    assert coordinator.answers == {"1": "done"}
    checked(run)


def test_a_successor_tells_nothing_that_was_told_before() -> None:
    """Who joined, was lost or failed under an earlier coordinator is no news; what happens to those
    that are still there is, and bears the time at which it came about."""
    run = both_in(1)
    first = run.start_coordinator()
    Scripted(run, "lost")
    run.go(commits=2)
    run.scripted["lost"].kill()
    run.go(commits=30)
    assert "learner.gone" in {said.name for said in first.said if "lost" in said.text}
    first.die()

    second = run.start_coordinator()
    run.go(commits=33)
    assert not [said for said in second.said if said.name.startswith("learner.")]
    run.scripted["b"].kill()
    silent_at = run.services.beats["b"]
    liveness = run.log.settings.liveness
    run.time.run(3 * liveness.gone_s)
    newcomer = Scripted(run, "newcomer")
    told = [(said.name, said.at) for said in second.said if said.name.startswith("learner.")]
    assert told[:3] == [
        ("learner.suspect", silent_at + liveness.suspect_s),
        ("learner.gone", silent_at + liveness.gone_s),
        ("learner.joined", newcomer.started_at),
    ]


@ONE_AND_MANY
def test_a_new_coordinator_opens_a_round_as_soon_as_it_has_heard_of_learners(
    num_fragments: int,
) -> None:
    """Not with its next beat: they have been training on, and wait for nothing else."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3 * num_fragments)
    run.services.rounds = ()
    run.start_coordinator()
    began, beat_s = run.time.now, run.record.settings.liveness.beat_s
    assert run.time.run(10.0, until=lambda: bool(run.rounds))
    assert run.time.now - began < 0.5 * beat_s
