"""What every registry must do, against real servers, under both protocols of Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec
import pytest

from ddl.config import Settings, replace
from ddl.embedded import EmbeddedRedis
from ddl.errors import RefusedError, UnknownRunError
from ddl.protocol.keys import RUNS, RegistryKeys
from ddl.protocol.records import Fact, Order, Request
from ddl.protocol.wire import canonical
from ddl.registry.base import (
    CoordinatorRegistry,
    LearnerRegistry,
    ReaderRegistry,
    settings_digest,
)
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl.registry.reader import RedisReader, read_runs
from tests.contract.registry_records import (
    RUN,
    entry,
    handin,
    head,
    learner,
    lease,
    open_round,
    receipt,
    state,
    states,
)
from tests.redis_servers import admin

KEYS = RegistryKeys(RUN)
KNOWN = settings_digest(Settings())
GONE_S = 15.0


class Sides(NamedTuple):
    """Everyone who speaks to one Redis about one run."""

    coordinator: CoordinatorRegistry
    learner: LearnerRegistry
    reader: ReaderRegistry
    url: str


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def empty(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Sides]:
    """A Redis that knows nothing."""
    url = f"{redis_url}?protocol={request.param}"
    with (
        closing(RedisCoordinator(url, RUN)) as coordinator,
        closing(RedisLearner(url, RUN)) as one,
        closing(RedisReader(url, RUN)) as reader,
    ):
        yield Sides(coordinator, one, reader, url)


@pytest.fixture
def sides(empty: Sides) -> Sides:
    """A run of epoch 1 at seq 0, without learners."""
    assert empty.coordinator.rebuild(1, entry(), head(), states(), [])
    return empty


@pytest.fixture
def joined(sides: Sides) -> Sides:
    """The same, with the learner ada, incarnation 1."""
    assert sides.learner.register(learner(), gone_s=GONE_S, takeover=False).refused == ""
    return sides


# ---- the lease --------------------------------------------------------------------------------


def test_a_free_lease_is_given_above_both_epochs(empty: Sides) -> None:
    """The epoch goes beyond the newest record's and beyond the highest that Redis gave out."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=6)
    assert first.held
    assert first.lease is not None
    assert first.lease.epoch == 7
    assert first.lease.taken_at == pytest.approx(first.now, abs=0.01)
    empty.coordinator.release_lease(first.lease)
    second = empty.coordinator.take_lease(lease("second"), ttl_s=10, min_epoch=0)
    assert second.held
    assert second.lease is not None
    assert second.lease.epoch == 8


@pytest.mark.parametrize("rubbish", ["rubbish", b"\xff\0", "7", '{"epoch":1}', ["a", "list"]])
def test_what_is_no_lease_is_overwritten(empty: Sides, rubbish: str | bytes | list[str]) -> None:
    """The holder renews, is told that something else stood there, and may let go as ever; and who
    takes the lease does not wait for the end of what has none."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None

    def spoil() -> None:
        with admin(empty.url) as client:
            client.delete(KEYS.lease)
            if isinstance(rubbish, list):
                client.rpush(KEYS.lease, *rubbish)
            else:
                client.set(KEYS.lease, rubbish)

    spoil()
    renewed = empty.coordinator.renew_lease(first, ttl_s=10)
    assert (renewed.held, renewed.lease, renewed.was_foreign) == (True, first, True)
    assert not empty.coordinator.renew_lease(first, ttl_s=10).was_foreign
    spoil()
    empty.coordinator.release_lease(first)
    second = empty.coordinator.take_lease(lease("second"), ttl_s=10, min_epoch=0)
    assert second.held
    assert second.lease is not None
    assert second.lease.epoch == 2


def test_a_renewed_lease_tells_what_its_holder_says_now(empty: Sides) -> None:
    """How the store answers its holder changes; to whom it belongs, and since when, does not."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None
    slower = msgspec.structs.replace(first, store_s=1.5)
    renewed = empty.coordinator.renew_lease(slower, ttl_s=10)
    assert (renewed.held, renewed.lease) == (True, slower)
    assert empty.reader.view().lease == slower
    again = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0)  # its reply was lost
    assert (again.held, again.lease) == (True, slower)
    empty.coordinator.release_lease(first)
    assert empty.reader.view().lease is None


def test_a_lease_without_an_end_gets_one(empty: Sides) -> None:
    """From its holder, or else from whoever waits for it: a dead one's does not stand for ever."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None
    with admin(empty.url) as client:
        client.persist(KEYS.lease)
        assert empty.coordinator.renew_lease(first, ttl_s=10).held
        assert client.pttl(KEYS.lease) > 0
        client.persist(KEYS.lease)
    waiting = empty.coordinator.take_lease(lease("second"), ttl_s=5, min_epoch=0)
    assert not waiting.held
    assert waiting.left_s == pytest.approx(5, abs=0.5)


def test_standbys_are_shown_until_they_leave_or_fall_silent(empty: Sides) -> None:
    """Each under its name; one that is not heard again in time is shown no more, by Redis' clock."""
    empty.coordinator.stand_by("brief", ttl_s=0.2)
    empty.coordinator.stand_by("first", ttl_s=30.0)
    empty.coordinator.stand_by("second", ttl_s=30.0)
    assert set(empty.reader.view().standbys) >= {"first", "second"}
    empty.coordinator.stand_by("first", ttl_s=0.0)
    deadline = time.monotonic() + 10.0
    while empty.reader.view().standbys != ("second",):
        assert time.monotonic() < deadline, empty.reader.view().standbys


