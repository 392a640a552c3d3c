"""The control plane: one run's keys in memory, and the scripts that change them.

Each method does what the script of its name in `ddl/registry/scripts` does, on records instead of
text; the contract tests of the registry run on it as they do on real servers.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ddl.errors import RefusedError, UnknownRunError
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    BeatReply,
    Fact,
    FragmentState,
    Handin,
    Head,
    LearnerRecord,
    Lease,
    Order,
    Receipt,
    Request,
    Round,
    RunEntry,
)
from ddl.protocol.units import UnitCall, UnitReply
from ddl.registry.base import (
    Joined,
    LeaseReply,
    Poll,
    View,
    settings_digest,
    shared_settings,
)
from ddl.sim.clockwork import Signal


class Tables:
    """All keys of the run: what a flush empties and a replica copies."""

    def __init__(self) -> None:
        self.entry: RunEntry | None = None
        self.settings_digest = ""
        self.lease: Lease | None = None
        self.lease_until = 0.0
        self.epoch = 0
        self.head: Head | None = None
        self.fragments: dict[int, FragmentState] = {}
        self.rounds: tuple[Round, ...] = ()
        self.learners: dict[str, LearnerRecord] = {}
        self.beats: dict[str, float] = {}
        self.handins: dict[str, Handin] = {}
        self.receipts: dict[str, Receipt] = {}
        self.answers: dict[str, int] = {}
        self.orders: dict[str, Order] = {}
        self.requests: dict[str, Request] = {}
        self.standbys: dict[str, float] = {}
        self.facts: deque[Fact] = deque(maxlen=4096)

    @property
    def lineage(self) -> str | None:
        return self.entry.run.lineage if self.entry is not None else None

    def newest_incarnation(self, learner: str) -> int:
        record = self.learners.get(learner)
        return record.incarnation if record else 0

    def copy(self) -> Tables:
        """The keys as they are now; records never change, so only the tables are copied."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | deque):
                setattr(other, name, value.copy())
        return other


class Redis:
    """The server.

    Args:
        clock: the server's time in seconds.
    Attributes:
        tables: replaced as a whole by a flush or a fail-over.
        news, arrivals: the two wake-up streams.
        on_lease: told each lease that is given or renewed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.tables = Tables()
        self.news = Signal()
        self.arrivals = Signal()
        self.on_lease: Callable[[Lease], None] = lambda _: None

    def flush(self) -> None:
        """Lose everything."""
        self.tables = Tables()

    def fail_over(self, replica: Tables) -> None:
        """Go on from a copy that lags behind."""
        self.tables = replica.copy()

    def fenced(self, epoch: int) -> bool:
        """Whether a higher epoch was given out; if not, this one is remembered as the highest."""
        self.tables.epoch = max(self.tables.epoch, epoch)
        return self.tables.epoch > epoch

    def lease(self) -> tuple[Lease | None, float]:
        """The lease in force and the seconds left of it."""
        tables, now = self.tables, self.clock()
        if tables.lease is not None and now >= tables.lease_until:
            tables.lease = None
        return tables.lease, max(0.0, tables.lease_until - now) if tables.lease else 0.0

    def enter_handin(self, handin: Handin, *, incarnation: int) -> str:
        """Enter a hand-in that comes next in its field: "accepted", "known" or "refused: ..."."""
        tables = self.tables
        field = _field(handin)
        receipt = tables.receipts.get(field)
        receipted = receipt.seq if receipt else 0
        if handin.lineage != tables.lineage:
            return "refused: it belongs to another lineage of the run"
        if handin.incarnation > incarnation:
            return f"refused: incarnation {handin.incarnation} has not been registered"
        there = tables.handins.get(field)
        if handin.seq <= receipted or (there is not None and there.seq == handin.seq):
            return "known"
        if handin.seq != receipted + 1:
            return f"refused: seq {handin.seq} is not the next one ({receipted + 1})"
        tables.handins[field] = handin
        return "accepted"

    def enter_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Enter receipts, and remove what they settle."""
        tables = self.tables
        for receipt in receipts:
            field = handin_field(receipt.learner, receipt.incarnation, receipt.fragment)
            known = tables.receipts.get(field)
            if known is None or receipt.seq > known.seq:
                tables.receipts[field] = receipt
            pending = tables.handins.get(field)
            if pending is not None and pending.seq <= receipt.seq:
                del tables.handins[field]
            if tables.answers.get(field, receipt.seq + 1) <= receipt.seq:
                del tables.answers[field]


