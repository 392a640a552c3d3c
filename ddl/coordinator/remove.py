"""Deleting a run's objects, so that a crash on the way leaves nothing that looks like a run.

First `run.json` is replaced by a note (`Removal`): from then on nobody takes what is left for a run,
and the name stays taken. Then all else goes, then the note. Whoever finds the note can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ddl.coordinator.history import parse_removal, parse_run_record
from ddl.errors import ObjectNotFoundError, ProtocolError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Removal
from ddl.protocol.wire import canonical
from ddl.store.base import Store

_BATCH: Final = 500
"""Objects deleted between two calls of `tick`."""


class Remains(NamedTuple):
    """What lies under a run's name.

    `lineage` is empty if no `run.json` that can be read, nor a note in its place, is there.
    """

    lineage: str
    keys: tuple[str, ...]
    bytes: int


NOTHING: Final = Remains("", (), 0)


def find_remains(store: Store, run: str) -> Remains:
    """List all objects of a run, whole or not. Raises: StoreError."""
    objects = list(store.list(ObjectKeys(run).prefix))
    return Remains(
        lineage=_lineage(store, run),
        keys=tuple(info.key for info in objects),
        bytes=sum(info.bytes for info in objects),
    )


def remove_objects(
    store: Store,
    run: str,
    remains: Remains,
    *,
    who: str,
    now: float,
    tick: Callable[[str, int, int], None] = lambda *_: None,
) -> None:
    """Delete what was found, and what has come meanwhile. A process of the run that is alive still
    ends when it meets the note; what it puts after that may be left.

    Args:
        who: the person, for those who meet the note.
        now: seconds since the epoch, for the same.
        tick: told of progress.
    Raises: StoreError; the same call may then be made again.
    """
    keys = ObjectKeys(run)
    note = Removal(removed_run=run, lineage=remains.lineage, removed_at=now, who=who)
    store.put(keys.run_record, canonical(note))
    others = [key for key in remains.keys if key != keys.run_record]
    for start in range(0, len(others), _BATCH):
        store.delete(others[start : start + _BATCH])
        tick("objects", min(start + _BATCH, len(others)), len(others))
    # what a process has put meanwhile that had not seen the note yet
    store.delete(info.key for info in store.list(keys.prefix) if info.key != keys.run_record)
    store.delete([keys.lease_probe, keys.run_record])


def _lineage(store: Store, run: str) -> str:
    key = ObjectKeys(run).run_record
    try:
        data = bytes(store.get(key))
    except ObjectNotFoundError:
        return ""
    removal = parse_removal(data)
    if removal is not None:
        return removal.lineage
    try:
        return parse_run_record(data, key).lineage
    except ProtocolError:  # whatever it is, it is to be removed
        return ""
