"""Many histories, on all cores."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from ddl.sim.world import Outcome, simulate

CHUNK: Final = 3
"""Histories that a worker goes through before it collects garbage: a quarter of the time else."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One seed whose history was broken off, and why."""

    seed: int
    text: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `just swarm --json` prints. `events`, `commits` and `faults` are sums over all seeds."""

    seeds: int
    events: int
    commits: int
    faults: int
    violations: tuple[Violation, ...]
    seconds: float

    def mean(self, what: str) -> float:
        """Of `what` per seed."""
        value: int = getattr(self, what)
        return value / max(1, self.seeds)


def swarm(
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    note: Callable[[Outcome], None] = lambda _: None,
) -> Report:
    """Let the history of every seed happen.

    Args:
        processes: how many at once; by default one on each core.
        note: told each outcome as it comes, in no particular order.
    """
    started = time.monotonic()
    outcomes = []
    # forked workers would share what the caller has; these begin with nothing
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=_begin) as pool:
        for chunk in pool.imap_unordered(_simulate_all, _chunks(seeds)):
            for outcome in chunk:
                note(outcome)
                outcomes.append(outcome)
    return Report(
        seeds=len(outcomes),
        events=sum(outcome.events for outcome in outcomes),
        commits=sum(outcome.commits for outcome in outcomes),
        faults=sum(outcome.faults for outcome in outcomes),
        violations=tuple(
            Violation(seed=outcome.seed, text=outcome.violation)
            for outcome in sorted(outcomes)
            if outcome.violation
        ),
        seconds=round(time.monotonic() - started, 1),
    )


def _begin() -> None:
    """In a worker: garbage is collected when we say so, and modules are none."""
    gc.disable()
    gc.freeze()


def _chunks(seeds: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rest = iter(seeds)
    while chunk := tuple(itertools.islice(rest, CHUNK)):
        yield chunk


def _simulate_all(seeds: tuple[int, ...]) -> list[Outcome]:
    outcomes = [simulate(seed) for seed in seeds]
    gc.collect()
    return outcomes
