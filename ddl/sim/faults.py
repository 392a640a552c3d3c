"""What goes wrong, and when: far more often than in life."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

from ddl.protocol.records import RequestKind
from ddl.sim.network import EVERYONE, Service
from ddl.sim.redis import Tables

if TYPE_CHECKING:
    from ddl.sim.clockwork import Process
    from ddl.sim.coordinator import Coordinator
    from ddl.sim.learner import Learner
    from ddl.sim.world import World

MEAN_GAP_S: Final = 0.9
"""Mean time between two faults."""

REPLICA_S: Final = 1.5
"""How often the copy of Redis is taken that a fail-over goes back to."""

TAKEOVER_LOOK_S: Final = 0.1
"""How often it is looked whether somebody leads, where that is waited for."""

OUTLIER: Final = 1e6

Way = Literal["up", "down"]


class Faulty:
    """Does one thing after the other to a world, until it is told to stop.

    Args:
        rng: draws all lots.
    Attributes:
        count: how many faults there have been.
        over: whether they have come to an end.
    """

    def __init__(self, world: World, rng: Random) -> None:
        self.count = 0
        self._world = world
        self._rng = rng
        self.over = False
        self._damage_next: set[tuple[str, Way]] = set()
        self._replica = Tables()
        self._kinds: list[tuple[Callable[[], str], float]] = [
            (self._kill_learner, 3),
            (self._kill_coordinator, 3),
            (self._kill_at_a_write, 4),
            (self._kill_successors, 2),
            (self._suspend_learner, 2),
            (self._suspend_coordinator, 3),
            (self._cut_redis, 3),
            (self._cut_store, 3),
            (self._redis_away, 2),
            (self._store_away, 2),
            (self._flush_redis, 2),
            (self._fail_over, 3),
            (self._fail_over_at_takeover, 1),
            (self._jump, 2),
            (self._noise, 4),
            (self._lose_payload, 1),
            (self._damage_payload, 1),
            (self._damage_upload, 3),
            (self._damage_download, 1),
            (self._slow_learner, 1),
            (self._stall_learner, 2),
            (self._spoil, 1),
            (self._outlier, 2),
            (self._drain, 2),
            (self._second_process, 5),
            (self._bad_losses, 1),
            (self._set, 1),
            (self._pause, 1),
            (self._kick, 1),
            (self._roll_back, 4),
        ]
        self._weights = [weight for _, weight in self._kinds]
        self._plan()
        self._copy()

    def stop(self) -> None:
        """No more faults; all that lasts is over now."""
        self.over = True
        world = self._world
        world.network.cut.clear()
        world.network.noise = 0.0
        world.loss = 1.0
        self._damage_next.clear()
        for process in world.processes():
            if process.suspended:
                process.resume()
            process.to_redis.dies_in = process.to_store.dies_in = 0
        for learner in world.learners.values():
            learner.norm_factor, learner.slowness, learner.stall_until = 1.0, 1.0, 0.0
            learner.spoil = 0

    def damage(self, learner: str, way: Way, data: bytes) -> bytes:
        """What arrives of a learner's download, or upload."""
        if (learner, way) not in self._damage_next:
            return data
        self._damage_next.discard((learner, way))
        return _damaged(data, self._rng)

    # ---- when ---------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._world.timeline.after(self._rng.expovariate(1.0 / MEAN_GAP_S), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        kind = self._rng.choices([kind for kind, _ in self._kinds], self._weights)[0]
        text = kind()
        if text:
            self.count += 1
            self._world.say("!", kind.__name__.strip("_"), text)
        self._plan()

    def _copy(self) -> None:
        if not self.over:
            self._replica = self._world.redis.tables.copy()
            self._world.timeline.after(self._rng.uniform(0.5, 1.5) * REPLICA_S, self._copy)

    def _for(self, seconds: float, undo: Callable[[], object]) -> None:
        self._world.timeline.after(seconds, undo)

    # ---- processes ----------------------------------------------------------------------------

    def _learner(self) -> Learner:
        return self._rng.choice(list(self._world.learners.values()))

    def _kill_learner(self) -> str:
        learner = self._learner()
        learner.kill()
        return learner.name

    def _leader(self) -> Coordinator:
        """The coordinator that has the lease, if one has; else any."""
        coordinators = list(self._world.coordinators.values())
        leading = [c for c in coordinators if c.alive and c.machine is not None]
        return self._rng.choice(leading or coordinators)

    def _any(self, *, leader: float) -> Coordinator | Learner:
        """Some process; with this chance the leading coordinator."""
        return self._leader() if self._rng.random() < leader else self._learner()

    def _kill_coordinator(self) -> str:
        coordinator = self._leader()
        coordinator.kill()
        return coordinator.name

    def _kill_successors(self) -> str:
        """Two that take over die at once, before they have written anything; then Redis is empty."""

        def strike(coordinator: Coordinator, left: int) -> None:
            coordinator.kill()
            if left:
                self._at_takeover(0.7, lambda successor: strike(successor, left - 1))
            else:
                self._world.redis.flush()

        coordinator = self._leader()
        strike(coordinator, 2)
        return f"{coordinator.name}, and two more as soon as they lead"

    def _at_takeover(self, seconds: float, action: Callable[[Coordinator], object]) -> None:
        """Do it once somebody leads who does not lead now, up to so many seconds later."""
        known = {c.pid for c in self._world.coordinators.values() if c.machine is not None}

        def look() -> None:
            if self.over:
                return
            leading = [c for c in self._world.coordinators.values() if c.machine is not None]
            successor = next((c for c in leading if c.pid not in known), None)
            if successor is None:
                self._for(TAKEOVER_LOOK_S, look)
            else:
                wait_s = self._rng.uniform(0.0, seconds)
                self._for(wait_s, lambda: None if self.over else action(successor))

        look()

    def _kill_at_a_write(self) -> str:
        process = self._any(leader=0.6)
        link = process.to_store if self._rng.random() < 0.6 else process.to_redis
        link.dies_in = self._rng.randint(1, 5)
        return f"{process.name}, at write {link.dies_in} to {link.service}"

    def _suspend_learner(self) -> str:
        return self._suspend(self._learner(), self._rng.uniform(0.5, 5.0))

    def _suspend_coordinator(self) -> str:
        return self._suspend(self._leader(), self._rng.uniform(0.5, 4.0))

    def _suspend(self, process: Process, seconds: float) -> str:
        process.suspend()
        self._for(seconds, process.resume)
        return f"{process.name} for {seconds:.1f} s"

    def _second_process(self) -> str:
        """Somebody starts a learner once more, under its id: of three, the one with most on its disk."""
        some = [self._learner() for _ in range(3)]
        learner = max(some, key=lambda learner: len(learner.spool))
        if not learner.alive:
            return ""
        self._world.start_learner(learner.name, takeover=self._rng.random() < 0.5)
        return learner.name

    def _drain(self) -> str:
        learner = self._learner()
        learner.drain()
        return learner.name

    # ---- networks and services ----------------------------------------------------------------

    def _cut(self, name: str, service: Service) -> str:
        seconds = self._rng.uniform(0.5, 3.0)
        way = (name, service)
        self._world.network.cut.add(way)
        self._for(seconds, lambda: self._world.network.cut.discard(way))
        return f"{name} from {service} for {seconds:.1f} s"

    def _cut_redis(self) -> str:
        return self._cut(self._any(leader=0.4).name, "redis")

    def _cut_store(self) -> str:
        return self._cut(self._any(leader=0.4).name, "store")

    def _redis_away(self) -> str:
        return self._cut(EVERYONE, "redis")

    def _store_away(self) -> str:
        return self._cut(EVERYONE, "store")

    def _flush_redis(self) -> str:
        self._world.redis.flush()
        return "everything is gone"

    def _fail_over(self) -> str:
        self._world.redis.fail_over(self._replica)
        return "to a copy that lags behind"

    def _fail_over_at_takeover(self) -> str:
        """The copy still knows the leader before, whose lease its clock, being behind, takes for good."""

        def strike(_: Coordinator) -> None:
            self._world.redis_offset_s -= self._rng.uniform(0.0, 4.0)
            self._fail_over()

        coordinator = self._leader()
        coordinator.kill()
        self._at_takeover(1.0, strike)
        return f"to a copy that lags behind, once {coordinator.name} is succeeded"

    def _jump(self) -> str:
        # set back by much more, a dead holder's lease would outlast the peace that we wait for
        seconds = self._rng.uniform(-10.0, 60.0)
        self._world.redis_offset_s += seconds
        return f"Redis' clock by {seconds:+.1f} s"

    def _noise(self) -> str:
        seconds, noise = self._rng.uniform(1.0, 4.0), self._rng.uniform(0.03, 0.3)
        network = self._world.network
        quiet = network.noise
        network.noise = noise
        self._for(seconds, lambda: setattr(network, "noise", 0.0 if self.over else quiet))
        return f"{noise:.0%} of all calls for {seconds:.1f} s"

    # ---- payloads -----------------------------------------------------------------------------

    def _payload(self) -> str:
        """The key of a contribution that has no receipt yet; empty if there is none."""
        world = self._world
        waiting = [
            handin.payload.key
            for id_, (handin, _) in world.judge.books.items()
            if id_ not in world.judge.receipts and handin.payload.key in world.store.objects
        ]
        return self._rng.choice(waiting) if waiting else ""

    def _lose_payload(self) -> str:
        key = self._payload()
        self._world.store.objects.pop(key, None)
        return key

    def _damage_payload(self) -> str:
        key = self._payload()
        if key:
            objects = self._world.store.objects
            objects[key] = _damaged(objects[key], self._rng)
        return key

    def _damage_download(self) -> str:
        return self._damage("down")

    def _damage_upload(self) -> str:
        return self._damage("up")

    def _damage(self, way: Way) -> str:
        name = self._learner().name
        self._damage_next.add((name, way))
        return f"the next one of {name}"

    # ---- training -----------------------------------------------------------------------------

    def _slow_learner(self) -> str:
        learner = self._learner()
        learner.slowness = 4.0
        return f"a step of {learner.name} takes four times as long"

    def _stall_learner(self) -> str:
        learner = self._learner()
        seconds = self._rng.uniform(2.0, 8.0)
        learner.stall_until = learner.now + seconds
        return f"{learner.name} for {seconds:.1f} s"

    def _spoil(self) -> str:
        learner = self._learner()
        learner.spoil = 1
        return f"{learner.name}: its next snapshot is not finite"

    def _outlier(self) -> str:
        learner = self._learner()
        learner.norm_factor = OUTLIER
        self._for(3.0, lambda: setattr(learner, "norm_factor", 1.0))
        return f"{learner.name} hands in far too much"

    def _bad_losses(self) -> str:
        world, seconds = self._world, self._rng.uniform(3.0, 6.0)
        world.loss = 2.0
        self._for(seconds, lambda: setattr(world, "loss", 1.0))
        return f"everyone's losses are high for {seconds:.1f} s"

    # ---- people -------------------------------------------------------------------------------

    def _set(self) -> str:
        grace = self._rng.choice([0.0, 0.25, 0.5])
        return self._ask("set", changes={"round.grace_ratio": grace})

    def _pause(self) -> str:
        self._for(2.0, lambda: self._ask("resume"))
        return self._ask("pause")

    def _kick(self) -> str:
        name = self._learner().name
        self._for(2.0, lambda: self._ask("allow", learner=name))
        return self._ask("kick", learner=name)

    def _roll_back(self) -> str:
        version = self._world.judge.log.global_version - self._rng.randint(1, 4)
        return self._ask("rollback", version=max(0, version))

    def _ask(self, kind: RequestKind, **fields: Any) -> str:
        if self._world.redis.tables.entry is None:
            return ""
        self._world.ask(kind, **fields)
        return " ".join([kind, *(str(value) for value in fields.values())])


def _damaged(data: bytes, rng: Random) -> bytes:
    """The data with one digit changed: the kind of damage that nothing but a digest shows."""
    place = rng.choice([at for at, byte in enumerate(data) if byte in b"0123456789"])
    other = (data[place] - ord("0") + rng.randint(1, 9)) % 10 + ord("0")
    return data[:place] + bytes([other]) + data[place + 1 :]
