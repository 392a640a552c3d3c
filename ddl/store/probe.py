"""Does a store really create an object once? Some ignore the condition and say yes to everyone."""

from __future__ import annotations

import secrets

from ddl.protocol import keys
from ddl.store.base import Store


def probe_create_once(store: Store) -> bool:
    """Whether the second of two create-once puts under one key is turned away.

    Writes and deletes one small object under a key of its own. A log needs this: without it two
    coordinators could both believe that they had written the same record (design 5).
    Raises: StoreError.
    """
    key = keys.probe(secrets.token_hex(8))
    # outside of the try: a store that takes nothing has nothing to remove
    first = store.put(key, b"first", mode="create")
    try:
        second = store.put(key, b"second", mode="create")
        return first and not second and store.get(key) == b"first"
    finally:
        store.delete([key])
