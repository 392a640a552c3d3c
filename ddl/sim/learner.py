"""A learner's process: its real core, and the four threads of `ddl.learner` in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from ddl.core.invariants import check_learner
from ddl.core.learner import LearnerMachine, Plan, Snapshot, Staged
from ddl.errors import (
    DdlError,
    IntegrityError,
    ObjectNotFoundError,
    RefusedError,
    RegistryError,
    StoreError,
)
from ddl.protocol.records import (
    NO_PAYLOAD,
    BeatReply,
    FragmentState,
    Handin,
    HandinId,
    LearnerRecord,
    LogRecord,
    ObjectRef,
    RunEntry,
)
from ddl.protocol.wire import digest, parse
from ddl.registry.base import Joined
from ddl.sim.clockwork import Process, Signal, Thread, Until
from ddl.sim.judge import ViolationError
from ddl.sim.network import Link
from ddl.sim.payloads import (
    LEFT_OUT_BITS,
    PRIME,
    Contribution,
    Encoded,
    Move,
    Movement,
    Weights,
    decode,
    encode,
    lossy,
)
from ddl.sim.redis import LearnerSide
from ddl.store.search import last_present

if TYPE_CHECKING:
    from ddl.sim.world import World

T = TypeVar("T", bound=msgspec.Struct)

ENCODE_S = 0.02
BACKOFF_S = 0.2
BACKOFF_MOST_S = 2.0
DAMAGED_MAX = 5
GAP_S = (0.02, 0.2)
"""Shortest time between two beats: a step, within these bounds; see `BeatThread`."""


class Spool(dict[HandinId, tuple[Handin, bytes]]):
    """A learner's disk: survives its processes."""


