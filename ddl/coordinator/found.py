"""Contributions that nobody announces any more: found by listing the store.

When Redis has lost its keys, living learners announce their work again. That of the dead would be
lost, were it not in the store, each payload with its own announcement in its header.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddl.codec.digest import sha256
from ddl.codec.frame import read_frame
from ddl.errors import IntegrityError, ObjectNotFoundError, ProtocolError
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys, handin_field
from ddl.protocol.records import Handin, HandinId, ObjectRef
from ddl.store.base import Store


def find_contributions(store: Store, run: str, receipted: Mapping[str, int]) -> list[Handin]:
    """Announcements of the payloads that would be next to get a receipt.

    A payload that cannot be read is left out: without an announcement it is nobody's.

    Args:
        receipted: seq of the last receipt, by `keys.handin_field`.
    Raises: StoreError.
    """
    keys = ObjectKeys(run)
    found = []
    for info in store.list(keys.contributions):
        parsed = keys.parse_contribution(info.key)
        if parsed is None:
            continue
        id_ = HandinId(*parsed)
        field = handin_field(id_.learner, id_.incarnation, id_.fragment)
        if id_.seq == receipted.get(field, 0) + 1:
            handin = _announcement(store, info.key)
            if handin is not None and handin.id == id_:
                found.append(handin)
    return found


def _announcement(store: Store, key: str) -> Handin | None:
    try:
        data = store.get(key)
        handin = wire.parse(read_frame(data).metadata, Handin, what=key)
    except (ObjectNotFoundError, IntegrityError, ProtocolError):
        return None
    ref = ObjectRef(key=key, bytes=len(data), sha256=sha256(data))
    return msgspec.structs.replace(handin, payload=ref)