class _Side:
    """What all sides share."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def read_entry(self) -> RunEntry | None:
        return self._redis.tables.entry

    def tell(self, facts: Sequence[Fact]) -> None:
        if self._redis.tables.entry is not None:
            self._redis.tables.facts.extend(facts)

    def close(self) -> None:
        """Nothing to free."""


class CoordinatorSide(_Side):
    """See `ddl.registry.base.CoordinatorRegistry`; no time passes in `wait_arrivals`."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._seen = redis.arrivals.count

    def now(self) -> float:
        return self._redis.clock()

    def told(self) -> list[Fact]:
        return list(self._redis.tables.facts)

    # ---- the lease

    def take_lease(self, lease: Lease, *, ttl_s: float, min_epoch: int) -> LeaseReply:
        redis, tables, now = self._redis, self._redis.tables, self._redis.clock()
        held, left_s = redis.lease()
        if held is not None and _life(held) != _life(lease):
            return LeaseReply(held=False, lease=held, left_s=left_s, now=now)
        if held is None or held.epoch <= min_epoch:
            tables.epoch = max(tables.epoch, min_epoch) + 1
            held = msgspec.structs.replace(lease, epoch=tables.epoch, taken_at=now)
        tables.lease = held
        tables.lease_until = now + ttl_s
        redis.on_lease(tables.lease)
        return LeaseReply(held=True, lease=tables.lease, left_s=ttl_s, now=now)

    def renew_lease(self, lease: Lease, *, ttl_s: float) -> LeaseReply:
        redis, tables, now = self._redis, self._redis.tables, self._redis.clock()
        held, left_s = redis.lease()
        is_ours = held is not None and (held.epoch, held.holder) == (lease.epoch, lease.holder)
        if held is not None and not is_ours and held.epoch >= lease.epoch:
            return LeaseReply(held=False, lease=held, left_s=left_s, now=now)
        if not is_ours and redis.fenced(lease.epoch):
            return LeaseReply(held=False, lease=None, left_s=0.0, now=now)
        tables.lease = lease
        tables.lease_until = now + ttl_s
        redis.on_lease(tables.lease)
        return LeaseReply(held=True, lease=tables.lease, left_s=ttl_s, now=now)

    def release_lease(self, lease: Lease) -> None:
        held, _ = self._redis.lease()
        if held is not None and (held.epoch, held.holder) == (lease.epoch, lease.holder):
            self._redis.tables.lease = None

    def stand_by(self, holder: str, *, ttl_s: float) -> None:
        self._redis.tables.standbys[holder] = self._redis.clock() + ttl_s

    # ---- what the log says

    def rebuild(
        self,
        epoch: int,
        entry: RunEntry,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
    ) -> bool:
        redis, tables = self._redis, self._redis.tables
        if redis.fenced(epoch):
            return False
        before = tables.lineage
        tables.head = head
        tables.receipts, tables.answers, tables.rounds, tables.orders = {}, {}, (), {}
        if before is not None and before != entry.run.lineage:
            tables.handins, tables.learners, tables.beats, tables.requests = {}, {}, {}, {}
            tables.facts.clear()
        self._enter(entry)
        tables.fragments = {state.fragment: state for state in fragments}
        redis.enter_receipts(receipts)
        redis.news.notify()
        return True

    def commit(
        self,
        epoch: int,
        head: Head,
        fragments: Sequence[FragmentState],
        receipts: Sequence[Receipt],
        entry: RunEntry | None = None,
        *,
        after: int = 0,
    ) -> bool:
        redis, tables = self._redis, self._redis.tables
        if redis.fenced(epoch):
            return False
        shown = tables.head.seq if tables.head is not None else -1
        if tables.entry is None or shown >= head.seq or shown < after:
            return True
        tables.head = head
        tables.fragments |= {state.fragment: state for state in fragments}
        if entry is not None:
            self._enter(entry)
        redis.enter_receipts(receipts)
        redis.news.notify()
        return True

    def _enter(self, entry: RunEntry) -> None:
        tables = self._redis.tables
        run = msgspec.structs.replace(entry.run, settings=shared_settings(entry.run.settings))
        settings = shared_settings(entry.settings)
        tables.entry = msgspec.structs.replace(entry, run=run, settings=settings)
        tables.settings_digest = settings_digest(settings)

    # ---- what the coordinator says beside the log

    def set_rounds(self, epoch: int, rounds: Sequence[Round], *, wake: bool) -> bool:
        return self._set(epoch, lambda tables: setattr(tables, "rounds", tuple(rounds)), wake=wake)

    def ask_again(self, epoch: int, handin: Handin) -> bool:
        field = _field(handin)
        return self._set(epoch, lambda tables: tables.answers.update({field: handin.seq}))

    def set_order(self, epoch: int, learner: str, order: Order | None) -> bool:
        if order is None:
            return self._set(epoch, lambda tables: tables.orders.pop(learner, None), wake=False)
        return self._set(epoch, lambda tables: tables.orders.update({learner: order}))

    def remove_request(self, epoch: int, request_id: str) -> bool:
        return self._set(epoch, lambda tables: tables.requests.pop(request_id, None), wake=False)

    def _set(self, epoch: int, change: Callable[[Tables], Any], *, wake: bool = True) -> bool:
        if self._redis.fenced(epoch):
            return False
        if self._redis.tables.entry is not None:
            change(self._redis.tables)
            if wake:
                self._redis.news.notify()
        return True

    def forget_learner(self, epoch: int, learner: str, incarnation: int) -> bool:
        tables = self._redis.tables
        if self._redis.fenced(epoch):
            return False
        if tables.newest_incarnation(learner) <= incarnation:
            tables.learners.pop(learner, None)
            tables.beats.pop(learner, None)
            tables.orders.pop(learner, None)
        return True

    # ---- what others say

    def poll(self) -> Poll:
        tables = self._redis.tables
        return Poll(
            now=self._redis.clock(),
            learners=dict(tables.learners),
            beats=dict(tables.beats),
            handins=dict(tables.handins),
            requests=tuple(tables.requests.values()),
            boot=tables.entry.boot if tables.entry is not None else "",
            head_seq=tables.head.seq if tables.head is not None else -1,
            asked=dict(tables.answers),
            broken=(),
        )

    def wait_arrivals(self, timeout_s: float) -> bool:  # noqa: ARG002
        seen, self._seen = self._seen, self._redis.arrivals.count
        return self._seen != seen


