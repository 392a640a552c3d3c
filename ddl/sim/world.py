"""One history: eight learners, two coordinators, a Redis and a store, from a seed to a verdict."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from ddl.config import (
    AdoptSettings,
    CodecSettings,
    FragmentSettings,
    GateSettings,
    HealthSettings,
    KeepSettings,
    LivenessSettings,
    MergeSettings,
    OuterSettings,
    RoundSettings,
    RunSettings,
    Settings,
    check,
)
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    HandinId,
    Layout,
    Lease,
    ObjectRef,
    Request,
    RequestKind,
    RunRecord,
    TensorSpec,
)
from ddl.protocol.wire import canonical
from ddl.registry.base import settings_digest
from ddl.sim.clockwork import Timeline
from ddl.sim.coordinator import Coordinator
from ddl.sim.faults import Faulty
from ddl.sim.judge import Judge, ViolationError
from ddl.sim.learner import Learner, Spool
from ddl.sim.network import Network
from ddl.sim.payloads import Contribution, Weights, decode, encode
from ddl.sim.redis import ReaderSide, Redis
from ddl.sim.store import MemoryStore

LEARNERS: Final = ("ada", "ben", "cyd", "dot", "eve", "fay", "gus", "hal")
COORDINATORS: Final = ("one", "two")
NUM_FRAGMENTS: Final = 4

CHAOS_S: Final = 8.75
"""How long things go wrong."""

SETTLE_S: Final = 2.5
"""After that everything that was interrupted is given so long to begin anew."""

PATIENCE_S: Final = 60.0
"""Within so many more seconds all must have come to rest."""

LOOK_S: Final = 0.25
"""How often somebody looks who is to be started again, and whether all has come to rest."""

Say = Callable[[float, str, str, str], None]
"""Takes the trace: instant, who, what, and a text."""


class Outcome(NamedTuple):
    """How a history went. `violation` is what did not hold; empty if all did."""

    seed: int
    events: int
    commits: int
    faults: int
    violation: str


def simulate(seed: int, say: Say | None = None) -> Outcome:
    """Let the history of a seed happen.

    Args:
        say: takes its trace, line by line.
    """
    world = World(seed, say)
    violation = ""
    try:
        world.run_to_the_end()
    except ViolationError as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - what no process may meet is a finding as well
        where = traceback.extract_tb(error.__traceback__)[-1]
        name = Path(where.filename).name
        violation = f"{type(error).__name__} in {name}:{where.lineno}: {error}"
    return Outcome(
        seed, world.timeline.events, world.judge.log.global_version, world.faulty.count, violation
    )


class World:
    """Everything there is in one history.

    Attributes:
        leases: by holder, its epoch and when its lease was last given or renewed.
        announced_at: when a coordinator first knew of a contribution.
        loss: that learners report.
    """

    def __init__(self, seed: int, say: Say | None = None) -> None:
        self.seed = seed
        self._say = say
        self._rng = self.rng_for("world")
        self._pids = itertools.count(1)
        self._requests = itertools.count(1)
        self.timeline = Timeline()
        self.network = Network(self.timeline, self.rng_for("network"))
        self.store = MemoryStore()
        self.redis_offset_s = 1e6
        self.redis = Redis(lambda: self.timeline.now + self.redis_offset_s)
        self.redis.on_lease = self._on_lease
        self.run = self._genesis()
        self.store.put(self.keys.run_record, canonical(self.run))
        self.lineage = self.run.lineage
        self.loss = 1.0
        self._patient_until = 0.0
        self.spools: dict[str, Spool] = {}
        self.leases: dict[str, tuple[int, float]] = {}
        self.announced_at: dict[HandinId, float] = {}
        self._digests: dict[int, tuple[Settings, str]] = {}
        self.judge = Judge(self)
        self.store.on_new = self.judge.on_new_object
        self.learners: dict[str, Learner] = {}
        self._twins: list[Learner] = []
        self._due: dict[str, float] = {}
        self.faulty = Faulty(self, self.rng_for("faults"))
        self.coordinators = {name: Coordinator(self, name) for name in COORDINATORS}
        for name in LEARNERS:
            self.start_learner(name)

    # ---- how it goes ----------------------------------------------------------------------------

    def run_to_the_end(self) -> None:
        """Raises: ViolationError."""
        timeline = self.timeline
        self._supervise()
        timeline.run(timeline.now + CHAOS_S)
        self.faulty.stop()
        self._due = dict.fromkeys(self._due, timeline.now)
        self.say("*", "peace", "no more faults; everyone who is away comes back")
        timeline.run(timeline.now + SETTLE_S)
        peace = timeline.now
        rest = ["nobody has looked yet"]
        while rest and timeline.now < peace + PATIENCE_S:
            timeline.run(timeline.now + LOOK_S)
            rest = self.judge.unsettled(peace)
        if rest:
            raise ViolationError(f"{PATIENCE_S:g} s of peace, and still: {'; '.join(rest[:5])}")

    def _supervise(self) -> None:
        """Start what is due, and plan to start again what has ended."""
        now = self.timeline.now
        self._twins = [twin for twin in self._twins if twin.alive]
        for twin in self._twins:  # a second process that was not let in leaves the first one alone
            if not self.learners[twin.name].alive:
                self.learners[twin.name] = twin
        for name, process in [*self.coordinators.items(), *self.learners.items()]:
            if not process.alive and name not in self._due:
                self._due[name] = now + self._rng.uniform(0.2, 3.0)
        for name, instant in sorted(self._due.items()):
            if now >= instant:
                del self._due[name]
                if name in COORDINATORS:
                    self.coordinators[name] = Coordinator(self, name)
                else:
                    self.start_learner(name)
        if self.faulty.over:
            self._let_all_go_on()
        self.timeline.after(LOOK_S, self._supervise)

    def _let_all_go_on(self) -> None:
        """Once all faults are over, somebody sees to it that the run is running, with everyone, and
        asks again if it is not after a while."""
        log, now = self.judge.log, self.timeline.now
        if now < self._patient_until or self.redis.tables.entry is None:
            return
        self._patient_until = now + 5.0
        if log.state != "running":
            self.ask("resume")
        for learner in log.barred:
            self.ask("allow", learner=learner)

    def ask(self, kind: RequestKind, **fields: Any) -> None:
        """Hand a person's wish to the coordinator; Redis must know the run."""
        request = Request(id=f"request-{next(self._requests)}", kind=kind, who="somebody", **fields)
        ReaderSide(self.redis).request(request)

    def start_learner(self, name: str, *, takeover: bool = False) -> None:
        """Start a process of a learner; one that is there already goes on beside it."""
        before = self.learners.get(name)
        if before is not None and before.alive:
            self._twins.append(before)
        step_s = self._rng.uniform(0.15, 0.3)
        self.learners[name] = Learner(self, name, step_s=step_s, takeover=takeover)

    # ---- what the parts ask of it ---------------------------------------------------------------

    @property
    def num_fragments(self) -> int:
        return NUM_FRAGMENTS

    def new_pid(self) -> int:
        return next(self._pids)

    def rng_for(self, purpose: str) -> Random:
        """Lots of its own for every purpose, so that one does not shift the others."""
        return Random(f"{self.seed}/{purpose}")  # noqa: S311 - a history, not a secret

    def say(self, who: str, what: str, text: str) -> None:
        if self._say is not None:
            self._say(self.timeline.now, who, what, text)

    def processes(self) -> Iterator[Coordinator | Learner]:
        yield from self.coordinators.values()
        yield from self.learners.values()
        yield from self._twins

    def is_living(self, pid: int) -> bool:
        return any(process.alive and process.pid == pid for process in self.processes())

    def living_learners(self) -> Iterator[Learner]:
        return (learner for learner in self.learners.values() if learner.alive)

    def is_known(self, id_: HandinId) -> bool:
        """Whether anybody could still tell of a contribution: Redis, the store, or its learner."""
        handin, _ = self.judge.books[id_]
        there = self.store.objects.get(handin.payload.key, b"")
        whole = decode(handin.payload, there, Contribution) is not None
        return whole or handin in self.redis.tables.handins.values()

    def digest_of(self, settings: Settings) -> str:
        """`settings_digest`, computed once for each object."""
        known = self._digests.get(id(settings))
        if known is None:
            known = self._digests[id(settings)] = settings, settings_digest(settings)
        return known[1]

    def _on_lease(self, lease: Lease) -> None:
        self.leases[lease.holder] = lease.epoch, self.timeline.now

    # ---- the beginning ----------------------------------------------------------------------------

    def _genesis(self) -> RunRecord:
        settings = self._settings()
        self.keys = ObjectKeys(settings.run.name)
        refs: list[ObjectRef] = []
        for fragment in range(NUM_FRAGMENTS):
            payload = encode(self.keys, Weights(fragment, 0, self._rng.getrandbits(60)))
            self.store.put(payload.ref.key, payload.data)
            refs.append(payload.ref)
        return RunRecord(
            ddl_version="0",
            name=settings.run.name,
            lineage=f"lineage-{self.seed}",
            created_at=self.redis.clock(),
            settings=settings,
            layout=Layout(
                num_fragments=NUM_FRAGMENTS,
                tensors=tuple(
                    TensorSpec(
                        name=f"w{fragment}",
                        shape=(1,),
                        dtype="float32",
                        kind="parameter",
                        rule="mean",
                        fragment=fragment,
                    )
                    for fragment in range(NUM_FRAGMENTS)
                ),
            ),
            task_digest="",
            fragments=tuple(refs),
        )

    def _settings(self) -> Settings:
        rng = self._rng
        settings = Settings(
            run=RunSettings(name="sim"),
            fragments=FragmentSettings(num=NUM_FRAGMENTS),
            round=RoundSettings(
                every_steps=4,
                overlap_steps=2,
                in_flight=rng.choice([1, 2, 3, 4]),
                quorum=rng.choice([1, 1, 2, 3]),
                grace_ratio=rng.choice([0.0, 0.5]),
                deadline_s=rng.choice([1.0, 2.0]),
                staleness_max=rng.choice([1, 2, 4]),
            ),
            merge=MergeSettings(method="mean"),
            outer=OuterSettings(preset="fixed" if self.seed % 2 else "auto"),
            codec=CodecSettings(
                up=rng.choice(["fp32", "bf16", "int8", "int4"]),
                down=rng.choice(["full", "full", "int4-step"]),
            ),
            adopt=AdoptSettings(mode=rng.choice(["carry", "carry", "carry", "overwrite", "blend"])),
            gate=GateSettings(calm_rounds=3, refusals_max=2),
            health=HealthSettings(rollback=rng.choice(["off", "hold", "auto"])),
            keep=KeepSettings(versions=rng.choice([1, 3]), every=rng.choice([0, 8])),
            liveness=LivenessSettings(
                beat_s=0.6,
                suspect_s=2.0,
                gone_s=4.0,
                lease_s=2.0,
                drain_s=3.0,
                max_offline_s=rng.choice([3.0, 30.0]),
                offline_action=rng.choice(["pause", "exit"]),
            ),
        )
        check(settings)
        return settings
