"""Time, injected into every shell so that tests and the simulator can own it.

Rules never read a clock: `now` is their argument. Instants that several processes compare are on
Redis server time (`ServerClock`); waits inside one process use its monotonic clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a shell may ask about time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps; its zero has no meaning."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch on this machine; for people and file names only."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ServerClock:
    """Redis server time, carried between two answers by the local monotonic clock.

    `observe` is called with every answer that holds the server's `TIME`; `now` then advances with
    the monotonic clock, so a change of this machine's wall clock has no effect.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s: float | None = None

    @property
    def known(self) -> bool:
        """Whether the server has been heard at least once."""
        return self._offset_s is not None

    def observe(self, server_now: float, *, at: float | None = None) -> float:
        """Take the server's time; return by how many seconds it jumped against our estimate.

        `at`: the monotonic instant at which the answer came, if not now.
        """
        offset_s = server_now - (self._clock.monotonic() if at is None else at)
        jump_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
        self._offset_s = offset_s
        return jump_s

    def now(self) -> float:
        """The estimated server time, in seconds since the epoch."""
        if self._offset_s is None:
            raise RuntimeError("ServerClock.now() before the first observe()")
        return self._clock.monotonic() + self._offset_s