class LearnerSide(_Side):
    """See `ddl.registry.base.LearnerRegistry`; no time passes in `wait_news`."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._seen = redis.news.count

    def read_head(self) -> Head | None:
        return self._redis.tables.head

    def register(
        self, record: LearnerRecord, *, gone_s: float, takeover: bool, enter: bool = True
    ) -> Joined:
        tables, now = self._redis.tables, self._redis.clock()
        if tables.lineage is None:
            return Joined("Redis does not know the run", now)
        if tables.lineage != record.lineage:
            return Joined("the name belongs to another run now (another lineage)", now)
        order = tables.orders.get(record.id)
        if order and order.kind == "kick" and order.incarnation < record.incarnation:
            raise RefusedError(f"learner {record.id!r} was kicked: {order.reason}")
        holder = tables.learners.get(record.id)
        if holder is not None:
            age_s = now - tables.beats.get(record.id, 0.0)
            if holder.incarnation > record.incarnation:
                newest = f"incarnation {holder.incarnation}"
                return Joined(f"{record.id} has joined again as {newest}", now, holder, age_s)
            alive = holder.state != "left" and age_s < gone_s
            if holder.incarnation < record.incarnation and alive and not takeover:
                return Joined(f"{record.id} is alive", now, holder, age_s)
        if enter:
            tables.learners[record.id] = record
            tables.beats[record.id] = now
            self._redis.arrivals.notify()
        return Joined("", now)

    def beat(
        self, record: LearnerRecord, handins: Sequence[Handin], *, settings_digest: str
    ) -> BeatReply:
        redis, tables, now = self._redis, self._redis.tables, self._redis.clock()
        newest = tables.newest_incarnation(record.id)
        if tables.entry is None:
            return BeatReply(
                now=now,
                boot="",
                registered=False,
                coordinated=False,
                incarnation=max(newest, record.incarnation),
            )
        if tables.lineage != record.lineage:
            raise RefusedError(
                f"the name belongs to another run now: lineage {tables.lineage}, "
                f"this learner trains {record.lineage}"
            )
        registered = newest == record.incarnation
        if registered:
            tables.learners[record.id] = record
            tables.beats[record.id] = now
        receipts, again, arrived = [], [], False
        for handin in handins:
            field = _field(handin)
            receipt = tables.receipts.get(field)
            if receipt is not None and receipt.seq >= handin.seq:
                receipts.append(receipt)
            elif registered:
                entered = redis.enter_handin(handin, incarnation=record.incarnation)
                arrived |= entered == "accepted"
            if tables.answers.get(field, 0) == handin.seq:
                again.append(handin.id)
        if arrived:
            redis.arrivals.notify()
        order = tables.orders.get(record.id)
        known = tables.settings_digest == settings_digest
        return BeatReply(
            now=now,
            boot=tables.entry.boot,
            registered=registered,
            incarnation=max(newest, record.incarnation),
            head=tables.head,
            rounds=tables.rounds,
            receipts=tuple(receipts),
            again=tuple(again),
            order=order if order and order.incarnation == record.incarnation else None,
            settings=None if known else tables.entry.settings,
            coordinated=redis.lease()[0] is not None,
        )

    def announce(self, handin: Handin, *, incarnation: int) -> str:
        redis, tables = self._redis, self._redis.tables
        if tables.entry is None:
            return "refused: Redis does not know the run"
        newest = tables.newest_incarnation(handin.learner)
        if newest != incarnation:
            return f"refused: incarnation {incarnation} announces, the one registered is {newest}"
        outcome = redis.enter_handin(handin, incarnation=incarnation)
        field = _field(handin)
        answered = outcome == "known" and tables.answers.get(field, 0) == handin.seq
        if answered:
            del tables.answers[field]
        if answered or outcome == "accepted":
            redis.arrivals.notify()
        return outcome

    def exchange_units(
        self,
        record: LearnerRecord,
        call: UnitCall,
        *,
        gone_s: float,
    ) -> UnitReply | None:
        raise NotImplementedError("simulated learners read no data")

    def read_fragments(self) -> tuple[FragmentState, ...]:
        return tuple([state for _, state in sorted(self._redis.tables.fragments.items())])

    def wait_news(self, timeout_s: float) -> bool:  # noqa: ARG002
        seen, self._seen = self._seen, self._redis.news.count
        return self._seen != seen

    def interrupt(self) -> None:
        """No wait takes any time."""

    def leave(self, record: LearnerRecord) -> None:
        tables = self._redis.tables
        if tables.lineage != record.lineage:
            return
        if tables.newest_incarnation(record.id) != record.incarnation:
            return
        tables.learners[record.id] = msgspec.structs.replace(record, state="left")
        tables.beats[record.id] = self._redis.clock()
        self._redis.arrivals.notify()


class ReaderSide(_Side):
    """See `ddl.registry.base.ReaderRegistry`."""

    def view(self, *, num_facts: int = 20) -> View:
        tables = self._redis.tables
        lease, left_s = self._redis.lease()
        return View(
            now=self._redis.clock(),
            latency_s=0.0,
            entry=tables.entry,
            lease=lease,
            lease_left_s=left_s if lease else None,
            head=tables.head,
            fragments=tuple(state for _, state in sorted(tables.fragments.items())),
            rounds=tables.rounds,
            learners=dict(tables.learners),
            beats=dict(tables.beats),
            handins=dict(tables.handins),
            receipts=dict(tables.receipts),
            facts=tuple(tables.facts)[-num_facts:],
            broken=(),
            orders=dict(tables.orders),
            standbys=tuple(
                holder for holder, until in tables.standbys.items() if until > self._redis.clock()
            ),
        )

    def facts(self, *, after: str = "", limit: int) -> list[tuple[str, Fact]]:
        placed = [(f"{place:09d}", fact) for place, fact in enumerate(self._redis.tables.facts)]
        if after:
            return [row for row in placed if row[0] > after][:limit]
        return placed[-limit:]

    def request(self, request: Request) -> None:
        if self._redis.tables.entry is None:
            raise UnknownRunError("Redis does not know the run")
        self._redis.tables.requests[request.id] = request
        self._redis.arrivals.notify()

    def remove_run(self) -> None:
        self._redis.flush()


def _field(handin: Handin) -> str:
    return handin_field(handin.learner, handin.incarnation, handin.fragment)


def _life(lease: Lease) -> Mapping[str, Any]:
    """What names one life of one process."""
    return {"holder": lease.holder, "host": lease.host, "pid": lease.pid}