def test_a_held_lease_is_not_given_away_and_its_holder_is_named(empty: Sides) -> None:
    """Who comes second hears who holds it and for how long."""
    empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0)
    reply = empty.coordinator.take_lease(lease("second"), ttl_s=10, min_epoch=0)
    assert not reply.held
    assert reply.lease is not None
    assert reply.lease.holder == "first"
    assert 9 < reply.left_s <= 10


def test_who_asks_again_after_a_lost_reply_is_told_of_its_lease(empty: Sides) -> None:
    """The same process is recognised, another process of the same name is not. A call that is done
    twice does not fence its caller, unless the log has gone beyond that epoch."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0)
    again = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0)
    assert again.held
    assert again.lease == first.lease
    higher = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=4)
    assert higher.lease is not None
    assert higher.lease.epoch == 5
    assert not empty.coordinator.take_lease(lease(pid=2), ttl_s=10, min_epoch=0).held


def test_a_lease_ends_by_server_time_unless_renewed(empty: Sides) -> None:
    """An expired lease is free for others, and then no longer renewed for the first."""
    first = empty.coordinator.take_lease(lease(), ttl_s=0.05, min_epoch=0).lease
    assert first is not None
    renewed = empty.coordinator.renew_lease(first, ttl_s=0.05)
    assert renewed.held
    deadline = time.monotonic() + 5
    while not (taken := empty.coordinator.take_lease(lease("second"), ttl_s=9, min_epoch=0)).held:
        assert time.monotonic() < deadline
    assert taken.now - renewed.now >= 0.04
    lost = empty.coordinator.renew_lease(first, ttl_s=10)
    assert not lost.held
    assert lost.lease == taken.lease


def test_a_vanished_lease_is_put_back_unless_a_higher_epoch_was_given_out(empty: Sides) -> None:
    """After a flush the holder keeps the run; after another one's epoch it does not."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None
    with admin(empty.url) as client:
        client.flushall()
    assert empty.coordinator.renew_lease(first, ttl_s=10).held
    empty.coordinator.release_lease(first)
    second = empty.coordinator.take_lease(lease("second"), ttl_s=10, min_epoch=0).lease
    assert second is not None
    empty.coordinator.release_lease(second)
    reply = empty.coordinator.renew_lease(first, ttl_s=10)
    assert not reply.held
    assert reply.lease is None


