"""The claiming thread: calls when something has changed, bears with silence, leaves with a last word."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddl.config import Settings
from ddl.data import Units
from ddl.errors import RefusedError, RegistryUnavailableError
from ddl.learner.claiming import NEVER_S, ClaimThread, claim_for
from ddl.learner.session import Session
from ddl.learner.shared import Shared
from ddl.protocol.units import Grant, Repeat, UnitCall, UnitReply
from tests.data_sets import Numbers

GONE_S = Settings().liveness.gone_s


class Redis:
    """Answers each call as the test says, and remembers it."""

    def __init__(self) -> None:
        self.calls: list[UnitCall] = []
        self.gone_s: list[float] = []
        self.answers: Callable[[UnitCall], UnitReply | None] = grant
        self.heard = threading.Condition()

    def exchange_units(
        self,
        record: object,  # noqa: ARG002 - as the registry has it
        call: UnitCall,
        *,
        gone_s: float,
    ) -> UnitReply | None:
        with self.heard:
            self.calls.append(call)
            self.gone_s.append(gone_s)
            self.heard.notify_all()
            return self.answers(call)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.heard:
            assert self.heard.wait_for(condition, 30.0)


def grant(call: UnitCall) -> UnitReply:
    first = 100 * call.number
    return UnitReply(granted=tuple(Grant(first + i, 0) for i in range(call.want)))


def silence(call: UnitCall) -> UnitReply:
    raise RegistryUnavailableError("away")


class Learner:
    """What of a learner the thread needs."""

    def __init__(self) -> None:
        self.redis = Redis()
        self.now = 1000.0
        self.told: list[str] = []
        self.failed: list[BaseException] = []
        liveness = SimpleNamespace(gone_s=GONE_S, beat_s=0.01)
        session = SimpleNamespace(
            registry=self.redis,
            record=object(),
            learner="ada",
            incarnation=1,
            clock=SimpleNamespace(monotonic=lambda: self.now),
            tell=lambda name, text, **fields: self.told.append(f"{name}: {text}"),
        )
        shared = SimpleNamespace(
            machine=SimpleNamespace(settings=SimpleNamespace(liveness=liveness)),
            fail=self.failed.append,
        )
        self.units = Units(Numbers(20), unit_size=4, batch_size=2, seed=1)
        self.session, self.shared = cast("Session", session), cast("Shared", shared)
        self.thread: ClaimThread | None = None

    def start(self) -> ClaimThread:
        self.thread = claim_for(self.session, self.shared, self.units)
        assert self.thread is not None
        return self.thread


@pytest.fixture
def learner() -> Iterator[Learner]:
    learner = Learner()
    yield learner
    if learner.thread is not None:
        learner.thread.finish(handed_in=False)
        learner.thread.join(30.0)
        assert not learner.thread.is_alive()


def test_it_keeps_units_claimed_ahead(learner: Learner) -> None:
    """The first answer is there when training begins, and each unit that is taken is replaced."""
    learner.start().wait_ready()
    assert learner.redis.calls[0].want == 2
    stream = iter(learner.units)
    next(stream)
    assert learner.units.places() == {100: 2}
    learner.redis.wait_for(lambda: any(h.begun for h in learner.redis.calls[-1].held))
    for _ in range(2):
        next(stream)
    learner.redis.wait_for(lambda: any(r.ticket == 100 for r in learner.redis.calls[-1].finished))


def test_after_a_silence_nobody_is_taken_for_gone(learner: Learner) -> None:
    """All beats are old when Redis comes back: they get `gone_s` to be new again."""
    learner.redis.answers = silence
    learner.start()
    learner.redis.wait_for(lambda: len(learner.redis.calls) >= 2)
    assert learner.redis.gone_s[:2] == [GONE_S, NEVER_S]
    learner.redis.answers = grant
    learner.redis.wait_for(lambda: learner.redis.calls[-1].number >= 2)
    assert learner.redis.gone_s[-1] == NEVER_S
    assert not learner.failed
    learner.now += GONE_S
    learner.redis.wait_for(lambda: learner.redis.gone_s[-1] == GONE_S)


def test_a_call_without_an_answer_is_made_again(learner: Learner) -> None:
    """Unchanged, also when Redis does not know the run for a moment."""
    learner.redis.answers = lambda call: None
    learner.start()
    learner.redis.wait_for(lambda: len(learner.redis.calls) >= 3)
    assert len({call.number for call in learner.redis.calls[:3]}) == 1


def test_other_data_than_the_run_s_ends_the_learner(learner: Learner) -> None:
    """The training thread raises what this thread was refused with."""

    def refuse(call: UnitCall) -> UnitReply:
        raise RefusedError("cut as 5 units here")

    learner.redis.answers = refuse
    learner.start().join(30.0)
    assert [str(error) for error in learner.failed] == ["cut as 5 units here"]


def test_repeats_are_told(learner: Learner) -> None:
    """To people, by epoch and unit, with the reason."""
    learner.redis.answers = lambda call: UnitReply(repeated=(Repeat(7, "returned"),))
    learner.start().wait_ready()
    learner.redis.wait_for(lambda: len(learner.redis.calls) >= 2)
    unit = learner.units.unit_of(7)[1]
    assert learner.told[0] == (
        f"unit.repeated: unit {unit} is read more than once in epoch 1: whoever had begun it has gone"
    )


@pytest.mark.parametrize(("handed_in", "rows"), [(True, 2), (False, 0)])
def test_the_last_word_leaves_the_place(learner: Learner, handed_in: bool, rows: int) -> None:
    """What was only claimed is given back; of what was begun the place is left, if it may be."""
    thread = learner.start()
    thread.wait_ready()
    next(iter(learner.units))
    thread.finish(handed_in=handed_in)
    thread.join(30.0)
    last = learner.redis.calls[-1]
    assert last.want == 0
    assert [(h.ticket, h.begun, h.rows) for h in last.held] == [(100, True, rows)]


def test_it_leaves_though_redis_is_away(learner: Learner) -> None:
    """One try, and no more."""
    thread = learner.start()
    thread.wait_ready()
    learner.redis.answers = silence
    thread.finish(handed_in=True)
    thread.join(30.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "batches", [None, [1, 2], Units(Numbers(4), unit_size=2, batch_size=1, seed=0, shard=(0, 2))]
)
def test_other_batches_claim_nothing(learner: Learner, batches: Any) -> None:
    """Neither a plain list nor a static shard starts a thread."""
    assert claim_for(learner.session, learner.shared, batches) is None
