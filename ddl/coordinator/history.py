"""The log as it lies in the store: read, fold and extend it.

No listing is needed: records have dense numbers, so the newest one is found by exact keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from ddl.core.log import CHECKPOINT_EVERY, LogState
from ddl.errors import (
    ConfigError,
    IntegrityError,
    MissingObjectError,
    ObjectNotFoundError,
    ProtocolError,
    RefusedError,
    UnknownRunError,
)
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import LogRecord, Removal, RunRecord
from ddl.store.base import Store
from ddl.store.search import last_present

READERS: Final = 8
"""Threads that read a long log, if nobody asks for another number."""

_FEW: Final = 16
"""Fewer records are not worth the threads."""

_AHEAD: Final = 64
"""Records read before the first of them is used, at most."""


class Entry(NamedTuple):
    """A record and the digest of its bytes."""

    record: LogRecord
    digest: str


def parse_run_record(data: bytes, key: str) -> RunRecord:
    """Read `run.json`. Raises: ProtocolError; RefusedError if the run is being removed."""
    try:
        return wire.parse(data, RunRecord, what=key)
    except ProtocolError:
        removal = parse_removal(data)
        if removal is None:
            raise
    raise RefusedError(
        f"run {removal.removed_run!r} is being removed, by {removal.who}",
        hint=f"`ddl rm {removal.removed_run}` finishes it",
    )


def parse_removal(data: bytes) -> Removal | None:
    """The note that stands in place of a `run.json`; None if it is anything else."""
    try:
        return wire.parse(data, Removal, what="removal")
    except ProtocolError:
        return None


class History:
    """The log of one run. Every method may raise StoreError.

    Args:
        store: where the run lies.
        run: its name.
        readers: records read at once, each by a thread of its own; with 1 there are no threads.
    """

    def __init__(self, store: Store, run: str, *, readers: int = READERS) -> None:
        self._store = store
        self._readers = readers
        self._keys = ObjectKeys(run)

    # ---- reading ----------------------------------------------------------------------------

    def run_record(self) -> RunRecord | None:
        """Record 0, or None if there is no such run.

        Raises: ProtocolError; RefusedError if the run is being removed.
        """
        try:
            data = bytes(self._store.get(self._keys.run_record))
        except ObjectNotFoundError:
            return None
        return parse_run_record(data, self._keys.run_record)

    def existing_run(self) -> RunRecord:
        """Record 0. Raises: UnknownRunError; otherwise as `run_record`."""
        run = self.run_record()
        if run is None:
            raise UnknownRunError(
                f"there is no run {self._keys.run!r} in {self._store.url}",
                hint="`ddl runs --store URL` lists those that are there",
            )
        return run

    def check_not_removed(self, run: RunRecord) -> None:
        """See that record 0 still is `run`. Raises: RefusedError: somebody removed the run."""
        try:
            there = self.run_record()
        except RefusedError:  # the note stands in its place
            there = None
        if there is None or there.lineage != run.lineage:
            raise RefusedError(f"run {run.name!r} was removed from {self._store.url}")

    def read(self, seq: int) -> Entry | None:
        """Record `seq` >= 1, or None if it is not written yet. Raises: ProtocolError."""
        key = self._keys.commit(seq)
        try:
            data = bytes(self._store.get(key))
        except ObjectNotFoundError:
            return None
        return Entry(wire.parse(data, LogRecord, what=key), wire.digest(data))

    def entries(self, seqs: range) -> Iterator[Entry]:
        """These records, in this order, as far as they are there, several read at a time: one after
        the other, those since a checkpoint take half a minute where an answer takes 0.1 s.

        Raises: ProtocolError.
        """
        if len(seqs) < _FEW or self._readers == 1:
            yield from _up_to_none(map(self.read, seqs))
            return
        with ThreadPoolExecutor(self._readers, thread_name_prefix="history") as pool:
            batches = (seqs[start : start + _AHEAD] for start in range(0, len(seqs), _AHEAD))
            yield from _up_to_none(e for batch in batches for e in pool.map(self.read, batch))

    def genesis(self, run: RunRecord) -> LogState:
        """The state after record 0, which `run` is; chained to the very bytes that are stored."""
        return LogState.genesis(run, wire.digest(bytes(self._store.get(self._keys.run_record))))

    def newest_seq(self) -> int:
        """Number of the newest record; 0 if there is none. Looks at O(log n) keys."""
        return last_present(self._exists)

    def fold(self, run: RunRecord) -> LogState:
        """The state after the newest record; `run` is record 0.

        Raises: IntegrityError (a record does not follow the one before), ProtocolError.
        """
        newest = self.newest_seq()
        state = self._checkpoint_before(run, newest)
        self._advance(state, newest)
        self.follow(state)
        if state.seq < newest:
            raise IntegrityError(
                f"log record {state.seq + 1} of run {run.name!r} is missing, "
                f"but record {newest} is there",
                hint="Restore the object from a copy of the store",
            )
        return state

    def fold_to(self, run: RunRecord, global_version: int) -> LogState:
        """The state at the record that made `global_version`.

        Raises: ConfigError if the run has no such version; otherwise as `fold`.
        """
        newest = self.fold(run)
        if not 0 <= global_version <= newest.global_version:
            raise ConfigError(
                f"run {run.name!r} has no version {global_version}",
                hint=f"Its versions are 0 to {newest.global_version}",
            )
        if global_version == newest.global_version:
            return newest
        made_by = bisect_left(range(newest.seq), global_version, key=self._version_after)
        state = self._checkpoint_before(run, made_by)
        self._advance(state, made_by)
        return state

    @contextmanager
    def version_to_read(self, run: RunRecord, global_version: int) -> Iterator[None]:
        """While the objects of a global version are read: if one is missing that `[keep]` let go,
        this is what is said, with the versions that there are, instead of that it is lost.

        Raises: RefusedError in place of MissingObjectError.
        """
        try:
            yield
        except MissingObjectError as error:
            promises = self.fold(run).promises
            why = promises.why_gone(global_version)
            if not why:
                raise
            near = " and ".join(map(str, promises.nearest(global_version)))
            raise RefusedError(why, hint=f"The nearest that are kept: {near}") from error

    def follow(self, state: LogState) -> bool:
        """Apply the records after `state`, if any; whether there were some. Raises as `fold`."""
        before = state.seq
        while self._follow_one(state):
            pass
        return state.seq > before

    # ---- writing ----------------------------------------------------------------------------

    def write(self, record: LogRecord) -> Entry:
        """Put a record create-once; return what stands at its seq now: this one, or another's.

        After a StoreError nothing is known; the very same call then tells, whatever happened.
        Raises: StoreError, ProtocolError.
        """
        data = wire.canonical(record)
        if self._store.put(self._keys.commit(record.seq), data, mode="create"):
            return Entry(record, wire.digest(data))
        there = self.read(record.seq)
        if there is None:
            raise IntegrityError(
                f"{self._keys.commit(record.seq)} was taken a moment ago and is not there now",
                hint="Log records must never be deleted",
            )
        return there

    def write_checkpoint(self, seq: int, data: bytes) -> None:
        """Put the folded log as of `seq`: the canonical JSON of its `LogState`."""
        self._store.put(self._keys.checkpoint(seq), data)

    # ---- helpers ----------------------------------------------------------------------------

    def _exists(self, seq: int) -> bool:
        return self._store.head(self._keys.commit(seq)) is not None

    def _version_after(self, seq: int) -> int:
        """The newest global version once record `seq` was written."""
        entry = self.read(seq) if seq else None
        return entry.record.global_version if entry else 0

    def _checkpoint_before(self, run: RunRecord, newest: int) -> LogState:
        """The newest usable checkpoint up to `newest`, else the genesis."""
        for seq in range(newest - newest % CHECKPOINT_EVERY, 0, -CHECKPOINT_EVERY):
            state = self._checkpoint(run, seq)
            if state is not None:
                return state
        return self.genesis(run)

    def _checkpoint(self, run: RunRecord, seq: int) -> LogState | None:
        """A checkpoint that agrees with the record it was made at. One that is missing or does not
        is left aside: it is derived, and the records before it say the same."""
        key = self._keys.checkpoint(seq)
        entry = self.read(seq)
        try:
            state = wire.parse(bytes(self._store.get(key)), LogState, what=key)
        except (ObjectNotFoundError, ProtocolError):
            return None
        agrees = (
            entry is not None
            and (state.seq, state.digest) == (seq, entry.digest)
            and state.lineage == run.lineage
            and tuple(state.ledger) == entry.record.ledger
            and state.global_version == entry.record.global_version
        )
        return state if agrees else None

    def _advance(self, state: LogState, newest: int) -> None:
        """Apply the records up to `newest`, as far as they are there."""
        for entry in self.entries(range(state.seq + 1, newest + 1)):
            state.apply(entry.record, entry.digest)

    def _follow_one(self, state: LogState) -> bool:
        entry = self.read(state.seq + 1)
        if entry is None:
            return False
        state.apply(entry.record, entry.digest)
        return True


def _up_to_none(entries: Iterable[Entry | None]) -> Iterator[Entry]:
    for entry in entries:
        if entry is None:
            return
        yield entry
