"""Many simulated learners in one process: the generator of the scale benchmark.

    python tests/bench/crowd.py --redis URL --store FOLDER --learners 512

They speak to Redis as real learners do (a beat a second, one more for each piece of news, an
announcement for each open round) and put real payloads, but train nothing and download nothing: what
is measured is the coordinator. It ends when its stdin does.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

import ddl
from ddl.codec.codecs import FP32
from ddl.codec.contribution import encode_contribution
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    NO_PAYLOAD,
    Amount,
    FragmentState,
    Handin,
    HandinId,
    LearnerRecord,
    ObjectRef,
    Round,
    RunEntry,
    held_digest,
)
from ddl.registry.base import settings_digest
from ddl.registry.learner import RedisLearner
from ddl.store.local import LocalStore

RUN = "bench"
ELEMENTS = 1000
FRAGMENTS = 4
STEPS, TOKENS = 4, 400
"""Of each contribution."""
STEP_S = 0.25
BEAT_S = 1.0
NEWS_GAP_S = 0.2
"""A learner beats no more often than it steps, and at least so often (`ddl.learner.beat`)."""


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """As a task file: four fragments of a thousand elements."""
    torch.manual_seed(ctx.seed)
    layers = [torch.nn.Linear(40, 25, bias=False) for _ in range(FRAGMENTS)]
    return ddl.Task(model=torch.nn.ModuleList(layers))


class Crowd:
    """All learners, on one connection to Redis."""

    def __init__(self, registry: RedisLearner, store: LocalStore, entry: RunEntry) -> None:
        self.registry = registry
        self.store = store
        self.entry = entry
        self.known = settings_digest(entry.settings)
        self.states: Sequence[FragmentState] = ()
        self.read_states()

    def read_states(self) -> None:
        self.states = self.registry.read_fragments()


class Learner:
    """One of them."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._id = f"learner-{number:04d}"
        self._step = 1000  # seasoned: rounds open at once
        self._seqs = [0] * FRAGMENTS
        self._launches = [-1] * FRAGMENTS
        self._totals = [Amount()] * FRAGMENTS
        self._waiting: dict[HandinId, Handin] = {}
        self.beaten_at = 0.0
        joined = crowd.registry.register(self._record(), gone_s=60.0, takeover=True)
        assert not joined.refused, joined.refused

    def beat(self) -> None:
        """Say that it trains, hear of rounds, hand in to them."""
        crowd = self._crowd
        self._step += 1
        self.beaten_at = time.monotonic()
        reply = crowd.registry.beat(
            self._record(), list(self._waiting.values()), settings_digest=crowd.known
        )
        for receipt in reply.receipts:
            self._waiting.pop(receipt.id, None)
        outstanding = {id_.fragment for id_ in self._waiting}
        for round_ in reply.rounds:
            fragment = round_.fragment
            if fragment not in outstanding and round_.launch > self._launches[fragment]:
                self._hand_in(round_)

    def _hand_in(self, round_: Round) -> None:
        crowd, p = self._crowd, round_.fragment
        self._seqs[p] += 1
        self._launches[p] = round_.launch
        self._totals[p] += Amount(steps=STEPS, tokens=TOKENS)
        hashes = {state.fragment: state.published.sha256 for state in crowd.states}
        handin = Handin(
            learner=self._id,
            incarnation=1,
            fragment=p,
            seq=self._seqs[p],
            lineage=crowd.entry.run.lineage,
            line=round_.line,
            launch=round_.launch,
            oldest_base=crowd.states[p].version,
            held=self._held,
            held_digest=held_digest(hashes),
            steps=STEPS,
            tokens=TOKENS,
            total=self._totals[p],
            codec=FP32.tag,
            payload=NO_PAYLOAD,
            loss=1.0,
            step_s=STEP_S,
        )
        specs = crowd.entry.run.layout.by_fragment[p]
        deltas = {spec.name: torch.full(spec.shape, 1e-3) for spec in specs}
        encoded = encode_contribution(specs, deltas, {}, FP32, handin.header)
        key = ObjectKeys(RUN).contribution(*handin.id, encoded.sha256)
        crowd.store.put(key, encoded.buffer)
        ref = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
        handin = msgspec.structs.replace(handin, payload=ref)
        self._waiting[handin.id] = handin
        crowd.registry.announce(handin, incarnation=1)

    @property
    def _held(self) -> tuple[int, ...]:
        return tuple(state.version for state in self._crowd.states)

    def _record(self) -> LearnerRecord:
        return LearnerRecord(
            id=self._id,
            incarnation=1,
            lineage=self._crowd.entry.run.lineage,
            host="bench",
            state="training",
            step=self._step,
            step_s=STEP_S,
            tokens=100 * self._step,
            loss=1.0,
            held=self._held,
        )


def live(crowd: Crowd, num: int) -> None:
    """Let them live until stdin ends."""
    lots = random.Random(1)
    learners = [Learner(crowd, number) for number in range(num)]
    begun = time.monotonic()
    due = [(begun + lots.random(), number) for number in range(num)]
    heapq.heapify(due)
    print("ready", flush=True)
    news_at = 0.0
    while not select.select([sys.stdin], [], [], 0)[0]:
        now = time.monotonic()
        if crowd.registry.wait_news(min(max(due[0][0] - now, 0.0), 0.05)):
            crowd.read_states()
            # each hears of it as soon as its last beat is long enough ago
            news_at = time.monotonic()
            due = [
                (min(at, max(news_at, learners[number].beaten_at + NEWS_GAP_S)), number)
                for at, number in due
            ]
            heapq.heapify(due)
        while due[0][0] <= time.monotonic() and time.monotonic() < now + 0.25:
            _, number = heapq.heappop(due)
            learners[number].beat()
            heapq.heappush(due, (learners[number].beaten_at + BEAT_S, number))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--learners", type=int, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.fsync = lambda fd: None  # the disk of so many machines would be many disks
    registry = RedisLearner(given.redis, RUN)
    entry = registry.read_entry()
    assert entry is not None
    live(Crowd(registry, LocalStore(given.store), entry), given.learners)


if __name__ == "__main__":
    main()
