"""Many histories, on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable

import msgspec

from ddl.sim.world import Outcome, simulate


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
        for outcome in pool.imap_unordered(_simulate, seeds):
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
    """In a worker: garbage is collected between two histories, and modules are none."""
    gc.disable()
    gc.freeze()


def _simulate(seed: int) -> Outcome:
    outcome = simulate(seed)
    gc.collect()
    return outcome
