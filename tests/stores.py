"""Stores that misbehave where a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ddl.errors import StoreUnavailableError
from ddl.store.base import Body, Mode, ObjectInfo, Progress, Store


class HookedStore:
    """Another store, with a call before and after each put.

    A hook is given the key and may raise; what `before` raises keeps the object out of the store,
    what `after` raises comes when it is in.
    """

    def __init__(
        self,
        store: Store,
        *,
        before: Callable[[str], None] = lambda _: None,
        after: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url = store.url
        self._store = store
        self.before = before
        self.after = after

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        self.before(key)
        done = self._store.put(key, body, mode=mode, progress=progress)
        self.after(key)
        return done

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        return self._store.get(key, progress=progress)

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        self._store.get_to_file(key, path, progress=progress)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._store.get_range(key, start, length)

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
        self._store.close()


class CarelessStore(HookedStore):
    """One that ignores the condition of a create-once put, as some S3 servers do."""

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        del mode
        return super().put(key, body, mode="plain", progress=progress)


class SilentStore(HookedStore):
    """One that gives no answer to any read of an object."""

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        del progress
        raise StoreUnavailableError(f"no answer for {key}")


class StuckStore(HookedStore):
    """One that answers no read of an object before it is told to."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.may_answer = threading.Event()

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        assert self.may_answer.wait(60)
        return super().get(key, progress=progress)
