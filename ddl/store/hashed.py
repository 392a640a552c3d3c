"""Objects with their SHA-256, which is there with the last byte where a store can hash on the way."""

from __future__ import annotations

import hashlib
from typing import NamedTuple, Protocol, runtime_checkable

from ddl.errors import IntegrityError
from ddl.protocol.records import ObjectRef
from ddl.store.base import Progress, Store


class Hashed(NamedTuple):
    """An object as it was read.

    Attributes:
        sha256: 64 hex digits.
    """

    data: bytearray
    sha256: str


@runtime_checkable
class HashingStore(Protocol):
    """A store that reads in parts, and hashes those that have come while others are under way."""

    def get_hashed(self, key: str, *, progress: Progress | None = None) -> Hashed:
        """As `Store.get`."""
        ...


def get_hashed(store: Store, key: str, *, progress: Progress | None = None) -> Hashed:
    """Read one object whole, and its digest. Raises: ObjectNotFoundError, StoreError."""
    if isinstance(store, HashingStore):
        return store.get_hashed(key, progress=progress)
    data = store.get(key, progress=progress)
    return Hashed(data, hashlib.sha256(data).hexdigest())


def get_checked(store: Store, ref: ObjectRef, *, progress: Progress | None = None) -> bytearray:
    """Read an object that the log names.

    Raises: ObjectNotFoundError, StoreError; IntegrityError: its bytes are not those of the log.
    """
    data, found = get_hashed(store, ref.key, progress=progress)
    if (len(data), found) != (ref.bytes, ref.sha256):
        raise IntegrityError(
            f"{ref.key}: {len(data)} bytes with digest {found[:16]}, the log says {ref.bytes} bytes "
            f"with digest {ref.sha256[:16]}",
            hint="Restore it from a copy of the store",
        )
    return data
