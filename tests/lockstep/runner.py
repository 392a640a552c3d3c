"""Whole runs in one thread and in virtual time: the real core, codec and merge, no processes.

    run = Run(settings, infos)
    run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=6)

After every event the invariants of `ddl.core.invariants` are checked, on both sides of the wire.
The shells here are as thin as can be: each command is carried out after a fixed delay, and nothing
fails unless a test asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import torch
from torch import Tensor

from ddl import config
from ddl.config import FragmentSettings, OuterSettings, RoundSettings, Section, Settings
from ddl.coordinator.payloads import Payloads
from ddl.core import events as e
from ddl.core.invariants import check
from ddl.core.log import LogState
from ddl.merge.layout import TensorInfo, dtype_of, plan_layout
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Amount, LogRecord, ObjectRef, Receipt, RunRecord
from ddl.store.base import Store
from tests.lockstep.coordinator import Coordinator
from tests.lockstep.learner import Learner
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import NumericTask
from tests.lockstep.world import Books, ObjectStore, Services, Time

LINEAGE = "lineage"


def infos(num: int, shape: tuple[int, ...] = (2, 3), dtype: str = "float32") -> list[TensorInfo]:
    """`num` equal parameters w0, w1, ...: with as many fragments, one in each."""
    return [
        TensorInfo(name=f"w{i}", shape=shape, dtype=dtype, kind="parameter") for i in range(num)
    ]


def settings_of(num_fragments: int, **sections: Section) -> Settings:
    """Settings of a small quick run: H = 8 steps, two rounds in flight where there can be two."""
    quick = RoundSettings(every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments))
    standing = OuterSettings(preset="fixed")  # nothing in the log but what a test does
    given = {
        "fragments": FragmentSettings(num=num_fragments),
        "round": quick,
        "outer": standing,
    } | sections
    settings = msgspec.structs.replace(Settings(), **given)
    config.replace(settings, {})  # they can be used together
    return settings


class Run:
    """One run: services, at most one coordinator that counts, any number of learners.

    Args:
        settings: of genesis.
        described: the model's tensors.
        start: version 0 of them; zeros where nothing is given.
    """

    def __init__(
        self,
        settings: Settings,
        described: Sequence[TensorInfo],
        *,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.time = Time()
        self.services = Services(settings)
        self.keys = ObjectKeys(settings.run.name)
        self.layout = plan_layout(
            described,
            num=settings.fragments.num,
            method=settings.merge.method,
            every_steps=settings.round.every_steps,
        )
        objects = cast("Store", ObjectStore(self.services.objects))
        self.payloads = Payloads(objects, settings.run.name, self.layout, settings)
        given = start or {}
        refs = []
        for fragment, specs in enumerate(self.layout.by_fragment):
            values = {
                s.name: given.get(s.name, torch.zeros(s.shape, dtype=dtype_of(s))).detach().clone()
                for s in specs
            }
            weights = {s.name: values[s.name].float() for s in specs if s.kind == "parameter"}
            buffers = {s.name: values[s.name] for s in specs if s.kind == "buffer"}
            refs.append(self.payloads.put_fragment(fragment, 0, weights, buffers))
        self.record = RunRecord(
            ddl_version="0",
            name=settings.run.name,
            lineage=LINEAGE,
            created_at=self.time.now,
            settings=settings,
            layout=self.layout,
            task_digest="",
            fragments=tuple(refs),
        )
        genesis = LogState.genesis(self.record)
        self.services.show(
            genesis.head(), [genesis.fragment_state(p) for p in range(len(refs))], ()
        )
        self.coordinator: Coordinator | None = None
        self.learners: dict[str, Learner] = {}
        self.dead: list[Learner] = []
        self.scripted: dict[str, Scripted] = {}
        self.epoch = 0

    # ---- driving ------------------------------------------------------------------------------

    def start_coordinator(self, first: e.Event | None = None, **delays: float) -> Coordinator:
        """Start a coordinator on the log as it stands; an older one stays as it is."""
        self.epoch += 1
        self.coordinator = Coordinator(self, self.fold(), self.epoch, **delays)
        self.coordinator.begin(first or e.Tick())
        return self.coordinator

    def add_learner(self, name: str, task: NumericTask, **pace: float) -> Learner:
        """Start a learner; under a name that was there before, as its next incarnation."""
        before = self.learners.get(name)
        if before is not None:
            before.kill()
            self.dead.append(before)
        learner = Learner(self, name, before.incarnation + 1 if before else 1, task, **pace)
        self.learners[name] = learner
        learner.begin()
        return learner

    def go(self, *, commits: int, seconds: float = 10_000.0) -> None:
        """Go on until so many steps are in the log."""
        reached = self.time.run(seconds, until=lambda: self.versions >= commits)
        assert reached, f"{self.versions} of {commits} commits after {seconds} s: {self.rounds}"

    @property
    def log(self) -> LogState:
        assert self.coordinator is not None
        return self.coordinator.machine.log

    @property
    def versions(self) -> int:
        return self.services.head.global_version if self.services.head else 0

    @property
    def rounds(self) -> list[tuple[int, str]]:
        return [(r.fragment, r.reason) for r in self.services.rounds]

    # ---- looking ------------------------------------------------------------------------------

    def records(self) -> list[LogRecord]:
        """The log as it lies in the store."""
        return [
            wire.parse(data, LogRecord, what=f"record {seq}")
            for seq, data in sorted(self.services.log.items())
        ]

    def receipts(self, learner: str = "") -> list[Receipt]:
        found = [r for record in self.records() for r in record.receipts]
        return [r for r in found if learner in ("", r.learner)]

    def fold(self, start: LogState | None = None) -> LogState:
        """The folded log, from genesis or a checkpoint."""
        log = start or LogState.genesis(self.record)
        for seq, data in sorted(self.services.log.items()):
            if seq > log.seq:
                log.apply(wire.parse(data, LogRecord, what=f"record {seq}"), wire.digest(data))
        return log

    def find_version(self, version: int) -> e.VersionFound:
        """A global version to go back to, as the log tells of it."""
        log = LogState.genesis(self.record)
        for seq, data in sorted(self.services.log.items()):
            if log.global_version == version:
                break
            log.apply(wire.parse(data, LogRecord, what=f"record {seq}"), wire.digest(data))
        return e.VersionFound(version, tuple(log.fragments), log.progress)

    def model(self) -> dict[str, Tensor]:
        """The newest version of every tensor."""
        values: dict[str, Tensor] = {}
        for fragment, state in self.services.fragments.items():
            version = self.payloads.fragment(fragment, state.published)
            values |= {**version.weights, **version.buffers}
        return values

    def weights(self, fragment: int, ref: ObjectRef) -> dict[str, Tensor]:
        return dict(self.payloads.fragment(fragment, ref).weights)

    def check_ledger(self) -> None:
        """Last reported == settled + outstanding, over the wire (design 7)."""
        everyone: list[Books] = [*self.learners.values(), *self.dead, *self.scripted.values()]
        for books in everyone:
            for fragment, seq, total, last in books.books():
                settled = self.log.settled(books.name, books.incarnation, fragment)
                receipted = self.log.account_seq(books.name, books.incarnation, fragment)
                assert seq - receipted in (0, 1), f"{books.name}: f{fragment} skipped a seq"
                outstanding = last if seq > receipted else Amount()
                assert total == settled + outstanding, (
                    f"{books.name} f{fragment}: reported {total}, settled {settled}, "
                    f"outstanding {outstanding}"
                )


def checked(run: Run) -> None:
    """At the end: the log folds to the very state, and the state is sound."""
    assert wire.canonical(run.fold()) == wire.canonical(run.log)
    run.check_ledger()
    assert run.coordinator is not None
    assert not check(run.coordinator.machine)
    ids = [r.id for r in run.receipts()]
    assert len(ids) == len(set(ids)), "a contribution has two receipts"
