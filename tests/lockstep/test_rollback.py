"""Going back to an earlier version, holding a run that went bad, and what people ask of a run."""

from __future__ import annotations

import msgspec
import pytest
import torch

from ddl.config import GateSettings, HealthSettings, KeepSettings, RoundSettings, Section
from ddl.core import events as e
from ddl.protocol.records import Handin, Health, LogRecord, Order, Request, RequestKind
from tests.lockstep.coordinator import Coordinator
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import ConstantGradient

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])
KEEP_ALL = KeepSettings(versions=1000)


def scripted_run(num_fragments: int, **sections: Section) -> Run:
    """A run whose two scripted learners are both in every merge."""
    rounds = RoundSettings(
        every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), quorum=2
    )
    given: dict[str, Section] = {"round": rounds, "keep": KEEP_ALL, **sections}
    run = Run(settings_of(num_fragments, **given), infos(num_fragments))
    for name in "ab":
        Scripted(run, name)
    return run


def ask(
    run: Run, kind: RequestKind, *, id_: str = "1", within_s: float = 30.0, **wish: object
) -> str:
    """Ask the coordinator for something; its answer."""
    coordinator = run.coordinator
    assert coordinator is not None
    request = Request(id=id_, kind=kind, who="ann", why="because", **wish)  # type: ignore[arg-type]
    coordinator.tell(e.Requested(request))
    assert run.time.run(within_s, until=lambda: id_ in coordinator.answers), "no answer"
    return coordinator.answers[id_]


def of_kind(run: Run, kind: str) -> list[LogRecord]:
    return [record for record in run.records() if record.kind == kind]


def said(coordinator: Coordinator, name: str) -> list[str]:
    return [say.text for say in coordinator.said if say.name == name]


def model_at(run: Run, version: int) -> dict[str, torch.Tensor]:
    """The weights that the log names for a global version."""
    found = run.find_version(version)
    values: dict[str, torch.Tensor] = {}
    for fragment, head in enumerate(found.fragments):
        values |= run.weights(fragment, head.published)
    return values


def tell_losses(run: Run, loss: float) -> None:
    """From now on both learners tell this loss with what they hand in."""

    def forge(handin: Handin) -> Handin:
        return msgspec.structs.replace(handin, loss=loss)

    for learner in run.scripted.values():
        learner.forge = forge


# ---- ddl rollback -------------------------------------------------------------------------------


@ONE_AND_MANY
def test_a_rollback_takes_an_earlier_version_up_again(num_fragments: int) -> None:
    """All fragments point at that version's objects under new numbers; the line rises, progress is
    that version's, momentum too, and the run goes on from there."""
    run = scripted_run(num_fragments)
    run.start_coordinator()
    run.go(commits=5 * num_fragments)
    back_to = 2 * num_fragments
    there = run.find_version(back_to)
    before = run.log.global_version
    assert ask(run, "rollback", version=back_to) == "done"
    (record,) = of_kind(run, "rollback")
    assert (record.who, record.why, record.back_to) == ("ann", "because", back_to)
    assert (record.line, record.state) == (1, "running")
    assert record.global_version >= before + 1
    assert record.progress == there.progress
    assert run.log.health == Health(), "what is known is of the model that was given up"
    for head, step in zip(there.fragments, record.fragments, strict=True):
        assert (step.published, step.outer) == (head.published, head.outer)
    run.go(commits=record.global_version + 3 * num_fragments)
    assert run.log.line == 1
    assert run.log.progress > there.progress
    checked(run)


@ONE_AND_MANY
def test_real_learners_realign_after_a_rollback(num_fragments: int) -> None:
    """They throw away what they have trained since, hold the old version's weights exactly, and are
    merged again on the new line; every step is handed in, discarded or still in hand."""
    run = Run(
        settings_of(num_fragments, keep=KEEP_ALL, round=RoundSettings(every_steps=8, in_flight=1)),
        infos(num_fragments),
    )
    run.start_coordinator()
    learners = [
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), step_s=s)
        for name, s in [("a", 1.0), ("b", 1.7)]
    ]
    run.go(commits=4 * num_fragments)
    assert ask(run, "rollback", version=num_fragments) == "done"
    clock_before = learners[0].machine.progress_tokens()
    reached = run.time.run(60.0, until=lambda: all(x.machine.line == 1 for x in learners))
    assert reached
    assert all(x.machine.realigns == 2 for x in learners)
    assert learners[0].machine.progress_tokens() < clock_before
    version = run.log.global_version
    run.go(commits=version + 3 * num_fragments)
    merged = [r for r in run.records() if r.line == 1 and r.kind == "step"]
    assert {x.learner for r in merged for x in r.receipts if x.fate == "merged"} == {"a", "b"}
    checked(run)


