"""Whether the objects that merges start from, or a rollback goes back to, are there."""

from __future__ import annotations

from ddl.coordinator.history import History
from ddl.core.events import VersionFound
from ddl.core.log import LogState
from ddl.errors import ConfigError, IntegrityError
from ddl.protocol.records import ObjectRef
from ddl.store.base import Store


def check_objects(store: Store, log: LogState) -> None:
    """See that all that the next merges start from is there and has its size.

    Raises: IntegrityError naming the object; StoreError.
    """
    for head in log.fragments:
        for ref in (head.published, head.outer):
            if ref is not None:
                _check_object(store, ref)


def find_version(store: Store, history: History, version: int) -> VersionFound:
    """A global version to go back to: where its objects lie, if all of them are still there.

    Raises: StoreError.
    """
    try:
        log = history.fold_to(history.existing_run(), version)
        check_objects(store, log)
    except (ConfigError, IntegrityError) as error:
        return VersionFound(version, problem=error.args[0])
    return VersionFound(version, tuple(log.fragments), log.progress)


def _check_object(store: Store, ref: ObjectRef) -> None:
    info = store.head(ref.key)
    if info is None or info.bytes != ref.bytes:
        found = "is missing" if info is None else f"has {info.bytes} bytes"
        raise IntegrityError(
            f"{ref.key} {found} in the store; the log says {ref.bytes} bytes",
            hint="Restore it from a copy of the store; without it the run cannot go on",
        )