def test_an_older_lease_that_a_copy_still_shows_does_not_stop_its_successor(empty: Sides) -> None:
    """After a fail-over to a copy that lagged behind, the lease of the higher epoch goes on."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None
    empty.coordinator.release_lease(first)
    second = empty.coordinator.take_lease(lease("second"), ttl_s=10, min_epoch=0).lease
    assert second is not None
    with admin(empty.url) as client:
        client.set(KEYS.lease, canonical(first), px=10_000)
        client.set(KEYS.epoch, first.epoch)
    assert empty.coordinator.renew_lease(second, ttl_s=10).held
    assert not empty.coordinator.renew_lease(first, ttl_s=10).held
    assert empty.reader.view().lease == second


def test_only_its_holder_lets_go_of_a_lease(empty: Sides) -> None:
    """A release by a fenced coordinator changes nothing."""
    first = empty.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert first is not None
    empty.coordinator.release_lease(lease("second", epoch=first.epoch))
    empty.coordinator.release_lease(lease(epoch=first.epoch - 1))
    assert empty.reader.view().lease == first


# ---- the coordinator writes ---------------------------------------------------------------------


def test_a_rebuild_shows_the_whole_run(sides: Sides) -> None:
    """Entry, head, fragments and the index are there; a learner can join by them."""
    view = sides.reader.view()
    assert view.entry == entry() == sides.learner.read_entry()
    assert view.head == head()
    assert view.fragments == tuple(states()) == sides.learner.read_fragments()
    index = read_runs(sides.url)
    assert (index[RUN].store, index[RUN].lineage) == ("file:///store", "lineage-1")


def test_no_address_of_a_redis_is_stored(empty: Sides) -> None:
    """Settings of one machine, and the password in them, stay out of Redis."""
    secret = replace(Settings(), {"redis.url": "redis://:hush@elsewhere/0"})
    empty.coordinator.rebuild(1, entry(settings=secret), head(), states(), [])
    with admin(empty.url) as client:
        assert b"hush" not in b"".join(client.hvals(KEYS.run))
    assert settings_digest(secret) == KNOWN


def test_a_rebuild_keeps_what_learners_said_but_not_what_was_settled(joined: Sides) -> None:
    """Rounds and answers go, learners stay, receipted hand-ins go, others stay."""
    settled, open_one = handin(fragment=0), handin(fragment=1)
    for each in (settled, open_one):
        assert joined.learner.announce(each, incarnation=1) == "accepted"
        joined.coordinator.ask_again(1, each)
    joined.coordinator.set_rounds(1, [open_round()], wake=True)
    assert joined.coordinator.rebuild(1, entry(boot="b2"), head(3), states(3), [receipt(settled)])
    poll = joined.coordinator.poll()
    assert (poll.boot, list(poll.learners), poll.asked) == ("b2", ["ada"], {})
    assert list(poll.handins.values()) == [open_one]
    assert joined.reader.view().rounds == ()


def test_a_rebuild_by_another_lineage_leaves_nothing_of_the_first(joined: Sides) -> None:
    """A re-used name never mixes two runs."""
    joined.learner.announce(handin(), incarnation=1)
    joined.reader.request(Request(id="r", kind="stop", who="me"))
    joined.coordinator.rebuild(2, entry(lineage="other"), head(lineage="other"), states(), [])
    poll = joined.coordinator.poll()
    assert (poll.learners, poll.beats, poll.handins, poll.requests) == ({}, {}, {}, ())


def test_a_commit_shows_all_of_a_record_at_once(joined: Sides) -> None:
    """Head, fragment and receipt are new, the receipted hand-in is gone, others stay."""
    first, second = handin(fragment=0), handin(fragment=1)
    joined.learner.announce(first, incarnation=1)
    joined.learner.announce(second, incarnation=1)
    joined.coordinator.ask_again(1, first)
    assert joined.coordinator.commit(1, head(1), [state(0, 1)], [receipt(first)])
    view = joined.reader.view()
    assert view.head == head(1)
    assert [s.version for s in view.fragments] == [1, 0]
    assert list(view.receipts.values()) == [receipt(first)]
    assert list(view.handins.values()) == [second]
    assert joined.coordinator.poll().asked == {}


def test_a_commit_of_an_old_record_changes_nothing(joined: Sides) -> None:
    """A call repeated after a lost reply, or overtaken, does no harm."""
    joined.coordinator.commit(1, head(2), [state(0, 2)], [])
    assert joined.coordinator.commit(1, head(2), [state(0, 9)], [])
    assert joined.coordinator.commit(1, head(1), [state(0, 1)], [receipt(handin())])
    view = joined.reader.view()
    assert view.head == head(2)
    assert view.fragments[0].version == 2
    assert view.receipts == {}


def test_a_commit_is_not_shown_by_a_copy_that_lags_behind(joined: Sides) -> None:
    """It lacks what was shown last, receipts among it; the next poll tells, by an old head."""
    joined.coordinator.commit(1, head(1), [state(0, 1)], [])
    assert joined.coordinator.commit(1, head(4), [state(0, 4)], [], after=3)
    assert joined.reader.view().head == head(1)
    assert joined.reader.view().fragments[0].version == 1
    assert joined.coordinator.poll().head_seq == 1
    assert joined.coordinator.commit(1, head(4), [state(0, 4)], [], after=1)
    assert joined.coordinator.poll().head_seq == 4


def test_a_receipt_does_not_remove_a_newer_handin(joined: Sides) -> None:
    """A late receipt of seq 1 leaves seq 2 outstanding, and seq 2's receipt is not overwritten."""
    joined.learner.announce(handin(seq=1), incarnation=1)
    joined.coordinator.commit(1, head(1), [], [receipt(handin(seq=1))])
    joined.learner.announce(handin(seq=2), incarnation=1)
    joined.coordinator.commit(1, head(2), [], [receipt(handin(seq=1))])
    assert list(joined.coordinator.poll().handins.values()) == [handin(seq=2)]
    joined.coordinator.commit(1, head(3), [], [receipt(handin(seq=2))])
    joined.coordinator.commit(1, head(4), [], [receipt(handin(seq=1))])
    assert list(joined.reader.view().receipts.values()) == [receipt(handin(seq=2))]


def test_every_call_of_a_lower_epoch_is_fenced(joined: Sides) -> None:
    """Once epoch 2 is given out, nothing that epoch 1 asks for happens."""
    c = joined.coordinator
    joined.learner.announce(handin(), incarnation=1)
    joined.reader.request(Request(id="r", kind="stop", who="me"))
    assert c.take_lease(lease("second"), ttl_s=10, min_epoch=0).held
    before = joined.reader.view(), c.poll()
    assert not c.rebuild(1, entry(boot="b2"), head(), states(), [])
    assert not c.commit(1, head(1), [state(0, 1)], [receipt(handin())], entry(boot="b2"))
    assert not c.set_rounds(1, [open_round()], wake=True)
    assert not c.ask_again(1, handin())
    assert not c.set_order(1, "ada", Order(kind="kick", incarnation=1))
    assert not c.remove_request(1, "r")
    assert not c.forget_learner(1, "ada", 1)
    after = joined.reader.view(), c.poll()
    timeless = [
        (view._replace(now=0, latency_s=0, lease_left_s=0, used_bytes=0), poll._replace(now=0))
        for view, poll in (before, after)
    ]
    assert timeless[0] == timeless[1]


def test_a_higher_epoch_that_writes_fences_the_lower_without_a_lease(sides: Sides) -> None:
    """Redis remembers the highest epoch it heard, also when its own count was lost."""
    assert sides.coordinator.set_rounds(5, [], wake=False)
    assert not sides.coordinator.set_rounds(4, [open_round()], wake=False)
    taken = sides.coordinator.take_lease(lease(), ttl_s=1, min_epoch=0).lease
    assert taken is not None
    assert taken.epoch == 6


