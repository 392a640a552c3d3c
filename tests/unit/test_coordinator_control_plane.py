"""The lease, the mirror in Redis, and the news from it, against registries that do as told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ddl.clock import SystemClock
from ddl.coordinator.lease import LeaseKeeper, new_holder, take
from ddl.coordinator.mirror import Mirror
from ddl.coordinator.watcher import News
from ddl.core import events as e
from ddl.core.log import LogState
from ddl.errors import LeaseLostError, RegistryUnavailableError, StoreError
from ddl.journal import Journal
from ddl.protocol import wire
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    NO_PAYLOAD,
    Amount,
    Fact,
    Handin,
    LearnerRecord,
    Lease,
    Order,
    Receipt,
    Request,
)
from ddl.registry.base import LeaseReply, Poll
from tests.unit.test_coordinator_history import RECORD_0, next_record

QUIET = Journal(None)
THEIRS = Lease(holder="them", epoch=4, host="far", pid=9, taken_at=90.0)
OURS = Lease(holder="us", epoch=5, host="near", pid=1, taken_at=100.0)


class FakeRegistry:
    """Answers lease calls from a list, and writes down all others.

    Attributes:
        fault: raised by every call while it is set.
        fenced: whether calls with an epoch are turned away.
        renewals: leases as they were renewed.
        events: what `told` gives.
    """

    def __init__(self, *replies: LeaseReply) -> None:
        self.replies = list(replies)
        self.calls: list[tuple[str, Any]] = []
        self.fault: Exception | None = None
        self.fenced = False
        self.renewed = threading.Event()
        self.renewals: list[Lease] = []
        self.events: list[Fact] = []

    def told(self) -> list[Fact]:
        if self.fault:
            raise self.fault
        return self.events

    def take_lease(self, *_: object, **__: object) -> LeaseReply:
        return self.replies.pop(0)

    def renew_lease(self, lease: Lease, **_: object) -> LeaseReply:
        self.renewals.append(lease)
        self.renewed.set()
        if self.fault:
            raise self.fault
        return self.replies[0]

    def __getattr__(self, name: str) -> Callable[..., bool]:
        def call(*args: object, **kwargs: object) -> bool:
            if self.fault:
                raise self.fault
            self.calls.append((name, args[1:] if args and args[0] == 5 else args))
            return not self.fenced

        return call

    @property
    def names(self) -> list[str]:
        """Calls since the last look."""
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names


def fake(*replies: LeaseReply) -> Any:
    """One that stands where a CoordinatorRegistry is wanted."""
    return FakeRegistry(*replies)


def held(left_s: float, lease: Lease = THEIRS) -> LeaseReply:
    return LeaseReply(held=False, lease=lease, left_s=left_s, now=100.0)


GRANTED = LeaseReply(held=True, lease=OURS, left_s=10.0, now=100.0)


# ---- lease --------------------------------------------------------------------------------------


def taken(*replies: LeaseReply) -> Lease:
    registry = fake(*replies)
    return take(registry, new_holder(), ttl_s=10, min_epoch=0, clock=SystemClock(), journal=QUIET)


def test_a_holder_that_is_silent_is_waited_for() -> None:
    """Its lease runs out while we look on, and then it is ours."""
    assert taken(held(0.05), held(0.0), GRANTED) == OURS


@pytest.mark.parametrize(
    "second",
    [held(10.0), held(0.01, msgspec.structs.replace(THEIRS, holder="third", epoch=5))],
    ids=["renewed", "taken by a third"],
)
def test_a_holder_that_shows_life_is_named(second: LeaseReply) -> None:
    """With host, process and how long it has held the lease; so is one that was faster than we."""
    with pytest.raises(LeaseLostError, match=r"on host far, process 9, epoch \d, for 10 s"):
        taken(held(0.2), second)


def test_holders_have_names_of_their_own() -> None:
    """Two lives of one process, or two processes of one host, are never taken for one."""
    assert new_holder().holder != new_holder().holder


class Held:
    """A keeper with a short lease, and what it reported."""

    def __init__(self, *replies: LeaseReply, probe: Callable[[], None] = lambda: None) -> None:
        self.registry = fake(*replies)
        self.lost: list[BaseException] = []
        self.reported = threading.Event()
        self.keeper = LeaseKeeper(
            self.registry,
            OURS,
            ttl_s=0.15,
            probe=probe,
            on_lost=self._note,
            clock=SystemClock(),
            journal=QUIET,
        )
        self.keeper.start()

    def _note(self, error: BaseException) -> None:
        self.lost.append(error)
        self.reported.set()


def test_a_renewed_lease_is_sure() -> None:
    """However long ago it was taken."""
    state = Held(GRANTED)
    for _ in range(3):
        state.registry.renewed.clear()
        assert state.registry.renewed.wait(5)
    assert state.keeper.wait_sure()
    state.keeper.close()
    state.keeper.close()
    calls = [name for name in state.registry.names if name not in ("now", "tell")]
    assert calls == ["release_lease"], "closing it again neither lets go nor tells of it again"
    assert not state.keeper.wait_sure(), "closed: no record may be written any more"
    assert not state.lost


def test_a_renewal_tells_how_long_the_last_small_write_took() -> None:
    """One that was sent 2.5 s ago. Large ones, whose time says more of the link, change nothing."""
    state = Held(GRANTED)

    def told() -> list[Lease]:
        return [lease for lease in state.registry.renewals if (lease.store_s or 0.0) >= 2.5]

    while not told():  # a probe may have come between
        state.keeper.store_wrote(since=SystemClock().monotonic() - 2.5)
        state.keeper.store_wrote()
        state.registry.renewed.clear()
        assert state.registry.renewed.wait(5)
    state.keeper.close()
    assert msgspec.structs.replace(told()[0], store_s=None) == OURS


def test_an_unreachable_redis_leaves_the_lease_in_doubt_until_it_answers() -> None:
    """No record is written meanwhile; it is not lost for that."""
    state = Held(GRANTED)
    state.registry.fault = RegistryUnavailableError("away")
    while state.keeper.is_sure:
        state.registry.renewed.clear()
        assert state.registry.renewed.wait(5)
    state.registry.fault = None
    assert state.keeper.wait_sure()
    state.keeper.close()
    assert not state.lost


def test_a_lease_that_another_holds_is_lost_for_good() -> None:
    """It is reported once, and whoever waits to write is let go."""
    state = Held(held(10.0))
    assert state.reported.wait(5)
    assert not state.keeper.wait_sure()
    state.keeper.close()
    assert [type(error) for error in state.lost] == [LeaseLostError]
    assert "process 9" in str(state.lost[0])


def test_a_lease_is_let_run_out_while_the_store_takes_no_writes() -> None:
    """So that another may try; a write makes it sure again."""
    broken = threading.Event()
    broken.set()
    probed = threading.Event()

    def probe() -> None:
        probed.set()
        if broken.is_set():
            raise StoreError("no answer")

    state = Held(GRANTED, probe=probe)
    while state.keeper.is_sure:
        probed.clear()
        assert probed.wait(5)
    broken.clear()
    assert state.keeper.wait_sure()
    state.keeper.close()


def test_a_bug_in_the_keeper_ends_the_service() -> None:
    """A thread has nobody above it: an error that nobody foresaw is handed over."""
    state = Held(GRANTED)
    state.registry.fault = ZeroDivisionError("bug")
    assert state.reported.wait(5)
    assert isinstance(state.lost[0], ZeroDivisionError)
    state.registry.fault = None
    state.keeper.close()


# ---- mirror -------------------------------------------------------------------------------------


class Shown:
    """A mirror, its registry and its log."""

    def __init__(self) -> None:
        self.log = LogState.genesis(RECORD_0)
        self.registry = fake()
        self.mirror = Mirror(
            self.registry,
            run=RECORD_0,
            log=self.log,
            epoch=5,
            store_url="file:///x",
            clock=SystemClock(),
        )
        self.mirror.flush()
        ((name, (entry, *_)),) = self.registry.calls
        assert name == "rebuild"
        self.boot = entry.boot
        self.registry.calls.clear()

    @property
    def later(self) -> float:
        """A monotonic instant after all that was shown."""
        return SystemClock().monotonic() + 1.0

    def commit(self, seq: int) -> None:
        """A record comes into the log."""
        record = next_record(self.log)
        self.log.apply(record, wire.digest(wire.canonical(record)))
        states = (self.log.fragment_state(0),)
        self.mirror.note_record(e.Show(self.log.head(), states, (receipt(seq),)))


def receipt(seq: int) -> Receipt:
    return Receipt(
        learner="a", incarnation=1, fragment=0, seq=seq, fate="merged", steps=1, tokens=1
    )


def handin(seq: int = 1) -> Handin:
    return Handin(
        learner="a",
        incarnation=1,
        fragment=0,
        seq=seq,
        lineage="l",
        line=0,
        launch=1,
        oldest_base=0,
        held=(0,),
        held_digest="",
        steps=1,
        tokens=1,
        total=Amount(steps=seq, tokens=seq),
        codec="fp32/1",
        payload=NO_PAYLOAD,
    )


def test_nothing_new_is_nothing_to_say() -> None:
    shown = Shown()
    assert shown.mirror.flush() is None
    assert shown.registry.names == []
    assert shown.mirror.is_current


def test_what_happened_during_an_outage_is_shown_at_once_afterwards() -> None:
    """The newest head, every receipt; Redis is not tried again before it answers."""
    shown = Shown()
    shown.registry.fault = RegistryUnavailableError("away")
    shown.commit(1)
    assert shown.mirror.flush() is shown.registry.fault
    shown.commit(2)
    shown.mirror.note_fact(Fact(at=0.0, name="a.b", text="x"))
    assert shown.mirror.flush() is None
    assert not shown.mirror.is_current
    shown.registry.fault = None
    shown.mirror.reachable = True
    assert shown.mirror.flush() is None
    (name, (head, states, receipts, entry)), tell = shown.registry.calls
    assert (name, head.seq, [s.version for s in states]) == ("commit", 2, [2])
    assert [r.seq for r in receipts] == [1, 2]
    assert entry is None
    assert tell[0] == "tell"


def left(at: float, text: str) -> Fact:
    return Fact(at=at, name="learner.left", text=text, fields={"learner": "ann"})


def test_a_fact_is_told_once_whoever_finds_it_out() -> None:
    """An earlier coordinator has told it in other words; one of another instant is news. Another thing
    of the same instant is another fact."""
    shown = Shown()
    shown.registry.events = [left(3.0, "ann left (was training)")]
    news = [left(5.0, "ann left"), Fact(at=3.0, name="run.settings", text="a = 1")]
    more = Fact(at=3.0, name="run.settings", text="b = 1")
    for fact in (left(3.0, "ann left"), *news, more):
        shown.mirror.note_fact(fact)
    assert shown.mirror.flush() is None
    assert shown.registry.calls == [("tell", ([*news, more],))]


def test_facts_whose_telling_was_not_answered_are_not_told_twice() -> None:
    """Redis had taken some of them, or all, before the answer was lost."""
    shown = Shown()
    first, second = left(3.0, "ann left"), left(5.0, "ann left")
    shown.mirror.note_fact(first)
    assert shown.mirror.flush() is None
    shown.mirror.note_fact(second)
    shown.registry.fault = RegistryUnavailableError("away")
    assert shown.mirror.flush() is shown.registry.fault
    shown.registry.fault, shown.registry.events = None, [first, second]
    shown.registry.calls.clear()
    shown.mirror.reachable = True
    assert shown.mirror.flush() is None
    assert shown.registry.calls == [("tell", ([],))]


def test_a_rebuild_holds_all_and_orders_stand() -> None:
    """What waited to be shown is in it; rounds and orders, which it clears, come after it."""
    shown = Shown()
    order = Order(kind="realign", incarnation=1)
    shown.mirror.note_order("a", order)
    shown.mirror.note_order("b", order)
    shown.mirror.note_order("b", None)
    shown.mirror.flush()
    assert shown.registry.names == ["set_order", "set_order"]
    shown.commit(1)
    assert shown.mirror.notice_loss(poll(boot=""), asked_at=shown.later)
    assert not shown.mirror.notice_loss(poll(boot=""), asked_at=shown.later), "told once"
    shown.mirror.flush()
    (name, (entry, head, states, _)), last = shown.registry.calls
    assert (name, head.seq, [s.version for s in states]) == ("rebuild", 1, [1])
    assert entry.boot not in ("", shown.boot)
    assert last == ("set_order", ("a", order))
    assert shown.mirror.is_current


@pytest.mark.parametrize(
    ("boot", "head_seq", "lost"),
    [("ours", 1, False), ("", -1, True), ("another", 1, True), ("ours", 0, True)],
    ids=["as it was", "flushed", "replaced", "a copy that lagged"],
)
def test_a_loss_is_seen_by_boot_or_head(boot: str, head_seq: int, lost: bool) -> None:
    """Only in a reading that began after the newest record was shown."""
    shown = Shown()
    shown.commit(1)
    shown.mirror.flush()
    found = poll(boot=shown.boot if boot == "ours" else boot, head_seq=head_seq)
    assert not shown.mirror.notice_loss(found, asked_at=0.0)
    assert shown.mirror.notice_loss(found, asked_at=shown.later) == lost
    shown.registry.calls.clear()
    shown.mirror.flush()
    assert shown.registry.names == (["rebuild"] if lost else [])


def test_settings_travel_with_the_record_that_changed_them() -> None:
    """Learners hear of them with their next beat."""
    shown = Shown()
    record = shown.log.next_record(
        "settings",
        epoch=5,
        holder="us",
        written_at=0.0,
        ddl_version="0",
        changes={"round.quorum": 2},
    )
    shown.log.apply(record, "d")
    shown.mirror.note_record(e.Show(shown.log.head(), (), (), settings_changed=True))
    shown.mirror.flush()
    ((name, (_, _, _, entry)),) = shown.registry.calls
    assert name == "commit"
    assert entry.settings.round.quorum == 2
    assert entry.run.settings.round.quorum == 1


def test_the_small_words_are_said_once() -> None:
    """Asking again, answers, forgetting; what failed in the middle goes on where it was."""
    shown = Shown()
    shown.mirror.note_asked(handin())
    shown.mirror.note_forgotten("b", 2)
    shown.mirror.note_answer("request")
    shown.mirror.note_rounds((), wake=True)
    shown.mirror.flush()
    said = ["set_rounds", "ask_again", "forget_learner", "remove_request"]
    assert shown.registry.names == said
    shown.mirror.flush()
    assert shown.registry.names == []


def test_a_receipt_withdraws_the_question() -> None:
    """What has its fate is not asked for any more."""
    shown = Shown()
    shown.registry.fault = RegistryUnavailableError("away")
    shown.mirror.note_asked(handin())
    shown.mirror.flush()
    shown.commit(1)
    shown.registry.fault = None
    shown.mirror.reachable = True
    shown.mirror.flush()
    assert shown.registry.names == ["commit"]


def test_a_fenced_mirror_says_so() -> None:
    """A higher epoch was given out: this coordinator must end."""
    shown = Shown()
    shown.registry.fenced = True
    shown.commit(1)
    with pytest.raises(LeaseLostError):
        shown.mirror.flush()


# ---- news ---------------------------------------------------------------------------------------


def poll(**parts: Any) -> Poll:
    empty: dict[str, Any] = {
        "now": 0.0,
        "learners": {},
        "beats": {},
        "handins": {},
        "requests": (),
        "boot": "b",
        "head_seq": 0,
        "asked": {},
        "broken": (),
    }
    return Poll(**(empty | parts))


def test_only_what_changed_is_news() -> None:
    """A beat counts as a change; a record that lacks its beat waits for it."""
    a, b = (LearnerRecord(id=name, incarnation=1, lineage="l") for name in "ab")
    stands = {handin_field("a", 1, 0): handin()}
    stop = Request(id="1", kind="stop", who="me")
    news = News()
    first = poll(learners={"a": a, "b": b}, beats={"a": 1.0}, handins=stands, requests=(stop,))
    assert list(news.events(first)) == [e.Beat(a, 1.0), e.Announced(handin()), e.Requested(stop)]
    assert list(news.events(first)) == []
    later = first._replace(beats={"a": 2.0, "b": 2.0}, handins={handin_field("a", 1, 0): handin(2)})
    assert list(news.events(later)) == [e.Beat(a, 2.0), e.Beat(b, 2.0), e.Announced(handin(2))]


def test_what_comes_back_after_a_loss_is_news() -> None:
    """Redis was flushed; who registers and announces again is heard again."""
    stands = {handin_field("a", 1, 0): handin()}
    news = News()
    assert list(news.events(poll(handins=stands))) == [e.Announced(handin())]
    assert list(news.events(poll())) == []
    assert list(news.events(poll(handins=stands))) == [e.Announced(handin())]
