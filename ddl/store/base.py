"""What `ddl` asks of an object store.

Keys come from `ddl.protocol.keys` and are relative to the store's URL. Objects are immutable: a key
is written once, or again with the very same bytes. Every adapter maps all errors of its client
library to `ddl.errors.StoreError` and passes `tests/contract/test_store.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

Mode = Literal["plain", "create"]
Body = bytes | bytearray | memoryview | Path
"""What an object is written from: bytes in memory, or a file on local disk."""

Progress = Callable[[int], None]
"""Called with the number of bytes moved since the last call; may come from any thread.

Negative when moved bytes were lost and are moved again; the calls of a successful transfer add up
to the size of the object. May block (this is how bandwidth is capped) and may raise.
"""

_KEY = re.compile(r"(?!\.)[^/\x00-\x1f\x7f\\]+(?:/(?!\.)[^/\x00-\x1f\x7f\\]+)*")
_KEY_BYTES_MAX = 1024


class ObjectInfo(NamedTuple):
    """An object in a listing."""

    key: str
    bytes: int
    modified_at: float
    """Seconds since the epoch by the store's own clock: for people, never for a decision."""


def check_key(key: str) -> str:
    """Return `key` if every store can hold it, without a way out of the store's own prefix.

    Refused: absolute keys, empty parts, parts that start with a dot (so "." and ".." too; stores
    keep their own scratch files there), backslashes, control characters, more than 1,024 bytes.
    Raises: ValueError. Keys are built by `ddl.protocol.keys`, so a bad one is a mistake of ours.
    """
    if not _KEY.fullmatch(key) or len(key.encode()) > _KEY_BYTES_MAX:
        raise ValueError(f"not an object key: {key!r}")
    return key


class Store(Protocol):
    """An object store; safe to use from several threads at once."""

    url: str
    """The address it was opened with; holds no secret."""

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        """Write one object whole: readers see all of it or nothing, and it survives a crash.

        Contract: with mode "plain" MUST return True. With mode "create" MUST return False and
        change nothing if the key exists, and of several writers at once exactly one MUST get True.
        A writer whose reply was lost MUST learn its true result, by reading back; so writers
        that race for a key must differ in what they write.
        Raises: StoreDeniedError, StoreFullError, StoreUnavailableError.
        """
        ...

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        """Read one object whole. Raises: ObjectNotFoundError, StoreError."""
        ...

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        """Read one object into `path`, which appears only when it is whole.

        Raises: ObjectNotFoundError, StoreError.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from `start`; fewer at the end of the object, none beyond it.

        Raises: ObjectNotFoundError, StoreError.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Size of an object, or None if it is not there. Raises: StoreError."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` (a string, not a folder), page by page.

        Keys in one folder come in ascending order. Across folders servers differ (SeaweedFS goes
        folder by folder), so `start_after` is only for listings of a single folder: keys up to and
        including it are left out.
        Objects still being written MUST NOT appear. Raises: StoreError.
        """
        ...

    def folders(self) -> Iterator[str]:
        """First parts of the keys that have more than one, each once, in no given order.

        So the runs of a store are found without listing all their objects. A folder that has been
        emptied may still be named (SeaweedFS keeps it for a while). Raises: StoreError.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; a key that is not there is no error. Raises: StoreError."""
        ...

    def sweep_uploads(self, *, older_than_s: float) -> int:
        """Remove what interrupted writes left behind and no listing shows; return their number.

        Only leftovers untouched for `older_than_s` by the store's own clock: younger ones may
        belong to a write under way. Raises: StoreError.
        """
        ...

    def close(self) -> None:
        """Free connections and end waits. Calls under way fail with StoreUnavailableError."""
        ...
