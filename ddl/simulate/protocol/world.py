"""A whole run: who is there when, what everything weighs, and what comes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from ddl import config
from ddl.config import Scalar, Settings
from ddl.core.log import LogState
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Layout, ObjectRef, RunRecord, TensorSpec
from ddl.protocol.sizes import CODEC_BITS, default_num_fragments
from ddl.protocol.wire import digest
from ddl.sim.clockwork import Timeline
from ddl.sim.redis import Redis
from ddl.simulate.fleet import deal, lives_of
from ddl.simulate.life import Share, Spell
from ddl.simulate.paper import Place
from ddl.simulate.protocol.coordinator import Coordinator
from ddl.simulate.protocol.learner import Lane, Learner
from ddl.simulate.protocol.pipe import Pipe
from ddl.simulate.protocol.tally import RunCell, Tally, Traffic, mean
from ddl.simulate.settings import Study
from ddl.simulate.tape import Tape

FOUNDED_S: Final = 5.0
"""From the first coordinator's start until the fleet's time begins: Redis knows the run by then."""


class World:
    """Everything that the processes of a run share.

    Args:
        place, size: the cell of the study.
        changes: of the run's settings, by their dotted keys.
        tape: failures, in place of drawn ones.
    Raises: ConfigError: settings that cannot be, fewer slices than learners, a tape of other learners.
    Attributes:
        given: what the study says of links and such.
        elements: in each fragment.
        up_bytes, outer_bytes: of a contribution, and of what is stored beside a version.
        fetching, publishing: the coordinator's link.
        lanes: the learners.
    """

    def __init__(
        self,
        study: Study,
        place: Place,
        size: float,
        *,
        changes: Mapping[str, Scalar],
        tape: Tape | None = None,
        seed: int = 0,
    ) -> None:
        self.given = given = study.protocol
        self._place = place
        self._changes = dict(changes)
        self.timeline = Timeline()
        self.redis = Redis(lambda: self.timeline.now)
        self.tally = Tally()
        self.latency_s = given.latency_s
        self.fetching, self.publishing = Pipe(given.coordinator_mbit), Pipe(given.coordinator_mbit)
        settings = config.replace(given.settings, changes)
        num_fragments = settings.fragments.num or default_num_fragments(
            4 * given.parameters, given.parameters, settings.round.every_steps
        )
        self.elements = math.ceil(given.parameters / num_fragments)
        by_steps = settings.codec.down == "int4-step"
        bf16 = settings.fragments.publish_dtype == "bfloat16"
        self.up_bytes = self._bytes(CODEC_BITS[settings.codec.up])
        self.outer_bytes = self._bytes(64 if by_steps or bf16 else 32)
        self._published_bytes = self._bytes(16 if bf16 else 32)
        self._step_bytes = self._bytes(CODEC_BITS["int4"]) if by_steps else 0
        self.keys = ObjectKeys(settings.run.name)
        self.run = self._genesis(settings, num_fragments)
        self._log = LogState.genesis(self.run)
        self._begins_at = self.timeline.now + FOUNDED_S
        self._pids = itertools.count(1)
        self._coordinators = 0
        self._lots = Random(f"{seed}/coordinator")  # noqa: S311 - a history, not a secret
        shares = deal(study, place.learners, size, seed=seed)
        lives = lives_of(study, place, shares, seed=seed, tape=tape)
        self._horizon_s = study.horizon_s
        self.lanes = [
            self._lane(number, share, study.times.step_s, seed)
            for number, share in enumerate(shares)
        ]
        tokens_per_s = sum(share.capacity for share in shares) / study.times.step_s
        self._capacity = tokens_per_s * study.horizon_s
        self._start_coordinator()
        for lane, life in zip(self.lanes, lives, strict=True):
            self._schedule(lane, life.spells)

    def run_to_the_end(self) -> RunCell:
        """Let all time pass, and sum up."""
        horizon_s, tally = self._horizon_s, self.tally
        self.timeline.run(self._begins_at + horizon_s)
        steps = tally.steps
        receipts = [receipt for receipt in tally.receipts if receipt.fate == "merged"]
        return RunCell(
            settings=self._changes,
            learners=self._place.learners,
            chips=self._place.chips,
            horizon_s=horizon_s,
            goodput=100 * tally.tokens / self._capacity,
            uptime=100 * tally.stepping_s / horizon_s,
            merged=100 * tally.progress / self._capacity,
            merged_tokens=tally.progress,
            rounds=len(steps),
            round_every_s=tally.round_every_s,
            waits=tally.waits,
            fresh=mean(tally.fresh),
            late=mean(tally.late),
            alone=100 * mean([num <= 1 for num in tally.fresh]),
            staleness=mean([receipt.staleness for receipt in receipts]),
            fates=tally.fates,
            bytes_per_s=Traffic(
                learner_up=mean([lane.up.num_bytes for lane in self.lanes]) / horizon_s,
                learner_down=mean([lane.down.num_bytes for lane in self.lanes]) / horizon_s,
                coordinator_up=self.publishing.num_bytes / horizon_s,
                coordinator_down=self.fetching.num_bytes / horizon_s,
            ),
            shares=tally.shares([lane.name for lane in self.lanes]),
            starts=len(tally.starts_s),
            start_s=tally.start_s,
            coordinators=self._coordinators,
        )

    # ---- who is there -------------------------------------------------------------------------------

    def _lane(self, number: int, share: Share, step_s: float, seed: int) -> Lane:
        given = self.given
        return Lane(
            f"learner-{number}",
            step_s=step_s / share.slowest,
            up=Pipe(given.up_mbit),
            down=Pipe(given.down_mbit),
            lots=Random(f"{seed}/{number}/steps"),  # noqa: S311 - a history, not a secret
        )

    def _schedule(self, lane: Lane, spells: Sequence[Spell]) -> None:
        """A process for every stretch in which the learner has the same chips."""
        for spell in spells:
            self._at(spell.start, partial(self._start_learner, lane, spell))

    def _start_learner(self, lane: Lane, spell: Spell) -> None:
        learner = Learner(self, lane, tokens=spell.chips, pid=next(self._pids))
        self._at(spell.end, learner.kill)

    def _start_coordinator(self) -> None:
        """Start one on the log as it stands, and plan its end and the next one."""
        self._coordinators += 1
        coordinator = Coordinator(self, self._log, pid=next(self._pids))
        if self.given.coordinator_mtbi_s:
            lives_s = self._lots.expovariate(1 / self.given.coordinator_mtbi_s)
            self.timeline.after(lives_s, coordinator.kill)
            self.timeline.after(lives_s + self.given.coordinator_away_s, self._start_coordinator)

    def _at(self, fleet_s: float, action: Callable[[], object]) -> None:
        """Plan an action for an instant of the fleet's time."""
        self.timeline.after(self._begins_at + fleet_s - self.timeline.now, action)

    # ---- what there is, and what it weighs ----------------------------------------------------------

    def published(self, fragment: int, version: int) -> ObjectRef:
        """The weights of a version."""
        sha256 = digest(f"{fragment}/{version}".encode())
        key = self.keys.fragment(fragment, version, sha256)
        return ObjectRef(key=key, bytes=self._published_bytes, sha256=sha256)

    def outer(self, fragment: int, version: int) -> ObjectRef:
        """What the next version is made from, beside the weights."""
        sha256 = digest(f"{fragment}/{version}/outer".encode())
        key = self.keys.outer(fragment, version, sha256)
        return ObjectRef(key=key, bytes=self.outer_bytes, sha256=sha256)

    def step_object(self, fragment: int, version: int) -> ObjectRef | None:
        """The quantised step to a version, if the run publishes such."""
        if not self._step_bytes:
            return None
        sha256 = digest(f"{fragment}/{version}/step".encode())
        key = self.keys.step(fragment, version, sha256)
        return ObjectRef(key=key, bytes=self._step_bytes, sha256=sha256)

    def _bytes(self, bits: float) -> int:
        """Of a fragment with so many bits an element."""
        return math.ceil(self.elements * bits / 8)

    def _genesis(self, settings: Settings, num_fragments: int) -> RunRecord:
        fragments = range(num_fragments)
        return RunRecord(
            ddl_version="0",
            name=settings.run.name,
            lineage="simulated",
            created_at=self.timeline.now,
            settings=settings,
            layout=Layout(
                num_fragments=len(fragments),
                tensors=tuple(
                    TensorSpec(
                        name=f"w{fragment}",
                        shape=(self.elements,),
                        dtype="float32",
                        kind="parameter",
                        rule=settings.merge.method,
                        fragment=fragment,
                    )
                    for fragment in fragments
                ),
            ),
            task_digest="",
            fragments=tuple(self.published(fragment, 0) for fragment in fragments),
        )