def test_a_flushed_redis_takes_nothing_in_part(joined: Sides) -> None:
    """Before the rebuild no call leaves half a run behind, and none calls the coordinator fenced."""
    c = joined.coordinator
    with admin(joined.url) as client:
        client.flushall()
        assert c.commit(1, head(1), [state(0, 1)], [receipt(handin())])
        assert c.set_rounds(1, [open_round()], wake=True)
        assert c.ask_again(1, handin())
        assert c.set_order(1, "ada", Order(kind="kick", incarnation=1))
        c.tell([Fact(at=1, name="a", text="b")])
        assert client.keys() == [KEYS.epoch.encode()]
    assert c.poll().boot == ""
    assert c.read_entry() is None


def test_a_forgotten_learner_is_gone_unless_it_came_back(joined: Sides) -> None:
    """A newer incarnation is not forgotten by mistake; hand-ins stay in either case."""
    joined.learner.announce(handin(), incarnation=1)
    joined.learner.register(learner(incarnation=2), gone_s=GONE_S, takeover=True)
    assert joined.coordinator.forget_learner(1, "ada", 1)
    assert list(joined.coordinator.poll().learners) == ["ada"]
    assert joined.coordinator.forget_learner(1, "ada", 2)
    poll = joined.coordinator.poll()
    assert (poll.learners, poll.beats) == ({}, {})
    assert list(poll.handins.values()) == [handin()]


def test_a_field_of_another_version_hides_only_itself(joined: Sides) -> None:
    """One unreadable record is named, the others are read."""
    with admin(joined.url) as client:
        client.hset(KEYS.learners, "bob", '{"id":"bob","incarnation":1,"state":"dancing"}')
    for seen in (joined.coordinator.poll(), joined.reader.view()):
        assert list(seen.learners) == ["ada"]
        assert len(seen.broken) == 1
        assert "bob" in seen.broken[0]
        assert KEYS.learners in seen.broken[0]


@pytest.mark.parametrize("value", ["soon", "inf", "nan", "x" * 100_000])
def test_a_beat_that_is_no_instant_hides_only_itself(joined: Sides, value: str) -> None:
    """It is named, in short; and bytes that are no text may name a field."""
    with admin(joined.url) as client:
        client.hset(KEYS.beats, "bob", value)
        client.hset(KEYS.beats, b"\xff", "12.5")
    for seen in (joined.coordinator.poll(), joined.reader.view()):
        assert list(seen.beats) == ["ada", "\\xff"]
        assert len(seen.broken) == 1
        assert f"{KEYS.beats}, field bob" in seen.broken[0]
        assert len(seen.broken[0]) < 120


def test_a_head_that_cannot_be_read_counts_as_lost(joined: Sides) -> None:
    """So the coordinator writes the run anew, in place of ending."""
    with admin(joined.url) as client:
        client.set(KEYS.head, "rubbish")
    poll = joined.coordinator.poll()
    assert poll.head_seq == -1
    assert KEYS.head in poll.broken[0]


@pytest.mark.parametrize("field", ["entry", "lineage", "settings", "settings_digest", "boot"])
@pytest.mark.parametrize("value", ["rubbish", b"\xff\0", None])
def test_a_run_that_something_else_has_changed_counts_as_lost(
    joined: Sides, field: str, value: str | bytes | None
) -> None:
    """Whatever part of it: so the coordinator writes it anew, under a new boot."""
    with admin(joined.url) as client:
        client.hdel(KEYS.run, field) if value is None else client.hset(KEYS.run, field, value)
    poll = joined.coordinator.poll()
    assert poll.boot == ""
    assert joined.coordinator.rebuild(1, entry(boot="boot-2"), head(), states(), [])
    poll = joined.coordinator.poll()
    assert (poll.boot, poll.broken) == ("boot-2", ())


def test_a_run_whose_key_is_of_another_type_is_written_anew(joined: Sides) -> None:
    """It counts as lost, and what stands in its place is no obstacle."""
    with admin(joined.url) as client:
        client.set(KEYS.run, "rubbish")
    assert joined.coordinator.poll().boot == ""
    assert joined.coordinator.rebuild(1, entry(boot="boot-2"), head(), states(), [])
    assert joined.coordinator.poll().boot == "boot-2"


def test_what_is_no_text_or_holds_a_zero_hides_only_itself(joined: Sides) -> None:
    """In any hash, in the events and among the standbys."""
    fact = Fact(at=1.0, name="a.fact", text="stands")
    joined.coordinator.tell([fact])
    with admin(joined.url) as client:
        for key in (KEYS.learners, KEYS.handins, KEYS.fragments, KEYS.receipts, KEYS.orders):
            client.hset(key, b"bob\0\xff", b"\0\xff\0")
        client.xadd(KEYS.events, {"fact": b"\0\xff"})
        client.zadd(KEYS.standbys, {b"\xff": 1e12})
        client.set(KEYS.lease, b"\xff\0")
        client.hset(KEYS.units, "rows/read/\0", b"\xff")
        client.hset(KEYS.units, "rows/repeated", b"\xff")
    view, poll = joined.reader.view(), joined.coordinator.poll()
    assert view.learners == poll.learners == {"ada": learner()}
    assert view.fragments == tuple(states())
    assert view.facts == (fact,)
    assert joined.coordinator.told() == [fact]
    assert view.standbys == ("\\xff",)
    assert view.lease is None
    assert len(view.broken) == 7
    assert len(poll.broken) == 4
    assert all("ddl:{demo}:" in sentence for sentence in view.broken + poll.broken)


# ---- learners -----------------------------------------------------------------------------------


