"""Steps that learners took, and time that they had for it. Arithmetic only, but for one reader.

Instants are seconds since the epoch by this machine's clock, which is Redis' clock too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Taken(Protocol):
    """A step of anybody, when it had been taken."""

    @property
    def at(self) -> float: ...


class Step(NamedTuple):
    """A step of a learner's life, when it had been taken."""

    at: float
    life: int
    loss: float


class Span(NamedTuple):
    """From an instant to another one."""

    begin: float
    end: float

    def within(self, other: Span) -> Span:
        """The part of it that lies in `other`; nothing may be left of it."""
        begin = min(max(self.begin, other.begin), other.end)
        return Span(begin, max(begin, min(self.end, other.end)))

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def read_steps(file: Path) -> list[Step]:
    """What a learner wrote (data/chaos/task.py), in the order of time; nothing if it took no step."""
    if not file.exists():
        return []
    rows = (line.split() for line in file.read_text("ascii").splitlines())
    return [Step(float(at), int(life), float(loss)) for at, life, loss in rows]


def count_in(steps: Iterable[Taken], span: Span) -> int:
    """Steps that ended in the span, its end not included."""
    return sum(span.begin <= step.at < span.end for step in steps)


def living_s(alive: Iterable[Span], halted: Iterable[Span], window: Span) -> float:
    """Seconds of the window in which a process was there and not stopped.

    Args:
        alive: from each start of the process to its end; they do not overlap.
        halted: in which it was stopped; they do not overlap either.
    """
    pauses = [span.within(window) for span in halted]
    return sum(
        life.seconds - sum(pause.within(life).seconds for pause in pauses)
        for life in (span.within(window) for span in alive)
    )


def starting_s(alive: Iterable[Span], steps: Sequence[Step], window: Span) -> float:
    """Seconds of the window in which a process was there and had not taken its first step."""
    total = 0.0
    for life in alive:
        first = next_after(steps, life.begin)
        until = life.end if first is None else min(first, life.end)
        total += Span(life.begin, until).within(window).seconds
    return total


def starts_s(alive: Iterable[Span], steps: Sequence[Step], window: Span) -> list[float]:
    """Seconds from each start of the process within the window to its first step, if it took one."""
    firsts = [(life, next_after(steps, life.begin)) for life in alive if life.begin >= window.begin]
    return [first - life.begin for life, first in firsts if first is not None and first < life.end]


def seconds_without(steps: Iterable[Iterable[Taken]], window: Span) -> int:
    """Whole seconds of the window in which nobody's step ended."""
    busy = {int(s.at - window.begin) for taken in steps for s in taken if s.at >= window.begin}
    return sum(second not in busy for second in range(int(window.seconds)))


def next_after(steps: Sequence[Step], at: float) -> float | None:
    """When the first step after an instant had been taken."""
    place = bisect_left(steps, (at,))
    return steps[place].at if place < len(steps) else None


def lost_steps(taken: Iterable[Step], useful: Mapping[int, float]) -> float:
    """Steps whose work came to no use.

    Args:
        taken: all of one learner.
        useful: life -> steps of it that were merged, or still wait for it; none where it is missing.
    """
    counts = Counter(step.life for step in taken)
    return sum(max(0.0, num - useful.get(life, 0.0)) for life, num in counts.items())