def test_what_was_handed_in_on_the_old_line_is_rolled_back() -> None:
    """A contribution that waits, one that is fetched, and one that comes late: none is merged."""
    run = scripted_run(1)
    late = Scripted(run, "c", post_s=lambda _: 40.0)
    run.start_coordinator()
    run.go(commits=4)
    assert run.time.run(60.0, until=lambda: bool(run.services.handins))
    line_0 = len(run.receipts())
    assert ask(run, "rollback", version=1) == "done"
    run.time.run(120.0)
    fates = {r.id: r.fate for r in run.receipts()}
    handins = [h for s in run.scripted.values() for h in s.handins if h.line == 0]
    rolled_back = [h for h in handins if fates[h.id] == "rolled_back"]
    assert rolled_back, "nothing was under way"
    assert any(h.learner == late.name for h in rolled_back)
    assert all(fates[h.id] in ("rolled_back", "merged") for h in handins)
    assert len(run.receipts()) > line_0
    checked(run)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (99, "there is no version 99: the run's versions are 0 to"),
        (-1, "there is no version -1"),
        (2, "version 2 is not kept: keep.versions = 3 and keep.every = 50"),
    ],
)
def test_there_is_no_way_back_to_what_is_not_kept(version: int, reason: str) -> None:
    """The answer says why, and the log is as it was. Version 0 is one of every 50: it is kept."""
    run = scripted_run(1, keep=KeepSettings(versions=3))
    run.start_coordinator()
    run.go(commits=10)
    refused = ask(run, "rollback", version=version)
    assert refused.startswith(f"refused: {reason}")
    newest = run.log.global_version
    near = f"; the nearest that are kept: 0 and {newest - 2}"
    assert refused.endswith(near) == (version == 2)
    assert ask(run, "rollback", id_="2", version=newest) == (
        f"refused: version {newest} is the newest one"
    )
    assert not of_kind(run, "rollback")
    assert ask(run, "rollback", id_="3", version=0) == "done"
    assert run.log.progress == 0.0
    checked(run)


def test_objects_that_are_gone_refuse_a_rollback() -> None:
    """Whatever the settings promise, what the store says counts; the run goes on as it was."""
    run = scripted_run(1)
    coordinator = run.start_coordinator()
    run.go(commits=3)
    coordinator.find_version = lambda version: e.VersionFound(version, problem="f0 is missing")
    assert ask(run, "rollback", version=1) == "refused: f0 is missing"
    run.go(commits=5)
    assert not of_kind(run, "rollback")
    checked(run)


def test_a_request_is_served_once_by_two_coordinators() -> None:
    """A coordinator that dies between the record and the answer leaves the request to the next one,
    which finds it in the log and does nothing again."""
    run = scripted_run(1)
    first = run.start_coordinator()
    run.go(commits=3)
    request = Request(id="1", kind="rollback", who="ann", version=1)
    first.tell(e.Requested(request))
    assert run.time.run(30.0, until=lambda: bool(of_kind(run, "rollback")))
    first.die()
    second = run.start_coordinator()
    second.tell(e.Requested(request))
    assert second.answers == {"1": "done"}
    run.go(commits=run.versions + 3)
    assert len(of_kind(run, "rollback")) == 1
    checked(run)


# ---- health.rollback ----------------------------------------------------------------------------


@ONE_AND_MANY
def test_a_run_whose_losses_jump_is_held(num_fragments: int) -> None:
    """After three rounds in which all losses are beyond the bound nothing is merged any more, and
    people are told why; a new coordinator holds it as well, until somebody lets it go on."""
    run = scripted_run(num_fragments)
    coordinator = run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=8)
    tell_losses(run, 2.5)
    assert run.time.run(500.0, until=lambda: run.log.state == "held")
    (record,) = of_kind(run, "settings")
    assert (record.who, record.state) == ("health", "held")
    assert "more than 20% above 2, the healthy ones before" in record.why
    assert said(coordinator, "run.held")
    held_at = run.log.global_version
    bad = [r for r in of_kind(run, "step") if (r.health.loss_least or 0.0) == 2.5]
    assert len(bad) == 3
    coordinator.die()
    run.start_coordinator()
    run.time.run(300.0)
    assert (run.log.state, run.log.global_version) == ("held", held_at)
    assert run.services.head is not None
    assert run.services.head.state == "held"
    assert ask(run, "resume") == "done"
    run.go(commits=held_at + 6)  # 2.5 is what counts as healthy now
    assert run.log.state == "running"
    checked(run)