def test_a_learner_is_not_let_into_an_unknown_run_or_another_lineage(sides: Sides) -> None:
    """The sentence says which of both it is, and nothing is entered."""
    stranger = learner(lineage="other")
    reply = sides.learner.register(stranger, gone_s=GONE_S, takeover=True)
    assert "another lineage" in reply.refused
    with admin(sides.url) as client:
        assert not client.exists(KEYS.learners)
        client.flushall()
    reply = sides.learner.register(learner(), gone_s=GONE_S, takeover=True)
    assert "does not know the run 'demo'" in reply.refused


def test_who_only_looks_is_told_the_same_and_enters_nothing(joined: Sides) -> None:
    """Free, alive, or taken over: the answer is that of a registration, and nothing has changed."""
    before = joined.reader.view()
    for id_, takeover, refused in (("new", False, ""), ("ada", False, "alive"), ("ada", True, "")):
        wanted = learner(id_, incarnation=2)
        reply = joined.learner.register(wanted, gone_s=GONE_S, takeover=takeover, enter=False)
        assert (refused in reply.refused, bool(reply.refused)) == (True, bool(refused))
        assert reply.now >= before.now
    after = joined.reader.view()
    assert (after.learners, after.beats) == (before.learners, before.beats)


def test_a_second_process_under_a_living_id_is_refused_unless_it_takes_over(joined: Sides) -> None:
    """The refusal names host, pid and age of the first, whose record stays."""
    second = learner(incarnation=2, host="other")
    reply = joined.learner.register(second, gone_s=GONE_S, takeover=False)
    assert reply.refused.startswith("learner 'ada' is alive on box (pid 7): its last beat was 0.")
    assert reply.holder == learner()
    assert reply.beat_age_s is not None
    assert 0 <= reply.beat_age_s < 5
    assert joined.coordinator.poll().learners == {"ada": learner()}
    assert joined.learner.register(second, gone_s=GONE_S, takeover=True).refused == ""
    assert joined.coordinator.poll().learners == {"ada": second}


def test_an_id_is_free_once_its_learner_has_left_or_is_gone(joined: Sides) -> None:
    """A learner that left is followed at once, a silent one after gone_s."""
    joined.learner.leave(learner())
    assert joined.coordinator.poll().learners["ada"].state == "left"
    second, third = learner(incarnation=2), learner(incarnation=3)
    assert joined.learner.register(second, gone_s=GONE_S, takeover=False).refused == ""
    with admin(joined.url) as client:
        client.hset(KEYS.beats, "ada", joined.coordinator.now() - 16)
    assert joined.learner.register(third, gone_s=GONE_S, takeover=False).refused == ""


def test_an_older_incarnation_cannot_come_back(joined: Sides) -> None:
    """Not even by taking over; the same one may register again."""
    second = learner(incarnation=2)
    joined.learner.register(second, gone_s=GONE_S, takeover=True)
    reply = joined.learner.register(learner(), gone_s=GONE_S, takeover=True)
    assert "has joined again as incarnation 2" in reply.refused
    assert joined.learner.register(second, gone_s=GONE_S, takeover=False).refused == ""


def test_a_beat_says_and_hears_everything(joined: Sides) -> None:
    """Record, time and hand-ins go in; boot, head, rounds, order, receipts and again come back."""
    first, second = handin(fragment=0), handin(fragment=1)
    record = learner(step=4, loss=0.1)
    reply = joined.learner.beat(record, [first, second], settings_digest=KNOWN)
    assert (reply.boot, reply.registered, reply.incarnation) == ("boot-1", True, 1)
    assert (reply.head, reply.rounds, reply.receipts) == (head(), (), ())
    assert (reply.again, reply.order, reply.settings) == ((), None, None)
    poll = joined.coordinator.poll()
    assert poll.learners == {"ada": record}
    assert poll.beats["ada"] == pytest.approx(reply.now, abs=1e-6)
    assert sorted(poll.handins.values(), key=lambda h: h.fragment) == [first, second]

    order = Order(kind="drain", incarnation=1, reason="spot")
    joined.coordinator.set_order(1, "ada", order)
    joined.coordinator.ask_again(1, second)
    joined.coordinator.set_rounds(1, [open_round()], wake=True)
    joined.coordinator.commit(1, head(1), [state(0, 1)], [receipt(first)])
    reply = joined.learner.beat(record, [first, second], settings_digest=KNOWN)
    assert (reply.head, reply.rounds) == (head(1), (open_round(),))
    assert reply.receipts == (receipt(first),)
    assert reply.again == (second.id,)
    assert reply.order == order
    assert joined.learner.beat(record, [second], settings_digest=KNOWN).receipts == ()


def test_a_beat_tells_whether_anybody_coordinates(joined: Sides) -> None:
    """T15: Redis answers as before when the coordinator is dead; its lease runs out."""
    assert not joined.learner.beat(learner(), [], settings_digest=KNOWN).coordinated
    held = joined.coordinator.take_lease(lease("a"), ttl_s=30.0, min_epoch=1)
    assert joined.learner.beat(learner(), [], settings_digest=KNOWN).coordinated
    assert held.lease is not None
    joined.coordinator.release_lease(held.lease)
    assert not joined.learner.beat(learner(), [], settings_digest=KNOWN).coordinated


