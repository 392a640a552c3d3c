"""A coordinator's process: the real core, mirror and news; fetching, merging and writing take time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ddl.coordinator.mirror import Mirror
from ddl.coordinator.watcher import News, Polled
from ddl.core import events as e
from ddl.core.log import LogState
from ddl.core.machine import Machine
from ddl.core.tenure import Tenure
from ddl.errors import LeaseLostError
from ddl.plan import MERGE_ELEMENTS_PER_S
from ddl.protocol.records import FragmentStep, Handin, Health, Lease, LogRecord, Waits
from ddl.protocol.wire import canonical, digest
from ddl.registry.base import CoordinatorRegistry
from ddl.sim.clockwork import Process, Signal, Thread, Until
from ddl.sim.redis import CoordinatorSide

if TYPE_CHECKING:
    from ddl.simulate.protocol.world import World

IDLE_S = 60.0
LOOKS = 4
"""How often one that waits for the lease looks for it while it could run out."""

KERNEL = "simulated"


class Coordinator(Process):
    """One life of a coordinator, from its start until it is killed.

    Args:
        log: folded so far; it goes on where that ends.
    """

    def __init__(self, world: World, log: LogState, *, pid: int) -> None:
        super().__init__(world.timeline, "coordinator", pid)
        self._world = world
        self._log = log
        self._side = CoordinatorSide(world.redis)
        self._machine: Machine | None = None
        self._mirror: Mirror | None = None
        self._news = News()
        self._inbox: deque[e.Event] = deque()
        self._arrived = Signal()
        self._work: deque[Callable[[], Thread[None]]] = deque()
        self._ordered = Signal()
        world.fetching.reset()
        world.publishing.reset()
        self.start(self._live())

    def _live(self) -> Thread[None]:
        lease = yield from self._take_lease()
        world = self._world
        self._machine = Machine(
            run=world.run.name,
            log=self._log,
            epoch=lease.epoch,
            holder=lease.holder,
            ddl_version="0",
        )
        self._mirror = Mirror(
            cast("CoordinatorRegistry", self._side),
            run=world.run,
            log=self._log,
            epoch=lease.epoch,
            store_url="simulated",
            clock=self.timeline,
        )
        for thread in (self._keep_lease(lease), self._poll(), self._write_all()):
            self.start(thread)
        yield from self._serve(self._machine, self._mirror)

    # ---- the lease ------------------------------------------------------------------------------

    def _take_lease(self) -> Thread[Lease]:
        wanted = Lease(holder=f"{self.name}-{self.pid}", epoch=0, pid=self.pid)
        ttl_s = self._log.settings.liveness.lease_s
        while True:
            yield self._world.latency_s
            reply = self._side.take_lease(wanted, ttl_s=ttl_s, min_epoch=self._log.epoch)
            if reply.held and reply.lease is not None:
                return reply.lease
            yield ttl_s / LOOKS

    def _keep_lease(self, lease: Lease) -> Thread[None]:
        tenure = Tenure(length_s=self._log.settings.liveness.lease_s, now=self.now)
        while True:
            yield tenure.renew_every_s
            if not self._side.renew_lease(lease, ttl_s=tenure.length_s).held:
                raise LeaseLostError("another coordinator took over")

    # ---- the main thread --------------------------------------------------------------------------

    def _serve(self, machine: Machine, mirror: Mirror) -> Thread[None]:
        mirror.flush()
        self._step(e.Tick())
        while True:
            mirror.flush()
            if not self._inbox:
                patience_s = machine.wake_at(self.now) - self.now
                yield Until(self._arrived, self._arrived.count, min(patience_s, IDLE_S))
            if not self._inbox:
                self._step(e.Tick())
            while self._inbox:
                self._step(self._inbox.popleft())

    def _tell(self, event: e.Event) -> None:
        self._inbox.append(event)
        self._arrived.notify()

    def _step(self, event: e.Event) -> None:
        assert self._machine is not None
        for command in self._machine.step(event, self.now):
            self._perform(command)

    def _perform(self, command: e.Command) -> None:
        assert self._mirror is not None
        match command:
            case e.Fetch(handin):
                self.start(self._fetch(handin))
            case e.Merge():
                self._order(lambda: self._merge(command))
            case e.WriteRecord(record):
                self._order(lambda: self._write(record))
            case e.Show():
                self._mirror.note_record(command)
            case e.ShowRounds(rounds, opened):
                self._mirror.note_rounds(rounds, wake=opened)
            case e.GiveOrder(learner, order):
                self._mirror.note_order(learner, order)
            case e.Forget(learner, incarnation):
                self._mirror.note_forgotten(learner, incarnation)
            case e.Say() | e.Drop() | e.Sweep() | e.WriteCheckpoint():
                pass  # nobody looks, and the store is endless
            case e.Quit():
                self.kill()
            case _:
                raise AssertionError(f"unexpected command {command!r}")

    # ---- the other threads ------------------------------------------------------------------------

    def _poll(self) -> Thread[None]:
        """See `ddl.coordinator.watcher`."""
        redis, beat_s = self._world.redis, self._log.settings.liveness.beat_s
        while True:
            asked_at, seen = self.now, redis.arrivals.count
            yield self._world.latency_s
            polled = Polled(self._side.poll(), asked_at, self.now)
            for event in self._news.events(polled.poll):
                self._tell(event)
            gap_s = polled.gap_s(beat_s)
            yield gap_s
            yield Until(redis.arrivals, seen, beat_s - gap_s)

    def _fetch(self, handin: Handin) -> Thread[None]:
        begun = self.now
        yield self._world.fetching.send(handin.payload.bytes, self.now) + self._world.latency_s
        seconds = self.now - begun
        self._tell(e.Fetched(handin.id, "ok", norm=float(handin.steps), seconds=seconds))

    def _order(self, work: Callable[[], Thread[None]]) -> None:
        self._work.append(work)
        self._ordered.notify()

    def _write_all(self) -> Thread[None]:
        while True:
            if self._work:
                yield from self._work.popleft()()
            else:
                yield Until(self._ordered, self._ordered.count, IDLE_S)

    def _merge(self, order: e.Merge) -> Thread[None]:
        world, version = self._world, order.base.version + 1
        merge_s = len(order.inputs) * world.elements / MERGE_ELEMENTS_PER_S
        yield merge_s
        published = world.published(order.fragment, version)
        step = world.step_object(order.fragment, version)
        sizes = [published.bytes, world.outer_bytes, step.bytes if step else 0]
        publish_s = world.publishing.send(sum(sizes), self.now) + world.latency_s
        yield publish_s
        moved = FragmentStep(
            fragment=order.fragment,
            version_before=version - 1,
            version_after=version,
            published=published,
            outer=world.outer(order.fragment, version),
            step=step,
        )
        fresh = sum(item.handin.launch == order.launch for item in order.inputs)
        world.tally.merged(fresh=fresh, late=len(order.inputs) - fresh)
        waits = Waits(merge_s=merge_s, publish_s=publish_s)
        self._tell(e.Merged(order.launch, moved, Health(), KERNEL, waits))

    def _write(self, record: LogRecord) -> Thread[None]:
        yield self._world.latency_s
        self._world.tally.recorded(record)
        self._tell(e.RecordWritten(record, digest(canonical(record))))
