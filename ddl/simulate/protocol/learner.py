"""A learner's process: its real core, and what its threads do and wait for."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from ddl.core.learner import LearnerMachine, Plan, Snapshot, Staged
from ddl.errors import RefusedError
from ddl.plan import ENCODE_ELEMENTS_PER_S
from ddl.protocol.records import Handin, HandinId, LearnerRecord, ObjectRef
from ddl.protocol.wire import digest
from ddl.registry.base import settings_digest
from ddl.sim.clockwork import Process, Signal, Thread, Until
from ddl.sim.redis import LearnerSide
from ddl.simulate.protocol.pipe import Pipe

if TYPE_CHECKING:
    from ddl.simulate.protocol.world import World

BEAT_GAP_S = (0.02, 0.2)
"""Shortest time between two beats: a step, within these bounds, as in `ddl.learner.beat`."""

SLOWEST = 0.1
"""However wide the spread of its steps, none is shorter than this share of the usual one."""

IDLE_S = 60.0


class Lane:
    """What stays of a learner while its processes come and go.

    Attributes:
        step_s: seconds of its usual step.
        up, down: its link, one pipe a direction.
        lots: for the length of its steps.
    """

    def __init__(self, name: str, *, step_s: float, up: Pipe, down: Pipe, lots: Random) -> None:
        self.name = name
        self.step_s = step_s
        self.up = up
        self.down = down
        self.lots = lots
        self.incarnation = 0


class Learner(Process):
    """One incarnation, from its registration until it is killed.

    Args:
        tokens: of each of its steps.
    """

    def __init__(self, world: World, lane: Lane, *, tokens: int, pid: int) -> None:
        super().__init__(world.timeline, lane.name, pid)
        lane.incarnation += 1
        lane.up.reset()
        lane.down.reset()
        self._world = world
        self._lane = lane
        self._tokens = tokens
        self._started_at = self.now
        self._side = LearnerSide(world.redis)
        self._stored: dict[HandinId, Handin] = {}
        self._work: deque[Snapshot] = deque()
        self._ordered = Signal()
        self._changed = Signal()
        self._machine = LearnerMachine(
            learner=self.name,
            incarnation=lane.incarnation,
            shares=world.run.layout.shares,
            settings=world.run.settings,
            now=self.now,
        )
        self._digest = settings_digest(world.run.settings)
        self.start(self._live())

    def _live(self) -> Thread[None]:
        yield from self._register()
        for thread in (self._train(), self._up(), self._down(), self._beats()):
            self.start(thread)

    def _register(self) -> Thread[None]:
        yield self._world.latency_s
        joined = self._side.register(self._record(), gone_s=0.0, takeover=True)
        if joined.refused:
            raise RefusedError(joined.refused)

    # ---- training -------------------------------------------------------------------------------

    def _train(self) -> Thread[None]:
        machine, tally = self._machine, self._world.tally
        while not machine.started:
            self._carry_out(machine.plan(self.now))
            if not machine.started:
                yield Until(self._changed, self._changed.count, IDLE_S)
        tally.began(self.now - self._started_at)
        while True:
            begun = self.now
            yield self._step_s()
            machine.on_step(self._tokens)
            tally.stepped(begun, self.now, self._tokens)
            plan = machine.plan(self.now)
            self._carry_out(plan)
            if plan.stop is not None:
                self.kill()
                return

    def _step_s(self) -> float:
        spread = self._world.given.step_spread
        return self._lane.step_s * max(SLOWEST, self._lane.lots.gauss(1.0, spread))

    def _carry_out(self, plan: Plan) -> None:
        self._machine.begin(plan)
        if plan.snapshots:
            self._work.extend(plan.snapshots)
            self._ordered.notify()

    # ---- the other threads ------------------------------------------------------------------------

    def _up(self) -> Thread[None]:
        while True:
            if not self._work:
                yield Until(self._ordered, self._ordered.count, IDLE_S)
                continue
            snapshot = self._work.popleft()
            yield self._world.elements / ENCODE_ELEMENTS_PER_S
            self._machine.on_encoded(snapshot.fragment)
            handin = self._handin(snapshot)
            yield self._lane.up.send(handin.payload.bytes, self.now) + self._world.latency_s
            self._stored[handin.id] = handin
            self._machine.on_announced(snapshot.fragment)
            yield self._world.latency_s
            self._side.announce(handin, incarnation=self._machine.incarnation)

    def _handin(self, snapshot: Snapshot) -> Handin:
        world, machine = self._world, self._machine
        id_ = HandinId(self.name, machine.incarnation, snapshot.fragment, snapshot.seq)
        sha256 = digest(str(id_).encode())
        payload = ObjectRef(
            key=world.keys.contribution(*id_, sha256), bytes=world.up_bytes, sha256=sha256
        )
        return Handin(
            learner=self.name,
            incarnation=machine.incarnation,
            lineage=world.run.lineage,
            codec=world.run.settings.codec.up,
            payload=payload,
            step_s=self._lane.step_s,
            **snapshot._asdict(),
        )

    def _down(self) -> Thread[None]:
        machine = self._machine
        while True:
            wanted = machine.wanted()
            if not wanted:
                yield Until(self._changed, self._changed.count, IDLE_S)
                continue
            state = wanted[0]
            ref = state.step if state.step and machine.takes_step(state) else state.published
            yield self._lane.down.send(ref.bytes, self.now) + self._world.latency_s
            staged = Staged(state.version, state.line, state.published.sha256, state.seq)
            machine.on_staged(state.fragment, staged)
            self._changed.notify()

    def _beats(self) -> Thread[None]:
        least, most = BEAT_GAP_S
        gap_s = min(max(least, self._lane.step_s), most)
        while True:
            seen = self._world.redis.news.count
            yield self._world.latency_s
            self._beat()
            if self._machine.must_register:
                yield from self._register()
            yield gap_s
            yield Until(self._world.redis.news, seen, self._machine.settings.liveness.beat_s)

    def _beat(self) -> None:
        machine = self._machine
        reply = self._side.beat(
            self._record(), tuple(self._stored.values()), settings_digest=self._digest
        )
        seq_before = machine.head.seq if machine.head else -1
        machine.on_beat(reply)
        if not reply.coordinated:
            machine.on_silence(self.now)
        waiting = {HandinId(self.name, i, f, s) for i, f, s in machine.outstanding}
        self._stored = {id_: handin for id_, handin in self._stored.items() if id_ in waiting}
        if machine.head is not None and machine.head.seq != seq_before:
            machine.on_fragments(self._side.read_fragments())
            self._changed.notify()

    def _record(self) -> LearnerRecord:
        machine = self._machine
        return LearnerRecord(
            id=self.name,
            incarnation=machine.incarnation,
            lineage=self._world.run.lineage,
            pid=self.pid,
            state="training" if machine.started else "joining",
            step=machine.local_steps,
            step_s=self._lane.step_s if machine.local_steps else None,
            tokens=machine.trained.tokens,
            held=machine.held,
            line=machine.line,
            realigns=machine.realigns,
        )