def test_repeated_handins_are_entered_once(joined: Sides) -> None:
    """A beat after the receipt does not bring the hand-in back, and wakes nobody."""
    for _ in range(3):
        joined.learner.beat(learner(), [handin()], settings_digest=KNOWN)
    joined.coordinator.commit(1, head(1), [], [receipt(handin())])
    while joined.coordinator.wait_arrivals(0):
        pass
    joined.learner.beat(learner(), [handin()], settings_digest=KNOWN)
    assert joined.coordinator.poll().handins == {}
    assert not joined.coordinator.wait_arrivals(0)


def test_only_the_next_seq_is_entered(joined: Sides) -> None:
    """One outstanding contribution per field: seq 2 waits for the receipt of seq 1."""
    announce = joined.learner.announce
    assert announce(handin(seq=2), incarnation=1) == "refused: seq 2 is not the next one (1)"
    assert announce(handin(seq=1), incarnation=1) == "accepted"
    assert announce(handin(seq=1), incarnation=1) == "known"
    assert announce(handin(seq=2), incarnation=1) == "refused: seq 2 is not the next one (1)"
    joined.learner.beat(learner(), [handin(seq=2)], settings_digest=KNOWN)
    assert list(joined.coordinator.poll().handins.values()) == [handin(seq=1)]
    joined.coordinator.commit(1, head(1), [], [receipt(handin(seq=1))])
    assert announce(handin(seq=1), incarnation=1) == "known"
    assert announce(handin(seq=2), incarnation=1) == "accepted"
    assert announce(handin(seq=1, fragment=1), incarnation=1) == "accepted"


def test_a_fenced_incarnation_changes_nothing(joined: Sides) -> None:
    """Its beat says who is newer; neither its record nor its hand-ins are taken."""
    second = learner(incarnation=2)
    joined.learner.register(second, gone_s=GONE_S, takeover=True)
    reply = joined.learner.beat(learner(step=9), [handin()], settings_digest=KNOWN)
    assert (reply.incarnation, reply.registered) == (2, False)
    refused = joined.learner.announce(handin(), incarnation=1)
    assert refused == "refused: incarnation 1 announces, the one registered is 2"
    joined.learner.leave(learner())
    poll = joined.coordinator.poll()
    assert (poll.learners, poll.handins) == ({"ada": second}, {})


def test_a_successor_announces_what_its_predecessor_spooled(joined: Sides) -> None:
    """Under the old ids, by announcement or beat, and hears of it; the future's ids are refused."""
    second = learner(incarnation=2)
    joined.learner.register(second, gone_s=GONE_S, takeover=True)
    old, new = handin(incarnation=1), handin(incarnation=2)
    assert joined.learner.announce(old, incarnation=2) == "accepted"
    joined.learner.beat(second, [old, new], settings_digest=KNOWN)
    assert len(joined.coordinator.poll().handins) == 2
    joined.coordinator.ask_again(1, old)
    joined.coordinator.commit(1, head(1), [], [receipt(new)])
    reply = joined.learner.beat(second, [old, new], settings_digest=KNOWN)
    assert (reply.again, reply.receipts) == ((old.id,), (receipt(new),))
    future = joined.learner.announce(handin(incarnation=3), incarnation=2)
    assert future == "refused: incarnation 3 has not been registered"


def test_another_lineage_is_refused_everywhere(joined: Sides) -> None:
    """A learner of the name's former run is told so, and leaves no trace."""
    stranger = learner(lineage="other", step=9)
    with pytest.raises(RefusedError, match="lineage lineage-1, this learner trains other"):
        joined.learner.beat(stranger, [], settings_digest=KNOWN)
    outcome = joined.learner.announce(handin(lineage="other"), incarnation=1)
    assert outcome == "refused: it belongs to another lineage of the run"
    joined.learner.leave(stranger)
    assert joined.coordinator.poll().learners == {"ada": learner()}


def test_an_unregistered_learner_hears_but_is_not_entered(sides: Sides) -> None:
    """A beat never makes a learner; it says that one must register."""
    reply = sides.learner.beat(learner(), [handin()], settings_digest=KNOWN)
    assert (reply.registered, reply.boot, reply.incarnation) == (False, "boot-1", 1)
    assert reply.head == head()
    poll = sides.coordinator.poll()
    assert (poll.learners, poll.beats, poll.handins) == ({}, {}, {})
    refused = sides.learner.announce(handin(), incarnation=1)
    assert refused == "refused: incarnation 1 announces, the one registered is 0"


def test_a_flush_is_healed_by_rebuild_and_registration(joined: Sides) -> None:
    """Beats go on with boot ''; after the rebuild the learner registers and repeats its hand-ins."""
    joined.learner.announce(handin(seq=1), incarnation=1)
    joined.coordinator.commit(1, head(1), [], [receipt(handin(seq=1))])
    with admin(joined.url) as client:
        client.flushall()
    reply = joined.learner.beat(learner(), [handin(seq=2)], settings_digest=KNOWN)
    assert (reply.boot, reply.registered, reply.head) == ("", False, None)
    assert joined.learner.announce(handin(), incarnation=1).startswith("refused: Redis does not")
    with admin(joined.url) as client:
        assert client.keys() == []
    joined.coordinator.rebuild(1, entry(boot="b2"), head(1), states(), [receipt(handin(seq=1))])
    reply = joined.learner.beat(learner(), [handin(seq=2)], settings_digest=KNOWN)
    assert (reply.boot, reply.registered) == ("b2", False)
    joined.learner.register(learner(), gone_s=GONE_S, takeover=False)
    joined.learner.beat(learner(), [handin(seq=2)], settings_digest=KNOWN)
    assert list(joined.coordinator.poll().handins.values()) == [handin(seq=2)]


