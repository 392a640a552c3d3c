"""One learner of a fleet, from the first step to the horizon.

It leaps from one thing that happens to the next: between two of them all steps are alike. As in the
paper, chips fail while they step, a step in which some fail is still done, and only after it the
learner goes on without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from ddl.simulate.settings import Times
from ddl.simulate.tape import Failures, Fault


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a learner has of the fleet.

    Attributes:
        slices: of each kind of machine.
        slice_chips: chips in a slice of each kind.
        slowest: speed of its slowest slice, which all others wait for in every step: their batches
            are equal.
        capacity: sum over its chips of their speeds.
    """

    slices: tuple[int, ...]
    slice_chips: tuple[int, ...]
    slowest: float
    capacity: float


class Spell(NamedTuple):
    """A stretch of time in which a learner steps with the same chips."""

    start: float
    end: float
    chips: int


@dataclass(kw_only=True)
class Life:
    """What has become of a learner.

    Attributes:
        work: seconds in useful steps, times chips that took part, times the speed they went at.
        spells: when it stepped, in order, within the horizon.
        faults: what has failed, as a tape has it.
    """

    work: float = 0.0
    spells: list[Spell] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def live(
    share: Share,
    failures: Failures,
    times: Times,
    *,
    horizon_s: float,
    elastic: bool,
    spares: bool = False,
    number: int = 0,
) -> Life:
    """The life of learner `number`.

    Args:
        elastic: it goes on without failed slices, after a pause of `down_s`, and takes them back after
            one of `up_s`; else it stands still for `restart_s`.
        spares: of one that is not elastic: it does not wait until failed slices are back.
    """
    learner = _Learner(share, number)
    life, step_s = learner.life, times.step_s / share.slowest
    present, away = learner.present, learner.away
    now = 0.0
    while now < horizon_s:
        if not any(present):
            now = max(now, away[0][0])
        else:
            failure_at = failures.next_at(now, present)
            due = min(failure_at, away[0][0] if away else horizon_s, horizon_s)
            end = now + max(1, math.ceil((due - now) / step_s)) * step_s
            stepped_s = min(end, horizon_s) - now
            life.work += stepped_s * learner.chips * share.slowest
            life.spells.append(Spell(now, now + stepped_s, learner.chips))
            failed = False
            while failure_at <= end and any(present):
                failed = True
                learner.lose(failures, failure_at, noticed_at=end, replaced=spares and not elastic)
                failure_at = failures.next_at(failure_at, present)
            now = end
            if failed and not elastic:
                now = max(now, max((at for at, _ in away), default=now)) + times.restart_s
                learner.take_back(now)
            elif failed:
                now += times.down_s
        if learner.take_back(now):
            now += times.up_s
    life.faults = [fault for fault in life.faults if fault.time_s < horizon_s]
    return life


class _Learner:
    """Which of its slices are there, and which are away."""

    def __init__(self, share: Share, number: int) -> None:
        self.life = Life()
        self.present = list(share.slices)
        self.away: list[tuple[float, int]] = []
        self._chips = share.slice_chips
        self.chips = sum(n * chips for n, chips in zip(share.slices, self._chips, strict=True))
        self._number = number

    def lose(self, failures: Failures, at: float, *, noticed_at: float, replaced: bool) -> None:
        kind, away_s = failures.take(self.present)
        self.life.faults.append(
            Fault(time_s=at, learner=self._number, duration_s=away_s, machine=kind)
        )
        if not replaced:
            self.present[kind] -= 1
            self.chips -= self._chips[kind]
            heappush(self.away, (noticed_at + away_s, kind))

    def take_back(self, now: float) -> bool:
        """Whether any slice is back."""
        some = False
        while self.away and self.away[0][0] <= now:
            _, kind = heappop(self.away)
            self.present[kind] += 1
            self.chips += self._chips[kind]
            some = True
        return some


def union_s(spells: Sequence[Sequence[tuple[float, float] | Spell]]) -> float:
    """Seconds in which at least one of several learners stepped."""
    total, until = 0.0, 0.0
    for start, end in sorted(spell[:2] for one in spells for spell in one):
        if end > until:
            total += end - max(start, until)
            until = end
    return total