class Learner(Process):
    """One incarnation of a learner.

    Attributes:
        step_s: seconds of a step, times `slowness`.
        stall_until: it takes no step before this instant.
        norm_factor: what it hands in has so many times the usual norm.
        spoil: how many of its next snapshots are not finite.
        machine: the rules; None until it has joined.
        ended: why it ended by itself; empty while it lives.
    """

    def __init__(self, world: World, name: str, *, step_s: float, takeover: bool = False) -> None:
        super().__init__(world.timeline, name, world.new_pid())
        self.world = world
        self.step_s = step_s
        self.slowness = 1.0
        self.stall_until = 0.0
        self.norm_factor = 1.0
        self.spoil = 0
        self.takeover = takeover
        self.ended = ""
        self.machine: LearnerMachine | None = None
        self._machine: LearnerMachine  # the same, for threads that start once it has joined
        self.incarnation = 0
        self.to_redis = Link(world.network, self, "redis")
        self.to_store = Link(world.network, self, "store")
        self.registry = LearnerSide(world.redis)
        self.spool = world.spools.setdefault(name, Spool())
        self.movements = [Movement() for _ in range(world.num_fragments)]
        self.stored: dict[HandinId, Handin] = {}
        self.staged: dict[int, tuple[int, str]] = {}
        self._bases: dict[int, int] = {}
        self._u_steps = [0] * world.num_fragments
        self._changed = Signal()
        self._told = Signal()
        self._work: deque[Callable[[], Thread[None]]] = deque()
        self._work_arrived = Signal()
        self._again: set[HandinId] = set()
        self._quiet_since: float | None = None
        self._store_down_since: float | None = None
        self._damaged = 0
        self._finishing = False
        self._leaving = False
        self._rng = world.rng_for(f"{name}/{self.pid}")
        self.start(self._guard(self._live()))

    def say(self, kind: str, text: str) -> None:
        self.world.say(f"{self.name}/{self.incarnation}", kind, text)

    def drain(self) -> None:
        """Ask to leave, as by SIGTERM."""
        if self.machine is not None:
            self.machine.drain()

    # ---- life ---------------------------------------------------------------------------------

    def _guard(self, thread: Thread[None]) -> Thread[None]:
        """A thread whose errors end the process, as `Shared.fail` does."""
        try:
            yield from thread
        except DdlError as error:
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, why: str) -> None:
        self.ended = why
        self.say("ends", why)
        self.kill()

    def _live(self) -> Thread[None]:
        entry = yield from self.to_redis.call(self.registry.read_entry)
        if entry is None:
            raise RefusedError("Redis does not know the run")
        self.incarnation = yield from self._take_incarnation()
        yield from self._register_first(entry)
        self.machine = self._machine = LearnerMachine(
            learner=self.name,
            incarnation=self.incarnation,
            shares=entry.run.layout.shares,
            settings=entry.settings,
            now=self.now,
        )
        self.say("joins", f"pid {self.pid}, a step takes {self.step_s:.2f} s")
        self._inherit()
        for thread in (self._up(), self._beats(), self._down(), self._train()):
            self.start(self._guard(thread))

    def _take_incarnation(self) -> Thread[int]:
        """See `ddl.learner.session`: the first number above all that were ever taken."""
        keys, store = self.world.keys, self.world.store
        body = f"{self.name} {self.pid}".encode()

        def find() -> int:
            return last_present(lambda n: store.head(keys.join(self.name, n)) is not None)

        number = (yield from self.to_store.call(find)) + 1
        while True:
            key = keys.join(self.name, number)
            put = lambda key=key: store.put(key, body, mode="create")  # noqa: E731
            if (yield from self.to_store.call(put, writes=True)):
                return number
            number += 1

    def _register_first(self, entry: RunEntry) -> Thread[None]:
        record = LearnerRecord(
            id=self.name,
            incarnation=self.incarnation,
            lineage=entry.run.lineage,
            pid=self.pid,
            held=(-1,) * self.world.num_fragments,
        )
        gone_s = entry.settings.liveness.gone_s
        joined = yield from self._register(record, gone_s, takeover=self.takeover)
        holder = joined.holder
        if joined.refused and holder is not None and not self.world.is_living(holder.pid):
            joined = yield from self._register(record, gone_s, takeover=True)
        if joined.refused:
            raise RefusedError(joined.refused)

    def _register(self, record: LearnerRecord, gone_s: float, *, takeover: bool) -> Thread[Joined]:
        return self.to_redis.call(
            lambda: self.registry.register(record, gone_s=gone_s, takeover=takeover), writes=True
        )

    # ---- the training thread ------------------------------------------------------------------

    def _train(self) -> Thread[None]:
        machine = self._machine
        while not machine.started:
            plan = machine.plan(self.now)
            if plan.stop is None and not plan.adoptions:
                yield self._until_changed(1.0)
                continue
            self._carry_out(plan)
            if plan.stop is not None:
                yield from self._leave(plan.stop.reason)
                return
        while True:
            yield self._step_time()
            tokens = 64 + self._rng.randrange(64)
            for movement in self.movements:
                movement.step(self._rng.getrandbits(61))
            self._u_steps = [steps + 1 for steps in self._u_steps]
            machine.on_step(tokens)
            plan = self._do_what_is_due()
            if plan.pause and plan.stop is None:
                plan = yield from self._stand_still()
            if plan.stop is not None:
                yield from self._leave(plan.stop.reason)
                return

    def _stand_still(self) -> Thread[Plan]:
        """See `Learner._stand_still`."""
        while True:
            plan = self._machine.plan(self.now)
            if plan.pause and not (plan.snapshots or plan.adoptions or plan.stop):
                yield self._until_changed(self._machine.settings.liveness.beat_s)
            plan = self._do_what_is_due()
            if plan.stop is not None or not plan.pause:
                return plan

    def _do_what_is_due(self) -> Plan:
        plan = self._machine.plan(self.now)
        self._carry_out(plan)
        return plan

    def _step_time(self) -> float:
        usual_s = self._usual_step_s * (0.9 + 0.2 * self._rng.random())
        return max(usual_s, self.stall_until - self.now)

    def _carry_out(self, plan: Plan) -> None:
        machine = self._machine
        machine.begin(plan)
        if not (plan.snapshots or plan.adoptions):
            return
        for snapshot in plan.snapshots:
            self._snapshot(snapshot)
        for adoption in plan.adoptions:
            value, found = self.staged.pop(adoption.fragment)
            self.world.judge.on_adoption(self, adoption, value, found)
            mode = "overwrite" if adoption.realign else machine.settings.adopt.mode
            alpha = machine.settings.adopt.alpha
            keep = {"carry": 1.0, "blend": alpha, "overwrite": 0.0}[mode]
            movement = self.movements[adoption.fragment]
            movement.adopt(value, keep=keep, in_flight=adoption.in_flight)
            if adoption.realign:
                movement.last = None
            self._u_steps[adoption.fragment] = int(keep * self._u_steps[adoption.fragment])
            self.say(
                "adopts",
                f"f{adoption.fragment} v{adoption.version}"
                + (" (re-aligns)" if adoption.realign else ""),
            )
        self._check()
        if off := [fragment for fragment, m in enumerate(self.movements) if not m.balances]:
            raise ViolationError(f"{self.name}: u of {off} is not what was trained")

    def _snapshot(self, snapshot: Snapshot) -> None:
        steps = self._u_steps[snapshot.fragment]
        if steps != snapshot.steps:
            raise ViolationError(
                f"{self.name}: f{snapshot.fragment} has {steps} steps in hand, announced {snapshot}"
            )
        self._u_steps[snapshot.fragment] = 0
        movement = self.movements[snapshot.fragment]
        theta, in_hand = movement.theta, movement.in_hand
        self._order(lambda: self._hand_in(snapshot, theta, in_hand))

    def _leave(self, reason: str) -> Thread[None]:
        """See `Learner.close`: uploads have what is left of `drain_s` to end."""
        self._finishing = True
        self._work_arrived.notify()
        deadline = self.now + max(0.5, self._machine.drain_left_s(self.now))
        while self._finishing and self.now < deadline:
            yield self._until_changed(deadline - self.now)
        self._leaving = True
        record = self._record()
        try:
            yield from self.to_redis.call(lambda: self.registry.leave(record), writes=True)
        except RegistryError as error:
            self.say("silent", f"leaves without a word: {error}")
        self._end(reason)

    # ---- the up thread ------------------------------------------------------------------------

    def _inherit(self) -> None:
        for id_ in sorted(self.spool):
            handin, _ = self.spool[id_]
            self._machine.on_inherited(handin)
            self._order(lambda handin=handin: self._repeat(handin))  # type: ignore[misc]

    def _up(self) -> Thread[None]:
        while True:
            if self._work:
                yield from self._work.popleft()()
            elif self._finishing:
                self._finishing = False
                self._changed.notify()
                return
            else:
                yield Until(self._work_arrived, self._work_arrived.count)

    def _order(self, work: Callable[[], Thread[None]]) -> None:
        self._work.append(work)
        self._work_arrived.notify()

    def _hand_in(self, snapshot: Snapshot, theta: int, in_hand: int) -> Thread[None]:
        yield ENCODE_S
        machine, fragment = self._machine, snapshot.fragment
        movement = self.movements[fragment]
        if self.spoil > 0:
            self.spoil -= 1
            machine.on_spoiled(fragment)  # the movement stays here until it is thrown away
            self.say("spoiled", f"f{fragment}: a snapshot is not finite")
            self._check()
            return
        delta = movement.delta(theta)
        if (delta + in_hand) % PRIME != 0:
            raise ViolationError(
                f"{self.name}: what is handed in of f{fragment} is not what was trained"
            )
        encoded, handin = self._encode(snapshot, delta)
        machine.on_encoded(fragment)
        self.spool[handin.id] = handin, encoded.data
        self._check()
        yield from self._send(handin, encoded.data)

    def _encode(self, snapshot: Snapshot, delta: int) -> tuple[Encoded, Handin]:
        """The contribution and its announcement. What the codec leaves out of it stays in u."""
        codec = self.world.run.settings.codec.up
        handin = Handin(
            learner=self.name,
            incarnation=self.incarnation,
            lineage=self.world.lineage,
            codec=f"{codec}/1",
            payload=NO_PAYLOAD,
            loss=self.world.loss,
            step_s=self._usual_step_s,
            **snapshot._asdict(),
        )
        decoded = lossy(delta, LEFT_OUT_BITS[codec])
        norm = snapshot.steps * self.norm_factor * (0.8 + 0.4 * self._rng.random())
        encoded = encode(self.world.keys, Contribution(handin, decoded, norm))
        handin = msgspec.structs.replace(handin, payload=encoded.ref)
        self.movements[snapshot.fragment].handed_in(handin.id, decoded)
        self.world.judge.on_handed_in(handin, decoded)
        self.say("hands in", f"{handin.id}: {handin.steps} steps for round {handin.launch}")
        return encoded, handin

    def _repeat(self, handin: Handin) -> Thread[None]:
        spooled = self.spool.get(handin.id)
        if spooled is not None:
            yield from self._send(*spooled)
        else:
            yield from self._announce(handin)
        self._again.discard(handin.id)

    def _send(self, handin: Handin, data: bytes) -> Thread[None]:
        yield from self._put(handin, data)
        yield from self._announce(handin)

    def _announce(self, handin: Handin) -> Thread[None]:
        id_ = handin.id
        self.world.judge.on_announcing(id_)
        self.stored[id_] = handin
        self._machine.on_announced(handin.fragment)
        self._changed.notify()
        try:
            answer = yield from self.to_redis.call(
                lambda: self.registry.announce(handin, incarnation=self.incarnation), writes=True
            )
        except RegistryError:
            return  # every beat repeats it
        self.say("announces", f"{id_}: {answer}")

    def _put(self, handin: Handin, data: bytes) -> Thread[None]:
        pause_s = BACKOFF_S
        arriving = self.world.faulty.damage(self.name, "up", data)
        while True:
            try:
                yield from self.to_store.call(
                    lambda: self.world.store.put(handin.payload.key, arriving), writes=True
                )
            except StoreError:
                if self._store_down_since is None:
                    self._store_down_since = self.now
                yield pause_s
                pause_s = min(2.0 * pause_s, BACKOFF_MOST_S)
            else:
                self._store_down_since = None
                return

    def _put_again(self, id_: HandinId) -> None:
        handin = self.stored.get(id_)
        if handin is not None and id_ not in self._again:
            self._again.add(id_)
            self._order(lambda: self._repeat(handin))

    # ---- the beat thread ------------------------------------------------------------------------

    def _beats(self) -> Thread[None]:
        while True:
            yield from self._wait_for_beat()
            if self._leaving:
                return
            try:
                yield from self._beat()
            except RegistryError as error:
                self._on_silence(error)
                yield from self._follow_log()
            else:
                self._quiet_since = None

    def _wait_for_beat(self) -> Thread[None]:
        beat_s = self._machine.settings.liveness.beat_s
        if self._quiet_since is not None:
            yield beat_s
            return
        seen = self.world.redis.news.count
        least, most = GAP_S
        yield min(max(least, self._usual_step_s), most)
        if self.to_redis.is_cut:
            yield beat_s
        else:
            yield Until(self.world.redis.news, seen, beat_s)

    def _beat(self) -> Thread[None]:
        machine = self._machine
        record, handins = self._record(), tuple(self.stored.values())
        known = self.world.digest_of(machine.settings)
        reply: BeatReply = yield from self.to_redis.call(
            lambda: self.registry.beat(record, handins, settings_digest=known), writes=True
        )
        seq_before = machine.head.seq if machine.head else -1
        machine.on_beat(reply, {handin.id for handin in handins})
        if not reply.coordinated:
            machine.on_silence(self.now)
        must_register = machine.must_register
        moved = machine.head is not None and machine.head.seq != seq_before
        self._forget_receipted()
        self._check()
        if must_register:
            yield from self._register_again()
        if moved or must_register:
            machine.on_fragments((yield from self.to_redis.call(self.registry.read_fragments)))
            self._told.notify()
        for id_ in reply.again:
            self._put_again(id_)

    def _register_again(self) -> Thread[None]:
        gone_s = self._machine.settings.liveness.gone_s
        joined = yield from self._register(self._record(), gone_s, takeover=self.takeover)
        if joined.holder is not None and joined.refused:
            raise RefusedError(joined.refused)

    def _forget_receipted(self) -> None:
        waiting = self._machine.outstanding
        for id_ in [id_ for id_ in self.stored if id_[1:] not in waiting]:
            del self.stored[id_]
            self.spool.pop(id_, None)
        self._changed.notify()
        if not self._machine.aligned:
            self._told.notify()

    def _on_silence(self, error: RegistryError) -> None:
        self._machine.on_silence(self.now)
        if self._quiet_since is None:
            self._quiet_since = self.now
        if not error.retryable:
            raise error

    def _follow_log(self) -> Thread[None]:
        while not self._leaving:
            key = self.world.keys.commit(self._machine.next_seq)
            try:
                data = bytes((yield from self._get(key)))
            except StoreError:
                return
            self._machine.on_record(parse(data, LogRecord, what=key), digest(data))
            self._told.notify()
            self._forget_receipted()
            self._check()

    def _record(self) -> LearnerRecord:
        machine, down_since = self._machine, self._store_down_since
        return LearnerRecord(
            id=self.name,
            incarnation=self.incarnation,
            lineage=self.world.lineage,
            pid=self.pid,
            state=_state(machine),
            step=machine.local_steps,
            step_s=self._usual_step_s if machine.local_steps else None,
            tokens=machine.trained.tokens,
            held=machine.held,
            line=machine.line,
            realigns=machine.realigns,
            store_down_s=0.0 if down_since is None else self.now - down_since,
        )

    # ---- the down thread ------------------------------------------------------------------------

    def _down(self) -> Thread[None]:
        pause_s = 0.0
        while not self._leaving:
            wanted = self._machine.wanted()
            if not wanted:
                yield Until(self._told, self._told.count)
                continue
            try:
                yield from self._try_to_stage(wanted[0])
                pause_s = 0.0
            except (StoreError, IntegrityError, RegistryError) as error:
                self._note_failure(error)
                pause_s = min(BACKOFF_MOST_S, 2.0 * pause_s or BACKOFF_S)
                yield pause_s

    def _try_to_stage(self, state: FragmentState) -> Thread[None]:
        try:
            yield from self._stage(state)
        except ObjectNotFoundError:  # replaced, and collected
            states = yield from self.to_redis.call(self.registry.read_fragments)
            self._machine.on_fragments(states)
            if state in states:
                raise IntegrityError(f"{state.published.key} is not there") from None

    def _stage(self, state: FragmentState) -> Thread[None]:
        ref = state.published
        weights = yield from self._by_step(state)
        if weights is None:
            weights = yield from self._fetch(ref, Weights)
        self._bases[state.fragment] = weights.value
        self.staged[state.fragment] = weights.value, ref.sha256
        self._machine.on_staged(
            state.fragment, Staged(state.version, state.line, ref.sha256, state.seq)
        )
        self._store_down_since = None
        self._damaged = 0
        self._changed.notify()

    def _by_step(self, state: FragmentState) -> Thread[Weights | None]:
        """The version from the one before it and the step between, if both are to be had."""
        base = self._bases.get(state.fragment)
        if state.step is None or base is None or not self._machine.takes_step(state):
            return None
        try:
            move = yield from self._fetch(state.step, Move)
        except (ObjectNotFoundError, IntegrityError):
            return None
        weights = Weights(state.fragment, state.version, (base + move.value) % PRIME)
        made = encode(self.world.keys, weights).ref
        return weights if made.sha256 == state.published.sha256 else None

    def _fetch(self, ref: ObjectRef, kind: type[T]) -> Thread[T]:
        data = bytes((yield from self._get(ref.key)))
        found = decode(ref, self.world.faulty.damage(self.name, "down", data), kind)
        if found is None:
            raise IntegrityError(f"{ref.key} is damaged")
        return found

    def _note_failure(self, error: DdlError) -> None:
        if isinstance(error, IntegrityError):
            self._damaged += 1
            if self._damaged >= DAMAGED_MAX and not self._machine.started:
                raise error
        elif isinstance(error, StoreError) and self._store_down_since is None:
            self._store_down_since = self.now

    # ---- small things ---------------------------------------------------------------------------

    def _get(self, key: str) -> Thread[bytearray]:
        return self.to_store.call(lambda: self.world.store.get(key))

    @property
    def _usual_step_s(self) -> float:
        return self.step_s * self.slowness

    def _until_changed(self, seconds: float) -> Until:
        return Until(self._changed, self._changed.count, seconds)

    def _check(self) -> None:
        if broken := check_learner(self._machine):
            raise ViolationError(f"{self.name}/{self.incarnation}: {'; '.join(broken)}")


def _state(machine: LearnerMachine) -> Literal["joining", "training", "draining", "paused"]:
    if machine.draining:
        return "draining"
    if machine.paused:
        return "paused"
    return "training" if machine.started else "joining"
