"""Contributions that nobody announces any more: found by listing the store.

When Redis has lost its keys, living learners announce their work again. That of the dead would be
lost, were it not in the store, each payload with its own announcement in its header.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddl.codec.digest import sha256
from ddl.codec.frame import Buffer, read_frame
from ddl.core.selection import payload_key
from ddl.errors import IntegrityError, ObjectNotFoundError, ProtocolError
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys, handin_field
from ddl.protocol.records import Handin, HandinId, ObjectRef
from ddl.store.base import Store


def find_contributions(store: Store, run: str, receipted: Mapping[str, int]) -> list[Handin]:
    """Announcements of the payloads that would be next to get a receipt.

    A payload that cannot be read, or is not the one that its key names, is left out: of a damaged
    one only its learner can say what it was.

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
            try:
                handin = announcement(info.key, store.get(info.key))
            except (ObjectNotFoundError, IntegrityError, ProtocolError):
                continue
            if info.key == payload_key(handin, keys):
                found.append(handin)
    return found


def announcement(key: str, data: Buffer) -> Handin:
    """The announcement that a contribution's payload repeats, naming that payload.

    Raises: IntegrityError, ProtocolError: it cannot be read.
    """
    handin = wire.parse(read_frame(data).metadata, Handin, what=key)
    ref = ObjectRef(key=key, bytes=len(data), sha256=sha256(data))
    return msgspec.structs.replace(handin, payload=ref)
