"""What learners and people say in Redis, read by a thread of its own and turned into events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ddl.clock import Clock
from ddl.core import events as e
from ddl.errors import RegistryError
from ddl.protocol.records import Handin, LearnerRecord
from ddl.protocol.units import UnitsDone
from ddl.registry.base import CoordinatorRegistry, Poll

JUMP_S: Final = 2.0
"""A change of the server's clock that is no ordinary drift."""


LEAST_GAP_S: Final = 0.02
"""Shortest time between two readings, however fast the hand-ins come."""

GAP_RATIO: Final = 4.0
"""A reading is followed by a pause so many times as long: of many learners, many hand in meanwhile,
and one reading finds them all."""


class Polled(NamedTuple):
    """Redis was read; the instants are of this machine's monotonic clock."""

    poll: Poll
    asked_at: float
    heard_at: float

    def is_jump(self, seconds: float) -> bool:
        """Whether the server's clock has jumped, if our estimate of it was off by so much: no slow
        answer explains it."""
        return abs(seconds) > JUMP_S + (self.heard_at - self.asked_at)

    def gap_s(self, beat_s: float) -> float:
        """Seconds until the next reading, whatever arrives."""
        return min(beat_s, max(LEAST_GAP_S, GAP_RATIO * (self.heard_at - self.asked_at)))


class Unreachable(NamedTuple):
    """Redis could not be read."""

    error: RegistryError


class Watcher:
    """Reads everything after each wake-up, and at least every beat; a wake-up is only a hint.

    Args:
        put: takes each reading, in the watcher's thread.
        beat_s: longest time between two readings; may be changed at any time.
    """

    def __init__(
        self,
        registry: CoordinatorRegistry,
        *,
        beat_s: float,
        put: Callable[[Polled | Unreachable], None],
        clock: Clock,
    ) -> None:
        self.beat_s = beat_s
        self._registry = registry
        self._put = put
        self._clock = clock
        self._closing = threading.Event()

    def watch(self) -> None:
        """Read until closed; the body of a thread."""
        while not self._closing.is_set():
            try:
                asked_at = self._clock.monotonic()
                poll = self._registry.poll()
                polled = Polled(poll, asked_at, heard_at=self._clock.monotonic())
                self._put(polled)
                gap_s = polled.gap_s(self.beat_s)
                self._closing.wait(gap_s)
                self._registry.wait_arrivals(self.beat_s - gap_s)
            except RegistryError as error:
                self._put(Unreachable(error))
                self._closing.wait(self.beat_s)

    def close(self) -> None:
        """Let `watch` return, within a beat."""
        self._closing.set()


class News:
    """Tells what is new in a reading against the one before it."""

    def __init__(self) -> None:
        self._learners: dict[str, tuple[LearnerRecord, float]] = {}
        self._handins: dict[str, Handin] = {}
        self._requests: frozenset[str] = frozenset()
        self._units: dict[str, UnitsDone] = {}

    def events(self, poll: Poll) -> Iterator[e.Event]:
        """Events for all that has changed; beats first, so that who announces is known."""
        learners = {
            id_: (record, poll.beats[id_])
            for id_, record in poll.learners.items()
            if id_ in poll.beats
        }
        for id_, heard in learners.items():
            if self._learners.get(id_) != heard:
                yield e.Beat(*heard)
        for field, handin in poll.handins.items():
            if self._handins.get(field) != handin:
                yield e.Announced(handin)
        for request in poll.requests:
            if request.id not in self._requests:
                yield e.Requested(request)
        if poll.units != self._units:
            yield e.UnitsTold(poll.units)
        self._learners, self._handins, self._units = learners, poll.handins, poll.units
        self._requests = frozenset(request.id for request in poll.requests)