def test_new_settings_reach_a_learner_once(joined: Sides) -> None:
    """They come with the beat until the learner names their digest."""
    changed = replace(Settings(), {"round.quorum": 2})
    joined.coordinator.commit(1, head(1), [], [], entry(settings=changed))
    reply = joined.learner.beat(learner(), [], settings_digest=KNOWN)
    assert reply.settings == changed
    known = settings_digest(changed)
    assert joined.learner.beat(learner(), [], settings_digest=known).settings is None


def test_an_order_is_for_one_incarnation(joined: Sides) -> None:
    """Whoever takes its place does not hear it; a withdrawn order is gone."""
    joined.coordinator.set_order(1, "ada", Order(kind="drain", incarnation=1))
    joined.learner.register(learner(incarnation=2), gone_s=GONE_S, takeover=True)
    second = learner(incarnation=2)
    assert joined.learner.beat(second, [], settings_digest=KNOWN).order is None
    drain = Order(kind="drain", incarnation=2)
    joined.coordinator.set_order(1, "ada", drain)
    assert joined.learner.beat(second, [], settings_digest=KNOWN).order == drain
    joined.coordinator.set_order(1, "ada", None)
    assert joined.learner.beat(second, [], settings_digest=KNOWN).order is None


def test_who_was_kicked_is_turned_away_until_the_order_is_withdrawn(joined: Sides) -> None:
    """With the reason, also when it only looks or takes over; nothing is entered. The incarnation
    that the order is for may register again: it hears of it with its beat."""
    kick = Order(kind="kick", incarnation=1, reason="its fan is dead")
    joined.coordinator.set_order(1, "ada", kick)
    before = joined.coordinator.poll().learners
    for enter in (False, True):
        with pytest.raises(RefusedError, match="'ada' was kicked: its fan is dead") as refused:
            joined.learner.register(
                learner(incarnation=2), gone_s=GONE_S, takeover=True, enter=enter
            )
        assert "ddl learner allow" in refused.value.hint
    assert joined.coordinator.poll().learners == before
    assert joined.learner.register(learner(), gone_s=GONE_S, takeover=False).refused == ""
    assert joined.learner.beat(learner(), [], settings_digest=KNOWN).order == kick
    joined.coordinator.set_order(1, "ada", None)
    second = learner(incarnation=2)
    assert joined.learner.register(second, gone_s=GONE_S, takeover=True).refused == ""


def test_a_payload_put_again_is_announced_again(joined: Sides) -> None:
    """The announcement takes the question back and wakes the coordinator."""
    joined.learner.announce(handin(), incarnation=1)
    joined.coordinator.ask_again(1, handin())
    assert joined.coordinator.poll().asked == {"ada/1/0": 1}
    while joined.coordinator.wait_arrivals(0):
        pass
    assert joined.learner.announce(handin(), incarnation=1) == "known"
    assert joined.coordinator.poll().asked == {}
    assert joined.coordinator.wait_arrivals(0)
    assert joined.learner.announce(handin(), incarnation=1) == "known"
    assert not joined.coordinator.wait_arrivals(0)


# ---- waiting ------------------------------------------------------------------------------------


def test_an_idle_wait_takes_its_time_and_not_more(joined: Sides) -> None:
    """6 s idle, longer than every socket time-out here, and shorter than redis-py would make it."""
    while joined.coordinator.wait_arrivals(0):
        pass
    started = time.monotonic()
    assert not joined.coordinator.wait_arrivals(6.0)
    assert time.monotonic() - started == pytest.approx(6.0, abs=0.5)


def test_a_wait_ends_when_something_arrives(joined: Sides) -> None:
    """Registration, hand-ins and requests wake the coordinator; head and rounds wake learners."""
    c, one = joined.coordinator, joined.learner
    causes = [
        (c.wait_arrivals, lambda: one.announce(handin(), incarnation=1)),
        (c.wait_arrivals, lambda: one.leave(learner())),
        (c.wait_arrivals, lambda: joined.reader.request(Request(id="r", kind="stop", who="me"))),
        (one.wait_news, lambda: c.commit(1, head(1), [], [])),
        (one.wait_news, lambda: c.set_rounds(1, [open_round()], wake=True)),
        (one.wait_news, lambda: c.set_order(1, "ada", Order(kind="drain", incarnation=1))),
    ]
    for wait, cause in causes:
        while wait(0):
            pass
        timer = threading.Timer(0.1, cause)
        timer.start()
        started = time.monotonic()
        assert wait(10.0)
        assert 0.05 < time.monotonic() - started < 5.0
        timer.join()


def test_what_arrived_between_two_waits_is_not_missed(joined: Sides) -> None:
    """The next wait returns at once, and only once."""
    while joined.learner.wait_news(0):
        pass
    joined.coordinator.commit(1, head(1), [], [])
    assert joined.learner.wait_news(10.0)
    assert not joined.learner.wait_news(0)
    joined.coordinator.set_rounds(1, [], wake=False)
    assert not joined.learner.wait_news(0)


