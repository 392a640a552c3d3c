"""Trying again: how long to wait, when to give up, and how everybody is told to stop.

There is exactly one layer of retries, this one; client libraries have theirs switched off. Waits
grow with full jitter (uniform between 0 and a doubling bound), so that learners that were turned
away together do not come back together. Two limits end an operation:

* patience: the waits since the last progress add up to `patience_s`;
* a time limit for the whole, so that a link that only drips cannot hold a transfer for ever.

Bytes received are progress. Bytes sent are not, until the store has said that it has them.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ddl.clock import Clock, SystemClock
from ddl.errors import StoreError, StoreUnavailableError


class Stop:
    """An event that a wait can sleep on, and that also sets every event made under it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._children: weakref.WeakSet[Stop] = weakref.WeakSet()

    def child(self) -> Stop:
        """A `Stop` of its own that is set when this one is, but not the other way round."""
        child = Stop()
        with self._lock:
            self._children.add(child)
            if self._event.is_set():
                child.set()
        return child

    def set(self) -> None:
        """Stop this and everything under it; safe to call again."""
        with self._lock:
            self._event.set()
            for child in self._children:
                child.set()

    def check(self) -> None:
        """Raises: StoreUnavailableError once stopped."""
        if self._event.is_set():
            raise StoreUnavailableError("the store was closed, or the transfer was given up")

    def wait(self, delay_s: float) -> None:
        """Sleep. Raises: StoreUnavailableError at once when stopped."""
        self._event.wait(delay_s)
        self.check()


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How patient to be, and the collaborators that tests replace."""

    patience_s: float = 60.0
    """Give up when waits without progress add up to more than this."""
    first_wait_s: float = 0.2
    """Bound of the first wait; doubles from wait to wait."""
    wait_max_s: float = 10.0
    bytes_per_s_min: float = 32 * 1024
    """A transfer may take this long for its bytes, on top of `patience_s`."""
    clock: Clock = field(default_factory=SystemClock)
    random: Callable[[], float] = random.random
    pause: Callable[[Stop, float], None] = Stop.wait

    def limit_s(self, num_bytes: int) -> float:
        """The longest that one transfer of `num_bytes` may take in all."""
        return self.patience_s + num_bytes / self.bytes_per_s_min


class Verdict(NamedTuple):
    """What one failed attempt means."""

    kind: type[StoreError]
    message: str
    hint: str = ""
    tries: float = float("inf")
    """How many attempts this failure is worth in all; 1 for a failure that will not go away."""
    retry_after_s: float = 0.0
    """The store asked for a wait of at least this."""
    renew: bool = False
    """The credentials or the connection should be set up anew before the next attempt."""


HICCUP_TRIES: Final = 2
"""Failures in a row of one request that are nothing to speak of, if they pass quickly."""

HICCUP_S: Final = 3.0
"""And how quickly: who waits for longer without a word wonders what for."""


class Retried(NamedTuple):
    """A wait that is about to begin."""

    what: str
    attempt: int
    wait_s: float
    error: str
    hint: str = ""
    silent_s: float = 0.0
    """Since bytes were received last, or since the beginning."""

    @property
    def is_hiccup(self) -> bool:
        """Whether it is nothing to speak of yet."""
        return self.attempt <= HICCUP_TRIES and self.silent_s < HICCUP_S

    def __str__(self) -> str:
        """What fails, why, and what to do, in one line."""
        return f"cannot {self.what}: {self.error}{self.hint and f' ({self.hint})'}"


OnRetry = Callable[[Retried], None]


class Attempts:
    """The attempts of one operation. Belongs to the one thread that carries it out."""

    def __init__(
        self, what: str, policy: RetryPolicy, stop: Stop, on_retry: OnRetry | None, num_bytes: int
    ) -> None:
        """`num_bytes` is what will be moved at most, for the time limit."""
        self.number = 1
        """Of the present attempt; above 1, an earlier one may have had its effect."""
        self._what = what
        self._policy = policy
        self._stop = stop
        self._on_retry = on_retry
        self._started = self._heard_at = policy.clock.monotonic()
        self._limit_s = policy.limit_s(num_bytes)
        self._streak = 0
        self._waited_s = 0.0

    def check(self) -> None:
        """May go on? Raises: StoreUnavailableError if stopped or out of time."""
        self._stop.check()
        if self._elapsed_s() > self._limit_s:
            raise StoreUnavailableError(
                f"cannot {self._what}: not finished after {self._limit_s:.0f} s",
                hint="The link is too slow, or a bandwidth cap is too low, for objects of this size",
            )

    def received(self) -> None:
        """Some bytes have come. Raises: as `check`."""
        self.check()
        self._heard_at = self._policy.clock.monotonic()
        self._streak = 0
        self._waited_s = 0.0

    def failed(self, verdict: Verdict, cause: Exception) -> None:
        """Wait for the next attempt. Raises: the verdict's error if there must be none."""
        policy = self._policy
        bound_s = min(policy.wait_max_s, policy.first_wait_s * 2 ** min(self._streak, 32))
        wait_s = verdict.retry_after_s + bound_s * policy.random()
        if (
            self.number >= verdict.tries
            or self._waited_s + wait_s > policy.patience_s
            or self._elapsed_s() + wait_s > self._limit_s
        ):
            tries = f" ({self.number} tries in {self._elapsed_s():.0f} s)"
            message = f"cannot {self._what}: {verdict.message}{tries if self.number > 1 else ''}"
            raise verdict.kind(message, hint=verdict.hint) from cause
        if self._on_retry:
            silent_s = policy.clock.monotonic() - self._heard_at
            self._on_retry(
                Retried(self._what, self.number, wait_s, verdict.message, verdict.hint, silent_s)
            )
        policy.pause(self._stop, wait_s)
        self.number += 1
        self._streak += 1
        self._waited_s += wait_s

    def _elapsed_s(self) -> float:
        return self._policy.clock.monotonic() - self._started