def test_one_learner_with_a_bad_loss_holds_nothing() -> None:
    """All learners must say so: one alone has trouble of its own."""
    run = scripted_run(1)
    run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=6)
    run.scripted["a"].forge = lambda handin: msgspec.structs.replace(handin, loss=50.0)
    run.go(commits=16)
    assert run.log.state == "running"
    checked(run)


def test_two_bad_rounds_are_chance() -> None:
    """A healthy round between them begins the count anew."""
    run = scripted_run(1)
    run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=6)
    for _ in range(3):
        tell_losses(run, 3.0)
        run.go(commits=run.versions + 2)
        tell_losses(run, 2.0)
        assert run.time.run(500.0, until=lambda: run.log.vitals.num_bad == 0)
    assert run.log.state == "running"


@ONE_AND_MANY
def test_auto_goes_back_to_the_last_healthy_version(num_fragments: int) -> None:
    """`health.rollback = "auto"`: the run is the model again that the healthy losses were had on, by
    itself. When that does not help, the second time it is held."""
    run = scripted_run(num_fragments, health=HealthSettings(rollback="auto"))
    run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=4 * num_fragments + 4)
    tell_losses(run, 9.0)
    assert run.time.run(500.0, until=lambda: bool(of_kind(run, "rollback")))
    (record,) = of_kind(run, "rollback")
    good = [r for r in of_kind(run, "step") if r.health.loss_least == 2.0]
    assert record.back_to == good[-1].global_version - num_fragments
    assert (record.who, record.state) == ("health", "running")
    assert record.back_to is not None
    before = model_at(run, record.back_to)
    after = model_at(run, record.global_version)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert run.time.run(500.0, until=lambda: run.log.state == "held")
    assert len(of_kind(run, "rollback")) == 1
    checked(run)


def test_auto_without_a_way_back_holds() -> None:
    """If the healthy version's objects are gone, a person has to look; the reason says both."""
    run = scripted_run(1, health=HealthSettings(rollback="auto"))
    coordinator = run.start_coordinator()
    coordinator.find_version = lambda version: e.VersionFound(version, problem="f0 is missing")
    tell_losses(run, 2.0)
    run.go(commits=6)
    tell_losses(run, 9.0)
    assert run.time.run(500.0, until=lambda: run.log.state == "held")
    assert run.records()[-1].why.endswith("no way back to version 5: f0 is missing") or (
        "no way back to version" in run.records()[-1].why
    )
    checked(run)


def test_merges_that_are_not_finite_hold_the_run() -> None:
    """One that is not is blamed on its largest contribution; three in a row say that the model is."""
    run = Run(settings_of(1, gate=GateSettings(refusals_max=1000)), infos(1))
    coordinator = run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=2)

    def fail(merge: e.Merge) -> e.MergeFailed:
        worst = merge.inputs[0].handin.id
        return e.MergeFailed(merge.launch, "not finite", ((worst, "not finite"),))

    coordinator.fail_merge = fail
    assert run.time.run(500.0, until=lambda: run.log.state == "held")
    assert run.records()[-1].why == "3 merges in a row were not finite"
    assert run.log.global_version == 2
    coordinator.fail_merge = lambda merge: None
    assert ask(run, "resume") == "done"
    run.go(commits=4)
    checked(run)


def test_health_that_is_off_never_holds() -> None:
    """Losses that jump are shown, and nothing else."""
    run = scripted_run(1, health=HealthSettings(rollback="off"))
    run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=6)
    tell_losses(run, 9.0)
    run.go(commits=16)
    assert run.log.state == "running"
    assert run.log.vitals.healthy_version == run.log.global_version - 1


def test_a_rollback_frees_a_run_that_is_held() -> None:
    """What it was held for is undone; its old losses count as healthy still."""
    run = scripted_run(1)
    run.start_coordinator()
    tell_losses(run, 2.0)
    run.go(commits=6)
    tell_losses(run, 9.0)
    assert run.time.run(500.0, until=lambda: run.log.state == "held")
    tell_losses(run, 2.0)
    assert ask(run, "rollback", version=4) == "done"
    run.go(commits=run.versions + 4)
    assert (run.log.state, run.log.line) == ("running", 1)
    checked(run)


# ---- pause, resume, kick, drain -----------------------------------------------------------------