def test_a_flushed_stream_goes_on_waking(joined: Sides) -> None:
    """Also when its new entries have smaller ids: the clock of a laggard may be behind."""
    joined.coordinator.commit(1, head(1), [], [])
    while joined.learner.wait_news(0):
        pass
    with admin(joined.url) as client:
        client.delete(KEYS.news)
        assert joined.learner.wait_news(0)
        client.xadd(KEYS.news, {"what": "head"}, id="1-1")
    assert joined.learner.wait_news(10.0)
    assert not joined.learner.wait_news(0)


def test_an_interrupted_wait_ends_soon(joined: Sides) -> None:
    """So that leaving does not take a whole wait; later waits do not block either."""
    while joined.learner.wait_news(0):
        pass
    timer = threading.Timer(0.1, joined.learner.interrupt)
    timer.start()
    started = time.monotonic()
    assert not joined.learner.wait_news(30.0)
    assert not joined.learner.wait_news(30.0)
    assert time.monotonic() - started < 5.0
    timer.join()


def test_closing_ends_a_wait_in_another_thread(joined: Sides) -> None:
    """Without an error in either thread, so that a process can end at any time."""
    while joined.learner.wait_news(0):
        pass
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(joined.learner.wait_news(30.0)))
    thread.start()
    started = time.monotonic()
    joined.learner.close()
    thread.join(10)
    assert outcome == [False]
    assert time.monotonic() - started < 5.0


# ---- people -------------------------------------------------------------------------------------


def test_a_request_reaches_the_coordinator_until_it_is_removed(sides: Sides) -> None:
    """It is polled each time, so a coordinator that dies before acting does not lose it."""
    request = Request(id="r1", kind="set", who="me", changes={"round.quorum": 2})
    sides.reader.request(request)
    assert sides.coordinator.poll().requests == (request,)
    assert sides.coordinator.poll().requests == (request,)
    assert sides.coordinator.remove_request(1, "r1")
    assert sides.coordinator.poll().requests == ()


def test_a_request_to_an_unknown_run_is_an_error(empty: Sides) -> None:
    """A mistyped address does not swallow the wish."""
    with pytest.raises(UnknownRunError, match="does not know the run 'demo'"):
        empty.reader.request(Request(id="r1", kind="stop", who="me"))


def test_a_view_of_nothing_is_empty(empty: Sides) -> None:
    """A display of a run that Redis does not know shows that, and no error."""
    view = empty.reader.view()
    assert (view.entry, view.head, view.lease, view.lease_left_s) == (None, None, None, None)
    assert (view.fragments, view.rounds, view.learners, view.facts) == ((), (), {}, ())
    assert read_runs(empty.url) == {}


def test_facts_are_shown_newest_last(joined: Sides) -> None:
    """The last ones, in the order of telling, from coordinator and learners alike."""
    facts = [Fact(at=i, name="n", text=f"fact {i}", fields={"i": i}) for i in range(5)]
    joined.coordinator.tell(facts[:3])
    joined.learner.tell(facts[3:])
    joined.learner.tell([])
    assert joined.reader.view(num_facts=3).facts == tuple(facts[2:])
    assert joined.reader.view().facts == tuple(facts)
    assert joined.coordinator.told() == facts


def test_facts_are_read_on_from_where_one_was(joined: Sides) -> None:
    """First the newest, then those that follow, each once; nothing when there is nothing new."""
    facts = [Fact(at=i, name="n", text=f"fact {i}", fields={"i": i}) for i in range(6)]
    joined.coordinator.tell(facts[:4])
    newest = joined.reader.facts(limit=3)
    assert [fact for _, fact in newest] == facts[1:4]
    last, _ = newest[-1]
    assert joined.reader.facts(after=last, limit=10) == []
    joined.coordinator.tell(facts[4:])
    (place, fifth), *rest = joined.reader.facts(after=last, limit=1)
    assert (fifth, rest) == (facts[4], [])
    assert [fact for _, fact in joined.reader.facts(after=place, limit=10)] == [facts[5]]


def test_a_view_shows_the_order_that_stands(joined: Sides) -> None:
    """Until it is withdrawn: why nothing of a learner is merged must not depend on old events."""
    held = joined.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert held is not None
    order = Order(kind="realign", incarnation=1, reason="3 values are not finite")
    assert joined.coordinator.set_order(held.epoch, "ada", order)
    assert joined.reader.view().orders == {"ada": order}
    assert joined.coordinator.set_order(held.epoch, "ada", None)
    assert joined.reader.view().orders == {}


def test_a_removed_run_leaves_no_key(joined: Sides) -> None:
    """Not even in the index; other runs stay."""
    with closing(RedisCoordinator(joined.url, "other")) as other:
        other.rebuild(1, entry(), head(), states(), [])
        joined.learner.beat(learner(), [handin()], settings_digest=KNOWN)
        joined.coordinator.take_lease(lease(), ttl_s=10, min_epoch=0)
        joined.reader.remove_run()
        with admin(joined.url) as client:
            assert not [key for key in client.scan_iter() if b"{demo}" in key]
            assert client.hkeys(RUNS) == [b"other"]
        assert other.read_entry() is not None


def test_scripts_survive_a_script_flush(joined: Sides, redis_server: EmbeddedRedis) -> None:
    """The server forgets its scripts; the call works as before."""
    with admin(redis_server.url) as client:
        client.script_flush()
    assert joined.learner.beat(learner(), [], settings_digest=KNOWN).registered
