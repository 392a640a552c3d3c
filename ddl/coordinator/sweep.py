"""Removing objects that nobody needs any more; what these are is `ddl.core.retire`'s to say.

Safe at any time, beside a running coordinator and beside other sweepers: an object is removed only
when the log says that nothing will ask for it, and removing it twice does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ddl.coordinator.history import History
from ddl.core.retire import Horizon, Leftovers, Retirement, horizon
from ddl.errors import IntegrityError, ObjectNotFoundError, ProtocolError
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import HandinId, Record, RunRecord
from ddl.protocol.wire import SCHEMA
from ddl.store.base import Store

BATCH: Final = 500
"""Objects removed by one call of the store."""

STALE_UPLOAD_S: Final = 24 * 3600.0
"""Unfinished uploads that were begun longer ago belong to nobody any more."""


class Swept(Record, frozen=True, kw_only=True):
    """What `ddl gc --json` prints: what was removed, or with `dry_run` would be.

    `num_published` counts objects of versions, `num_leftovers` payloads that were put for a version
    and never committed, `num_uploads` writes that were begun and never finished (not looked for in a
    dry run). `bytes` is the size of all but the last.
    """

    schema: int = SCHEMA
    run: str
    global_version: int
    dry_run: bool
    num_published: int
    num_leftovers: int
    num_contributions: int
    num_uploads: int
    bytes: int


def sweep(
    store: Store,
    run: RunRecord,
    horizon: Horizon,
    *,
    afresh: bool = False,
    dry_run: bool = False,
    check: Callable[[], None] = lambda: None,
) -> Swept:
    """Remove all that is due at `horizon`. What an earlier sweep has judged is not judged again.

    Args:
        run: record 0.
        afresh: judge everything from the beginning of the log, since the settings may have let go
            what they kept for good.
        check: called now and then; what it raises breaks the sweep off, to no harm.
    Raises: StoreError: what is left is removed by the next sweep; RefusedError: the run was removed;
        IntegrityError: a record is missing; ProtocolError.
    """
    return _Sweep(store, run, horizon, check).run(afresh=afresh, dry_run=dry_run)


def collect(
    store: Store, run_name: str, *, held: frozenset[tuple[int, int]], dry_run: bool = False
) -> Swept:
    """Sweep a run as it lies in the store, judging everything anew.

    Args:
        held: (fragment, version) of what living learners hold.
    Raises: ConfigError: there is no such run; RefusedError, IntegrityError, ProtocolError, StoreError.
    """
    history = History(store, run_name)
    run = history.existing_run()
    log = history.fold(run)
    return sweep(store, run, horizon(log, held), afresh=True, dry_run=dry_run)


class _Sweep:
    def __init__(
        self, store: Store, run: RunRecord, horizon: Horizon, check: Callable[[], None]
    ) -> None:
        self._store = store
        self._run = run
        self._horizon = horizon
        self._check = check
        self._keys = ObjectKeys(run.name)

    def run(self, *, afresh: bool, dry_run: bool) -> Swept:
        retirement = (None if afresh else self._saved()) or Retirement.genesis(self._run)
        places = self._follow(retirement)
        published = list(retirement.due(self._horizon))
        if afresh:  # most of it was removed long ago
            there = {
                info.key for prefix in self._keys.versions for info in self._store.list(prefix)
            }
            published = [(key, size) for key, size in published if key in there]
        leftovers = [found for place in places for found in self._rivals(place)]
        spent = list(self._spent(retirement))
        due = [*published, *leftovers, *spent]
        num_uploads = 0
        if not dry_run:
            self._remove([key for key, _ in due])
            self._store.put(self._keys.sweep, wire.canonical(retirement))
            num_uploads = self._store.sweep_uploads(older_than_s=STALE_UPLOAD_S)
        return Swept(
            run=self._run.name,
            global_version=self._horizon.version,
            dry_run=dry_run,
            num_published=len(published),
            num_leftovers=len(leftovers),
            num_contributions=len(spent),
            num_uploads=num_uploads,
            bytes=sum(size for _, size in due),
        )

    def _saved(self) -> Retirement | None:
        """Where the last sweep left off; None if that is not known, or of no use."""
        try:
            data = bytes(self._store.get(self._keys.sweep))
            saved = wire.parse(data, Retirement, what=self._keys.sweep)
        except (ObjectNotFoundError, ProtocolError):
            return None
        usable = saved.lineage == self._run.lineage and saved.seq <= self._horizon.seq
        return saved if usable else None

    def _follow(self, retirement: Retirement) -> list[Leftovers]:
        history = History(self._store, self._run.name)
        places: list[Leftovers] = []
        while retirement.seq < self._horizon.seq:
            self._check()
            entry = history.read(retirement.seq + 1)
            if entry is None:
                history.check_not_removed(self._run)
                key = self._keys.commit(retirement.seq + 1)
                raise IntegrityError(
                    f"{key} is missing, but record {self._horizon.seq} is there",
                    hint="Restore it from a copy of the store",
                )
            places += retirement.follow(entry.record)
        return places

    def _rivals(self, place: Leftovers) -> Iterator[tuple[str, int]]:
        for prefix in place.prefixes:
            for info in self._store.list(prefix):
                if info.key not in place.keys:
                    yield info.key, info.bytes

    def _spent(self, retirement: Retirement) -> Iterator[tuple[str, int]]:
        present: set[str] = set()
        for info in self._store.list(self._keys.contributions):
            parsed = self._keys.parse_contribution(info.key)
            if parsed is None:
                continue
            if retirement.is_spent(info.key, HandinId(*parsed), self._horizon):
                yield info.key, info.bytes
            else:
                present.add(info.key)
        retirement.forget_contributions(present, self._horizon)

    def _remove(self, keys: list[str]) -> None:
        for start in range(0, len(keys), BATCH):
            self._check()
            self._store.delete(keys[start : start + BATCH])