def test_a_paused_run_stands_still_and_goes_on() -> None:
    """Nothing is merged, no learner takes a step, beats go on; a new coordinator keeps it so."""
    run = Run(settings_of(2), infos(2))
    coordinator = run.start_coordinator()
    learner = run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3)
    assert ask(run, "pause") == "done"
    assert ask(run, "pause", id_="2") == "refused: the run is paused already"
    run.time.run(5.0)
    steps, version = learner.machine.local_steps, run.log.global_version
    assert learner.machine.plan(run.time.now).pause == "the run is paused"
    coordinator.die()
    run.start_coordinator()
    run.time.run(100.0)
    assert (learner.machine.local_steps, run.log.global_version) == (steps, version)
    assert ask(run, "resume", id_="3") == "done"
    assert ask(run, "resume", id_="4") == "refused: the run is running already"
    run.go(commits=version + 3)
    assert learner.machine.local_steps > steps
    assert [(r.state, r.who) for r in of_kind(run, "settings")] == [
        ("paused", "ann"),
        ("running", "ann"),
    ]
    checked(run)


def test_a_round_that_is_open_in_a_paused_run_says_so() -> None:
    """Whoever is in by now: it is not judged until the run goes on."""
    run = Run(settings_of(2), infos(2))
    run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3)
    assert run.time.run(100.0, until=lambda: bool(run.rounds))
    assert ask(run, "pause") == "done"
    run.time.run(5.0)
    assert {why for _, why in run.rounds} == {"the run is paused"}
    assert ask(run, "resume", id_="2") == "done"
    run.go(commits=run.versions + 2)
    assert "the run is paused" not in {why for _, why in run.rounds}


def test_settings_change_while_a_run_is_paused() -> None:
    """The change is in force, and the run stays as it is."""
    run = scripted_run(1)
    run.start_coordinator()
    run.go(commits=1)
    assert ask(run, "pause") == "done"
    assert ask(run, "set", id_="2", changes={"outer.lr": 0.1}) == "done"
    assert (run.log.state, run.log.settings.outer.lr) == ("paused", 0.1)


def test_a_kicked_learner_leaves_and_returns_only_when_it_is_allowed() -> None:
    """It is told why; what it handed in is refused; no round waits for it; a new life of it, and a new
    coordinator, change nothing. `allow` lets it in again."""
    run = Run(settings_of(1), infos(1))
    coordinator = run.start_coordinator()
    task = ConstantGradient(run.layout, lr=0.1)
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    bad = run.add_learner("bad", task)
    run.go(commits=4)
    assert ask(run, "kick", learner="bad") == "done"
    assert run.time.run(10.0, until=lambda: not bad.alive)
    stop = bad.machine.plan(run.time.now).stop
    assert stop is not None
    assert (stop.kind, stop.reason) == ("kicked", "kicked: because (by ann)")
    coordinator.die()
    run.start_coordinator()
    again = run.add_learner("bad", task)
    assert run.time.run(10.0, until=lambda: not again.alive)
    run.go(commits=run.versions + 3)
    kicked_at = next(r.seq for r in run.records() if r.barred)
    later = [x for r in run.records() if r.seq > kicked_at for x in r.receipts]
    assert "merged" not in {x.fate for x in later if x.learner == "bad"}
    assert ask(run, "allow", id_="2", learner="bad") == "done"
    assert ask(run, "allow", id_="3", learner="a") == "refused: 'a' was not kicked"
    third = run.add_learner("bad", task)
    run.go(commits=run.versions + 6)
    assert third.alive
    assert "merged" in {x.fate for x in run.receipts("bad") if x.incarnation == third.incarnation}
    checked(run)


def test_what_a_kicked_learner_had_handed_in_is_refused() -> None:
    """Also what waits for its round already: whoever is kicked is not trusted."""
    run = scripted_run(1)
    run.scripted["b"].kill()
    run.start_coordinator()
    assert run.time.run(60.0, until=lambda: bool(run.services.handins))
    assert ask(run, "kick", learner="a") == "done"
    run.time.run(10.0)
    assert [(r.fate, r.reason) for r in run.receipts("a")] == [
        ("refused", "kicked: because (by ann)")
    ]
    assert run.services.orders["a"] == Order(kind="kick", incarnation=1, reason="because (by ann)")
    assert run.services.rounds[0].awaited == ("b",) or not run.services.rounds[0].awaited
    checked(run)


def test_a_drained_learner_hands_in_and_leaves() -> None:
    """An order to one learner: it may come back whenever it likes."""
    run = Run(settings_of(1), infos(1))
    coordinator = run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    leaving = run.add_learner("b", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3)
    assert ask(run, "drain", learner="b") == "done"
    assert said(coordinator, "order.drain") == [
        "b is to hand in what it has and leave: because (ann)"
    ]
    assert run.time.run(60.0, until=lambda: not leaving.alive)
    answer = ask(run, "drain", id_="2", learner="nobody")
    assert answer == "refused: no learner 'nobody' is known in the run; known: a, b"
    assert ask(run, "drain", id_="3", learner="b") == "refused: b has left"
    run.go(commits=run.versions + 2)
    checked(run)
