"""Bandwidth caps."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ddl.errors import StoreUnavailableError
from ddl.store.limits import LimitedStore, TokenBucket
from ddl.store.local import LocalStore

MIB = 1024 * 1024


class StandingClock:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 1000.0

    def wall(self) -> float:
        return 0.0


def test_threads_share_one_cap() -> None:
    """Four threads that move 1 MB each at 80 Mbit/s need 0.4 s together, less the burst."""
    bucket = TokenBucket(80)
    threads = [threading.Thread(target=bucket.take, args=(1_000_000,)) for _ in range(4)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begin >= 0.4 - 0.25


def test_a_burst_passes_without_a_wait() -> None:
    """A quarter of a second's worth passes at once; with the clock standing, more never would."""
    bucket = TokenBucket(8, clock=StandingClock())  # 1 MB/s
    for _ in range(10):
        bucket.take(25_000)
    waiting = threading.Thread(target=bucket.take, args=(10_000_000,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()


def test_bytes_moved_again_are_not_given_back() -> None:
    """A negative number neither waits nor earns credit."""
    bucket = TokenBucket(80)
    bucket.take(500_000)
    begin = time.monotonic()
    bucket.take(-10_000_000)
    bucket.take(500_000)
    bucket.take(4_000_000)
    assert time.monotonic() - begin >= 0.2


def test_a_capped_store(tmp_path: Path) -> None:
    """Up and down are capped apart, progress still adds up, and small records pass at once."""
    store = LimitedStore(LocalStore(tmp_path / "s"), up=TokenBucket(40), down=TokenBucket(20))
    moved: list[int] = []
    begin = time.monotonic()
    store.put("run/x", bytes(3 * MIB), progress=moved.append)
    up_s = time.monotonic() - begin
    assert up_s >= 3 * MIB * 8 / 40e6 - 0.25
    begin = time.monotonic()
    assert len(store.get("run/x", progress=moved.append)) == 3 * MIB
    assert time.monotonic() - begin >= 3 * MIB * 8 / 20e6 - 0.25
    assert sum(moved) == 6 * MIB
    store.get_to_file("run/x", tmp_path / "x")
    assert store.get_range("run/x", 0, 10) == bytes(10)
    found = store.head("run/x")
    assert found is not None
    assert [found] == list(store.list("run/"))
    assert store.sweep_uploads(older_than_s=1) == 0
    store.delete(["run/x"])
    assert list(store.list("")) == []


def test_close_ends_the_wait_of_a_capped_transfer(tmp_path: Path) -> None:
    """A transfer that would take minutes ends when the store is closed."""
    store = LimitedStore(LocalStore(tmp_path), up=TokenBucket(0.5), down=None)
    begun = threading.Event()
    failures: list[Exception] = []

    def put() -> None:
        try:
            store.put("run/x", bytes(20 * MIB), progress=lambda _: begun.set())
        except StoreUnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    store.close()
    thread.join(20)
    assert not thread.is_alive()
    assert len(failures) == 1
    with pytest.raises(StoreUnavailableError):
        store.put("run/y", b"y")
