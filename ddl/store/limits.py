"""Caps on bandwidth: one token bucket a direction, shared by all threads of a process.

The cap acts through the progress calls of a transfer: they block until the bytes just moved are
paid for, so the sender slows down and TCP tells the other side.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ddl.clock import Clock, SystemClock
from ddl.errors import ConfigError, StoreUnavailableError
from ddl.store.base import Body, Mode, ObjectInfo, Progress, Store
from ddl.store.hashed import Hashed, get_hashed

MBIT_MIN: Final = 0.5
"""A lower cap would run into the time limits of transfers (`ddl.store.retry`)."""

_BURST_S: Final = 0.25
"""How much unused time may be saved up, so that small objects pass without a wait."""


class TokenBucket:
    """Lets `mbit` million bits per second pass, however many threads ask."""

    def __init__(self, mbit: float, *, clock: Clock | None = None) -> None:
        """Raises: ConfigError for a cap below `MBIT_MIN`."""
        if not MBIT_MIN <= mbit < float("inf"):
            raise ConfigError(
                f"bandwidth cap of {mbit:g} Mbit/s is not usable",
                hint=f"Use {MBIT_MIN:g} or more, or leave the cap out",
            )
        self._bytes_per_s = mbit * 1e6 / 8
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._paid_until = self._clock.monotonic() - _BURST_S
        self._closed = threading.Event()

    def take(self, num_bytes: int) -> None:
        """Wait until `num_bytes` that were just moved are paid for; first come, first served.

        Moved-again bytes (negative numbers) are free of charge but not given back: they did cross
        the wire. Raises: StoreUnavailableError after `close`.
        """
        with self._lock:
            now = self._clock.monotonic()
            start = max(self._paid_until, now - _BURST_S)
            self._paid_until = start + max(0, num_bytes) / self._bytes_per_s
            wait_s = self._paid_until - now
        if self._closed.wait(max(0.0, wait_s)):
            raise StoreUnavailableError("the store was closed during a transfer")

    def close(self) -> None:
        """End all waits."""
        self._closed.set()


class LimitedStore:
    """A store whose payloads pass through one bucket up and one down (contract: `Store`)."""

    def __init__(self, store: Store, *, up: TokenBucket | None, down: TokenBucket | None) -> None:
        self.url = store.url
        self._store = store
        self._up = up
        self._down = down

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        return self._store.put(key, body, mode=mode, progress=_paying(self._up, progress))

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        return self._store.get(key, progress=_paying(self._down, progress))

    def get_hashed(self, key: str, *, progress: Progress | None = None) -> Hashed:
        return get_hashed(self._store, key, progress=_paying(self._down, progress))

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        self._store.get_to_file(key, path, progress=_paying(self._down, progress))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._store.get_range(key, start, length)
        if self._down:
            self._down.take(len(data))
        return data

    def head(self, key: str) -> ObjectInfo | None:
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after=start_after)

    def folders(self) -> Iterator[str]:
        return self._store.folders()

    def delete(self, keys: Iterable[str]) -> None:
        self._store.delete(keys)

    def sweep_uploads(self, *, older_than_s: float) -> int:
        return self._store.sweep_uploads(older_than_s=older_than_s)

    def close(self) -> None:
        for bucket in (self._up, self._down):
            if bucket:
                bucket.close()
        self._store.close()


def _paying(bucket: TokenBucket | None, progress: Progress | None) -> Progress | None:
    """`progress`, called once the bytes are paid for."""
    if bucket is None:
        return progress

    def moved(num_bytes: int) -> None:
        bucket.take(num_bytes)
        if progress:
            progress(num_bytes)

    return moved
