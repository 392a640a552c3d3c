"""A coordinator's process: the real core, mirror, news and log, without real threads.

What `ddl.coordinator.service` does in five threads is done here in as many generators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ddl.clock import ServerClock
from ddl.coordinator.history import History
from ddl.coordinator.mirror import Mirror
from ddl.coordinator.objects import find_version
from ddl.coordinator.standby import LOOKS
from ddl.coordinator.sweep import sweep
from ddl.coordinator.watcher import News, Polled, Unreachable
from ddl.core import events as e
from ddl.core.invariants import Watch
from ddl.core.log import FragmentHead, LogState
from ddl.core.machine import Machine
from ddl.core.retire import Horizon
from ddl.core.selection import payload_key
from ddl.core.tenure import Tenure
from ddl.errors import (
    DdlError,
    LeaseLostError,
    ObjectNotFoundError,
    RegistryError,
    StoreError,
)
from ddl.protocol import wire
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    FragmentStep,
    Handin,
    HandinId,
    Health,
    Lease,
    LogRecord,
    ObjectRef,
    Waits,
)
from ddl.registry.base import CoordinatorRegistry
from ddl.sim.clockwork import Process, Signal, Thread, Until
from ddl.sim.judge import ViolationError
from ddl.sim.network import Link
from ddl.sim.payloads import (
    KERNEL,
    PRIME,
    STEP_LEFT_OUT_BITS,
    Contribution,
    Encoded,
    Move,
    Outer,
    Weights,
    announcement,
    decode,
    encode,
    lossy,
    outer_step,
)
from ddl.sim.redis import CoordinatorSide
from ddl.store.base import Store

if TYPE_CHECKING:
    from ddl.sim.world import World

T = TypeVar("T")

MERGE_S = 0.02
RETRY_S = 0.2
RETRY_S_MAX = 2.0

Message = e.Event | Polled | Unreachable | DdlError


class Coordinator(Process):
    """One life of a coordinator.

    Attributes:
        machine: the rules; None until it holds the lease.
        ended: why it ended by itself; empty while it lives.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.timeline, name, world.new_pid())
        self.world = world
        self.machine: Machine | None = None
        self.ended = ""
        self.to_redis = Link(world.network, self, "redis")
        self.to_store = Link(world.network, self, "store")
        self.registry = CoordinatorSide(world.redis)
        self.holder = f"{name}-{self.pid}"
        self.lease: Lease | None = None
        self.tenure: Tenure | None = None
        self._store = self._at_once_store()
        self._history = self._history_in(self._store)
        self._server_clock = ServerClock(world.timeline)
        self._news = News()
        self._watch = Watch()
        self._inbox: deque[Message] = deque()
        self._arrived = Signal()
        self._work: deque[Callable[[], Thread[None]]] = deque()
        self._work_arrived = Signal()
        self._fetched: dict[HandinId, Contribution] = {}
        self._sure = Signal()
        self._sweeping = False
        self.start(self._guard(self._live()))

    @property
    def epoch(self) -> int:
        return self.lease.epoch if self.lease is not None else 0

    def say(self, kind: str, text: str) -> None:
        self.world.say(f"{self.name}/{self.epoch}", kind, text)

    # ---- life ---------------------------------------------------------------------------------

    def _guard(self, thread: Thread[None]) -> Thread[None]:
        """A thread whose errors end the process."""
        try:
            yield from thread
        except DdlError as error:
            yield from self._end(error)

    def _end(self, error: DdlError) -> Thread[None]:
        """See `Service._close`: let go of the lease, if Redis hears it."""
        if self.ended:
            return
        self.ended = f"{type(error).__name__}: {error}"
        self.say("ends", self.ended)
        self.world.judge.on_coordinator_end(self, error)
        lease = self.lease
        if lease is not None:
            try:
                yield from self.to_redis.call(
                    lambda: self.registry.release_lease(lease), writes=True
                )
            except RegistryError:
                self.say("silent", "the lease runs out by itself")
        self.kill()

    def _live(self) -> Thread[None]:
        """See `ddl.coordinator.start`, with `--standby`."""
        log = self._history.fold(self.world.run)
        yield self._store.spent_s()
        self.lease = lease = yield from self._stand_by(log)
        self.tenure = Tenure(length_s=log.settings.liveness.lease_s, now=self.now)
        self.say("leads", f"epoch {lease.epoch}, from record {log.seq}")
        self.start(self._guard(self._keep_lease()))
        self._server_clock.observe((yield from self.to_redis.call(self.registry.now)))
        self._history.follow(log)
        yield self._store.spent_s()
        self._give_way(log, lease)
        entry = yield from self.to_redis.call(self.registry.read_entry)
        yield from self._serve(log, find=entry is None)

    def _give_way(self, log: LogState, lease: Lease) -> None:
        if log.epoch >= lease.epoch:
            raise LeaseLostError(f"epoch {log.epoch} has just written record {log.seq}")

    def _stand_by(self, log: LogState) -> Thread[Lease]:
        """See `ddl.coordinator.standby`: wait for the lease, and read the log meanwhile."""
        wanted = Lease(holder=self.holder, epoch=0, host=self.name, pid=self.pid)
        ttl_s = self.world.run.settings.liveness.lease_s
        while True:
            # a call that comes late says what was known when it was made
            take = partial(self.registry.take_lease, wanted, ttl_s=ttl_s, min_epoch=log.epoch)
            try:
                reply = yield from self.to_redis.call(take, writes=True)
                if reply.held:
                    assert reply.lease is not None
                    return reply.lease
            except RegistryError as error:
                self.say("waits", str(error))
            try:
                self._history.follow(log)
            except StoreError as error:
                self.say("waits", str(error))
            yield self._store.spent_s() + ttl_s / LOOKS

    # ---- the main thread ----------------------------------------------------------------------

    def _serve(self, log: LogState, *, find: bool) -> Thread[None]:
        run = self.world.run
        self.machine = Machine(
            run=run.name,
            log=log,
            epoch=self.epoch,
            holder=self.holder,
            ddl_version="0",
        )
        registry = _AtOnce(self.registry, self.to_redis)
        mirror = Mirror(
            cast("CoordinatorRegistry", registry),
            run=run,
            log=log,
            epoch=self.epoch,
            store_url=self.world.store.url,
            clock=self.timeline,
        )
        mirror.flush()
        yield registry.spent_s()
        self._step(e.Tick(), mirror)
        for thread in (self._poll(), self._write_all()):
            self.start(self._guard(thread))
        if find:
            self._look_for_contributions()
        while True:
            now = self._server_clock.now()
            patience_s = max(0.0, self.machine.wake_at(now) - now)
            if not self._inbox:
                yield Until(self._arrived, self._arrived.count, patience_s)
            if not self._inbox:
                self._step(e.Tick(), mirror)
            while self._inbox:
                for event in self._events(self._inbox.popleft(), mirror):
                    self._step(event, mirror)
            self._check()
            mirror.flush()
            if spent_s := registry.spent_s():
                yield spent_s

    def _put(self, message: Message) -> None:
        self._inbox.append(message)
        self._arrived.notify()

    def _events(self, message: Message, mirror: Mirror) -> Iterator[e.Event]:
        match message:
            case Unreachable():
                mirror.reachable = False
            case Polled():
                yield from self._on_polled(message, mirror)
            case DdlError():
                raise message
            case _:
                yield message

    def _on_polled(self, polled: Polled, mirror: Mirror) -> Iterator[e.Event]:
        """See `Service._on_polled`."""
        mirror.reachable = True
        jump_s = self._server_clock.observe(polled.poll.now, at=polled.heard_at)
        if polled.is_jump(jump_s):
            self.say("clock", f"Redis' clock moved by {jump_s:+.1f} s")
            yield e.ClockJumped(jump_s)
        if mirror.notice_loss(polled.poll, asked_at=polled.asked_at):
            self.say("rebuilds", "Redis has lost the run")
            self._look_for_contributions()
        yield from self._news.events(polled.poll)

    def _step(self, event: e.Event, mirror: Mirror) -> None:
        assert self.machine is not None
        world = self.world
        if isinstance(event, e.Announced):
            world.announced_at.setdefault(event.handin.id, self.now)
        commands = self.machine.step(event, self._server_clock.now())
        for command in commands:
            self._perform(command, mirror)

    def _check(self) -> None:
        """Look at the rules' state, before anybody hears of what has just happened."""
        assert self.machine is not None
        if broken := self._watch.check(self.machine):
            raise ViolationError(f"{self.name}/{self.epoch}: {'; '.join(broken)}")

    def _perform(self, command: e.Command, mirror: Mirror) -> None:  # noqa: C901
        match command:  # in the order of how often they come
            case e.ShowRounds(rounds, opened):
                mirror.note_rounds(rounds, wake=opened)
            case e.Say(name, text):
                self.say(name, text)
            case e.Fetch(handin):
                self.start(self._guard(self._fetch(handin)))
            case e.Drop(id_):
                self._fetched.pop(id_, None)
            case e.Merge():
                self._order(lambda: self._merge(command))
            case e.WriteRecord(record):
                self._order(lambda: self._write(record))
            case e.WriteCheckpoint(seq):
                assert self.machine is not None
                data = wire.canonical(self.machine.log)
                self._order(lambda: self._write_checkpoint(seq, data))
            case e.FindVersion(version):
                self.start(self._guard(self._find_version(version)))
            case e.Sweep(horizon):
                self.start(self._guard(self._sweep(horizon)))
            case e.Show():
                mirror.note_record(command)
            case e.AskAgain(handin):
                mirror.note_asked(handin)
            case e.GiveOrder(learner, order):
                mirror.note_order(learner, order)
            case e.Forget(learner, incarnation):
                mirror.note_forgotten(learner, incarnation)
            case e.Answer(request_id):
                mirror.note_answer(request_id)
            case e.Quit(reason):
                raise LeaseLostError(reason)
            case _:
                raise AssertionError(f"unknown command {command!r}")

    # ---- the watcher --------------------------------------------------------------------------

    def _poll(self) -> Thread[None]:
        """See `Watcher`."""
        beat_s = self.world.run.settings.liveness.beat_s
        while True:
            asked_at, seen = self.now, self.world.redis.arrivals.count
            try:
                poll = yield from self.to_redis.call(self.registry.poll)
            except RegistryError as error:
                self._put(Unreachable(error))
                yield beat_s
            else:
                polled = Polled(poll, asked_at, heard_at=self.now)
                self._put(polled)
                gap_s = polled.gap_s(beat_s)
                yield gap_s
                yield Until(self.world.redis.arrivals, seen, beat_s - gap_s)

    # ---- the lease's thread -------------------------------------------------------------------

    def _keep_lease(self) -> Thread[None]:
        """See `LeaseKeeper`."""
        assert self.tenure is not None
        assert self.lease is not None
        tenure, lease = self.tenure, self.lease
        while True:
            yield tenure.renew_every_s
            if tenure.should_probe(self.now):
                yield from self._probe_store()
            if not tenure.may_renew(self.now):
                continue
            asked_at = self.now
            try:
                reply = yield from self.to_redis.call(
                    lambda: self.registry.renew_lease(lease, ttl_s=tenure.length_s), writes=True
                )
            except RegistryError:
                continue
            if not reply.held:
                raise LeaseLostError("another coordinator took over")
            tenure.renewed(asked_at)
            self._sure.notify()

    def _probe_store(self) -> Thread[None]:
        assert self.tenure is not None
        key = self.world.keys.lease_probe
        try:
            yield from self.to_store.call(lambda: self.world.store.put(key, b""), writes=True)
        except StoreError:
            return
        self.tenure.stored(self.now)

    # ---- the fetchers -------------------------------------------------------------------------

    def _fetch(self, handin: Handin) -> Thread[None]:
        id_, started = handin.id, self.now
        try:
            data = bytes((yield from self._get(handin.payload)))
        except ObjectNotFoundError as error:
            self._put(e.Fetched(id_, "missing", str(error)))
            return
        except StoreError as error:
            self._put(e.Fetched(id_, "unavailable", str(error)))
            return
        found = decode(handin.payload, data, Contribution)
        if found is None:
            self._put(e.Fetched(id_, "damaged", f"{len(data)} bytes, another digest"))
            return
        self._fetched[id_] = found
        seconds = self.now - started
        self._put(e.Fetched(id_, "ok", norm=found.norm, seconds=seconds))

    def _look_for_contributions(self) -> None:
        assert self.machine is not None
        accounts = self.machine.log.accounts.items()
        receipted = {field: account.last.seq for field, account in accounts}
        self.start(self._guard(self._find(receipted)))

    def _find(self, receipted: dict[str, int]) -> Thread[None]:
        """See `ddl.coordinator.found`."""
        keys, store = self.world.keys, self.world.store

        def find() -> list[Handin]:
            found = []
            for info in store.list(keys.contributions):
                parsed = keys.parse_contribution(info.key)
                assert parsed is not None
                id_ = HandinId(*parsed)
                field = handin_field(id_.learner, id_.incarnation, id_.fragment)
                if id_.seq == receipted.get(field, 0) + 1:
                    handin = announcement(info.key, store.objects[info.key])
                    if handin is not None and info.key == payload_key(handin, keys):
                        found.append(handin)
            return found

        found = yield from self._until_stored(lambda: self.to_store.call(find))
        for handin in found:
            self._put(e.Announced(handin))

    # ---- the writer ---------------------------------------------------------------------------

    def _order(self, work: Callable[[], Thread[None]]) -> None:
        self._work.append(work)
        self._work_arrived.notify()

    def _write_all(self) -> Thread[None]:
        while True:
            if self._work:
                yield from self._work.popleft()()
            else:
                yield Until(self._work_arrived, self._work_arrived.count)

    def _until_stored(self, action: Callable[[], Thread[T]]) -> Thread[T]:
        """Repeat what the store did not do until it does."""
        pause_s = RETRY_S
        while True:
            try:
                return (yield from action())
            except StoreError:
                yield pause_s
                pause_s = min(2.0 * pause_s, RETRY_S_MAX)

    def _merge(self, order: e.Merge) -> Thread[None]:
        assert self.tenure is not None
        inputs = [(i.weight, self._fetched[i.handin.id].delta) for i in order.inputs]
        yield MERGE_S
        event = yield from self._until_stored(lambda: self._merge_and_put(order, inputs))
        self.tenure.stored(self.now)
        self._put(event)

    def _merge_and_put(self, order: e.Merge, inputs: list[tuple[float, int]]) -> Thread[e.Merged]:
        before, outer_before = yield from self._base(order.base)
        step = outer_step(
            inputs,
            master=outer_before.master if outer_before else before,
            momentum=outer_before.momentum if outer_before else None,
            lr=order.lr,
            mu=order.momentum,
        )
        fragment, version = order.fragment, order.base.version + 1
        keys, value, move = self.world.keys, step.master, None
        if self.world.run.settings.codec.down == "int4-step":
            leap = lossy((step.master - before) % PRIME, STEP_LEFT_OUT_BITS)
            value = (before + leap) % PRIME
            move = encode(keys, Move(fragment, version, leap))
            yield from self._put_payload(move)
        published = encode(keys, Weights(fragment, version, value))
        outer = encode(keys, Outer(fragment, version, step.master, step.momentum))
        for payload in (published, outer):
            yield from self._put_payload(payload)
        moved = FragmentStep(
            fragment=fragment,
            version_before=version - 1,
            version_after=version,
            published=published.ref,
            outer=outer.ref,
            step=move.ref if move else None,
        )
        return e.Merged(order.launch, moved, Health(), KERNEL, Waits(merge_s=MERGE_S))

    def _base(self, head: FragmentHead) -> Thread[tuple[int, Outer | None]]:
        """The published value and the outer state that a merge starts from."""
        weights = decode(head.published, bytes((yield from self._get(head.published))), Weights)
        assert weights is not None, f"{head.published.key} is damaged"
        if head.outer is None:
            return weights.value, None
        outer = decode(head.outer, bytes((yield from self._get(head.outer))), Outer)
        assert outer is not None, f"{head.outer.key} is damaged"
        return weights.value, outer

    def _get(self, ref: ObjectRef) -> Thread[bytearray]:
        return self.to_store.call(lambda: self.world.store.get(ref.key))

    def _put_payload(self, payload: Encoded) -> Thread[bool]:
        return self.to_store.call(
            lambda: self.world.store.put(payload.ref.key, payload.data), writes=True
        )

    def _write(self, record: LogRecord) -> Thread[None]:
        assert self.tenure is not None
        event = yield from self._until_stored(lambda: self._write_once(record))
        self.tenure.stored(self.now)
        self._put(event)

    def _write_once(self, record: LogRecord) -> Thread[e.RecordWritten | e.RecordTaken]:
        assert self.tenure is not None
        while not self.tenure.is_sure(self.now):
            yield Until(self._sure, self._sure.count, self.tenure.length_s)
        self.world.judge.on_record_issued(self, record)
        yield self.world.network.way_s("store")
        entry = self._history.write(record)
        yield self._store.spent_s()
        kind = e.RecordWritten if entry.record == record else e.RecordTaken
        return kind(entry.record, entry.digest)

    def _write_checkpoint(self, seq: int, data: bytes) -> Thread[None]:
        def put() -> Thread[bool]:
            key = self.world.keys.checkpoint(seq)
            return self.to_store.call(lambda: self.world.store.put(key, data), writes=True)

        yield from self._until_stored(put)

    # ---- the sweeper --------------------------------------------------------------------------

    def _find_version(self, version: int) -> Thread[None]:
        store = self._at_once_store()

        def find() -> Thread[e.VersionFound]:
            found = find_version(cast("Store", store), self._history_in(store), version)
            yield store.spent_s()
            return found

        self._put((yield from self._until_stored(find)))

    def _sweep(self, horizon: Horizon) -> Thread[None]:
        if self._sweeping:
            return
        self._sweeping = True
        store = self._at_once_store()
        try:
            swept = sweep(cast("Store", store), self.world.run, horizon)
        except StoreError as error:
            self.say("sweeps", str(error))
        else:
            self.say(
                "sweeps", f"{swept.num_published} of versions, {swept.num_leftovers} left over"
            )
        yield store.spent_s()
        self._sweeping = False

    def _history_in(self, store: _AtOnce) -> History:
        """Without threads of its own: whose turn it is would be up to the machine, not to the seed."""
        return History(cast("Store", store), self.world.run.name, readers=1)

    def _at_once_store(self) -> _AtOnce:
        return _AtOnce(self.world.store, self.to_store, reading=frozenset({"get", "head", "list"}))


class _AtOnce:
    """A service for code of ours that calls it and cannot wait: over the network all the same, and
    every writing call may be the process' last.

    Args:
        side: has the methods.
        reading: names of those that change nothing.
    """

    def __init__(self, side: object, link: Link, *, reading: frozenset[str] = frozenset()) -> None:
        self._side = side
        self._link = link
        self._reading = reading
        self._spent_s = 0.0

    def spent_s(self) -> float:
        """Seconds that the calls since the last call of this would have taken."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method, link, writes = getattr(self._side, name), self._link, name not in self._reading

        def call(*args: object, **more: object) -> Any:
            self._spent_s += 2.0 * link.way_s()
            return link.at_once(partial(method, *args, **more), writes=writes)

        setattr(self, name, call)  # it is asked for once
        return call
