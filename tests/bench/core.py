"""What one event costs the coordinator's core, with 64 learners and 24 fragments.

    just bench core [--json] [--seconds 120]

A run without tensors: every learner beats once a second and hands in to every round, one round a
second, with jitter, late and lost ones. Only `Machine.step` is timed. The reference, in the same
run, is what any shell must do per event anyway: decode one learner's record. Times are CPU times of
the thread, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import json
import platform
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import mean, median

import msgspec

from ddl.config import FragmentSettings, RoundSettings, Settings
from ddl.core import events as e
from ddl.core.log import LogState
from ddl.core.machine import Machine
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    Amount,
    FragmentStep,
    Handin,
    Health,
    Layout,
    LearnerRecord,
    ObjectRef,
    RunRecord,
    TensorSpec,
    Waits,
    held_digest,
)

LEARNERS = 64
FRAGMENTS = 24
LIMIT_US = 100.0


class Bench:
    """Drives one machine; remembers nanoseconds by kind of event."""

    def __init__(self, *, seed: int) -> None:
        self.lots = random.Random(seed)
        self.now = 1000.0
        self.times_ns: dict[str, list[int]] = defaultdict(list)
        self._planned: list[tuple[float, int, Callable[[], e.Event | None]]] = []
        self._count = itertools.count()
        self._keys = ObjectKeys("demo")
        self.machine = Machine(run="demo", log=genesis(), epoch=1, holder="bench", ddl_version="0")
        self._steps = dict.fromkeys(range(LEARNERS), 0)
        self._seqs: dict[tuple[int, int], int] = defaultdict(int)
        self._launches: set[tuple[int, int]] = set()
        for learner in range(LEARNERS):
            self._plan(self.lots.random(), lambda learner=learner: self._beat(learner))  # type: ignore[misc]

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            wake_at = self.machine.wake_at(self.now)
            instant, _, make = self._planned[0]
            if wake_at <= instant:
                self.now = wake_at
                self._tell(e.Tick())
            else:
                heapq.heappop(self._planned)
                self.now = instant
                event = make()
                if event is not None:
                    self._tell(event)

    def _plan(self, delay_s: float, make: Callable[[], e.Event | None]) -> None:
        heapq.heappush(self._planned, (self.now + delay_s, next(self._count), make))

    def _tell(self, event: e.Event) -> None:
        started = time.thread_time_ns()
        commands = self.machine.step(event, self.now)
        self.times_ns[type(event).__name__].append(time.thread_time_ns() - started)
        for command in commands:
            match command:
                case e.Fetch(handin):
                    self._plan(0.05 + 0.1 * self.lots.random(), lambda h=handin: self._fetched(h))  # type: ignore[misc]
                case e.Merge():
                    self._plan(0.2, lambda merge=command: self._merged(merge))  # type: ignore[misc]
                case e.WriteRecord(record):
                    digest = wire.digest(wire.canonical(record))
                    self._plan(0.05, lambda r=record, d=digest: e.RecordWritten(r, d))  # type: ignore[misc]
                case e.ShowRounds(rounds, opened=True):
                    for learner in range(LEARNERS):
                        for round_ in rounds:
                            self._hand_in_later(learner, round_.fragment, round_.launch)

    def _beat(self, learner: int) -> e.Event:
        self._steps[learner] += 1
        self._plan(0.98 + 0.04 * self.lots.random(), lambda: self._beat(learner))
        return e.Beat(record_of(learner, self._steps[learner], self._held()), self.now)

    def _held(self) -> tuple[int, ...]:
        return tuple(head.version for head in self.machine.log.fragments)

    def _hand_in_later(self, learner: int, fragment: int, launch: int) -> None:
        if (learner, launch) in self._launches or self.lots.random() < 0.02:
            return
        self._launches.add((learner, launch))
        late_s = 4.0 if self.lots.random() < 0.05 else 0.0
        self._plan(late_s + self.lots.random(), lambda: self._announced(learner, fragment, launch))

    def _announced(self, learner: int, fragment: int, launch: int) -> e.Event | None:
        log, name = self.machine.log, f"learner-{learner}"
        last = log.account_seq(name, 1, fragment)
        if self._seqs[learner, fragment] > last:
            return None  # one is outstanding
        seq = self._seqs[learner, fragment] = last + 1
        amount = Amount(steps=24, tokens=24_000)
        held = self._held()
        hashes = {p: head.published.sha256 for p, head in enumerate(log.fragments)}
        sha256 = wire.digest(f"{learner}/{fragment}/{seq}".encode())
        key = self._keys.contribution(name, 1, fragment, seq, sha256)
        handin = Handin(
            learner=name,
            incarnation=1,
            fragment=fragment,
            seq=seq,
            lineage=log.lineage,
            line=0,
            launch=launch,
            oldest_base=max(0, held[fragment] - 1),
            held=held,
            held_digest=held_digest(hashes),
            steps=amount.steps,
            tokens=amount.tokens,
            total=log.settled(name, 1, fragment) + amount,
            codec="fp32/1",
            payload=ObjectRef(key=key, bytes=1_000_000, sha256=sha256),
            loss=2.0,
            step_s=1.0,
        )
        return e.Announced(handin)

    def _fetched(self, handin: Handin) -> e.Event:
        return e.Fetched(handin.id, "ok", norm=1.0 + 0.1 * self.lots.random(), seconds=0.1)

    def _merged(self, merge: e.Merge) -> e.Event:
        before = merge.base.version
        published = object_ref(merge.fragment, before + 1)
        step = FragmentStep(
            fragment=merge.fragment,
            version_before=before,
            version_after=before + 1,
            published=published,
            outer=published,
        )
        return e.Merged(merge.launch, step, Health(cos_peers=0.9), "bench/1", Waits(merge_s=0.2))


def object_ref(fragment: int, version: int) -> ObjectRef:
    sha256 = wire.digest(f"{fragment}/{version}".encode())
    return ObjectRef(key=f"f{fragment}/v{version}", bytes=1, sha256=sha256)


def record_of(learner: int, step: int, held: tuple[int, ...]) -> LearnerRecord:
    return LearnerRecord(
        id=f"learner-{learner}",
        incarnation=1,
        lineage="lineage",
        host="host",
        device="cuda:0",
        state="training",
        step=step,
        step_s=1.0 + learner / 1000,
        tokens=1000 * step,
        loss=2.0,
        held=held,
    )


def genesis() -> LogState:
    """A run whose fragments hold one tensor each."""
    settings = msgspec.structs.replace(
        Settings(),
        fragments=FragmentSettings(num=FRAGMENTS),
        round=RoundSettings(every_steps=24, quorum=LEARNERS // 2),
    )
    tensors = tuple(
        TensorSpec(
            name=f"w{p}", shape=(8, 8), dtype="float32", kind="parameter", rule="rda", fragment=p
        )
        for p in range(FRAGMENTS)
    )
    return LogState.genesis(
        RunRecord(
            ddl_version="0",
            name="demo",
            lineage="lineage",
            created_at=0.0,
            settings=settings,
            layout=Layout(num_fragments=FRAGMENTS, tensors=tensors),
            task_digest="",
            fragments=tuple(object_ref(p, 0) for p in range(FRAGMENTS)),
        )
    )


def reference_us() -> float:
    """Median microseconds to decode one learner's record."""
    data = wire.canonical(record_of(1, 100, (7,) * FRAGMENTS))
    times = []
    for _ in range(5_000):
        started = time.thread_time_ns()
        wire.parse(data, LearnerRecord, what="record")
        times.append(time.thread_time_ns() - started)
    return median(times) / 1000


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> int:
    """Measure, print, and fail if the limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--seconds", type=float, default=120.0, help="virtual seconds to run")
    options = parser.parse_args()

    bench = Bench(seed=1)
    bench.run(60.0)  # the pace is found, all learners have an account
    bench.times_ns.clear()
    gc.collect()
    bench.run(options.seconds)
    reference = reference_us()
    by_kind = {kind: [t / 1000 for t in times] for kind, times in sorted(bench.times_ns.items())}
    every = [t for times in by_kind.values() for t in times]

    figures: dict[str, dict[str, float | str | None]] = {}

    def add(key: str, value: float, limit: float | None = None) -> None:
        figures[key] = {
            "value": round(value, 2),
            "unit": "us",
            "limit": limit,
            "ratio": round(value / reference, 2),
        }

    add("step_median", median(every), LIMIT_US)
    add("step_mean", mean(every), LIMIT_US)
    for kind, times in by_kind.items():
        add(f"{kind}_median", median(times))
        add(f"{kind}_p99", percentile(times, 0.99))
    add("reference", reference)
    if options.json:
        print(json.dumps({"name": "core", "machine": platform.platform(), "figures": figures}))
    else:
        rounds = bench.machine.log.seq
        print(f"{len(every)} events, {rounds} records, {LEARNERS} learners, {FRAGMENTS} fragments")
        for key, figure in figures.items():
            limit = f"  limit {figure['limit']:g}" if figure["limit"] else ""
            print(f"{key:22} {figure['value']:9.2f} us  x{figure['ratio']:<8}{limit}")
    broken = [k for k in ("step_median", "step_mean") if float(figures[k]["value"] or 0) > LIMIT_US]
    if broken:
        print(f"over the limit of {LIMIT_US:g} us: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
