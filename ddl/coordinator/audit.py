"""Reading a whole log anew, record by record: does each one follow the one before?

What is learned on the way is what the other checks go by: which objects the records name, until
which version they are needed, and what was merged from what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from ddl.coordinator.history import Entry, History
from ddl.core.log import FragmentHead, LogState
from ddl.errors import IntegrityError, ObjectNotFoundError, ProtocolError
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    FragmentStep,
    Head,
    LogRecord,
    ObjectRef,
    Receipt,
    Record,
    RunRecord,
)
from ddl.store.base import Store

READERS: Final = 8
"""Objects read at once."""

Tick = Callable[[str, int, int], None]
"""Told how far a check is: what is being looked at, how many of how many are done."""

Report = Callable[[str, str], None]
"""Told of every difference: where it is (an object's key), and a sentence."""


class Difference(Record, frozen=True, kw_only=True):
    """Something that is not as the log, or a rule about it, says."""

    where: str
    what: str


@dataclass(slots=True)
class Named:
    """An object that records name, for the global versions `first` to `last` (None: to the end)."""

    ref: ObjectRef
    first: int
    last: int | None = None


class Merge(NamedTuple):
    """One step of one fragment, with all that it was made from.

    `before` is the fragment it started from. `receipts` are those of what was merged, by id.
    """

    version: int
    seq: int
    kernel: str
    step: FragmentStep
    before: FragmentHead
    receipts: tuple[Receipt, ...]
    lr: float
    momentum: float


@dataclass(kw_only=True)
class Audit:
    """What a log says, up to its end or to the first record that does not fit.

    Attributes:
        log: the folded records.
        num_records: of all kinds, `run.json` not counted; `num_checkpoints` that were compared.
        objects: what the records name, by key.
    """

    run: RunRecord
    log: LogState
    num_records: int = 0
    num_checkpoints: int = 0
    num_receipts: int = 0
    objects: dict[str, Named] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)


def audit_log(
    store: Store,
    run_name: str,
    report: Report,
    *,
    head: Head | None = None,
    tick: Tick = lambda *_: None,
) -> Audit:
    """Read and fold the whole log, as far as it goes now, and compare the checkpoints with it.

    Args:
        head: the newest record as Redis shows it, read before this call; None if it is not known.
    Raises: ConfigError: there is no such run; RefusedError, ProtocolError; StoreError.
    """
    history = History(store, run_name)
    run = history.existing_run()
    if head is not None and head.lineage != run.lineage:
        head = None  # of another run of the same name: no witness of this one
    audit = Audit(run=run, log=history.genesis(run))
    return _Auditor(store, audit, report).read(head, tick)


class _Auditor:
    def __init__(self, store: Store, audit: Audit, report: Report) -> None:
        self._store = store
        self._audit = audit
        self._report = report
        self._keys = ObjectKeys(audit.run.name)
        self._history = History(store, audit.run.name)

    def read(self, head: Head | None, tick: Tick) -> Audit:
        audit = self._audit
        for ref in (*audit.run.fragments, *([audit.run.frozen] if audit.run.frozen else [])):
            audit.objects[ref.key] = Named(ref, first=0)
        checkpoints = self._seqs(self._keys.checkpoints, "a checkpoint")
        records = self._seqs(self._keys.commits, "a log record")
        newest = max(records, default=0)
        self._check_head(head, 0)
        with workers() as pool:
            for entry in pool.map(self._read, range(1, newest + 1)):
                if not self._take(entry):
                    self._give_up(newest)
                    break
                seq = audit.log.seq
                self._check_head(head, seq)
                if seq in checkpoints:
                    self._check_checkpoint(seq)
                tick("records", seq, newest)
        for seq in sorted(s for s in checkpoints if s > newest):
            self._report(self._keys.checkpoint(seq), f"there is no record {seq} to it")
        if head is not None and head.seq > newest:
            where = self._keys.commit(head.seq)
            self._report(where, f"Redis shows it as the newest record, the log ends at {newest}")
        return audit

    def _seqs(self, prefix: str, what: str) -> set[int]:
        """Numbers of the objects under `prefix`; one that has none should not be there."""
        seqs = set()
        for info in self._store.list(prefix):
            seq = self._keys.parse_seq(info.key)
            if seq is None:
                self._report(info.key, f"it is not the name of {what}")
            else:
                seqs.add(seq)
        return seqs

    # ---- records ----------------------------------------------------------------------------

    def _read(self, seq: int) -> Entry | str:
        """A record, or why there is none to read."""
        try:
            return self._history.read(seq) or "it is missing, but records after it are there"
        except ProtocolError as error:
            return str(error)

    def _take(self, entry: Entry | str) -> bool:
        log = self._audit.log
        where = self._keys.commit(log.seq + 1)
        if isinstance(entry, str):
            self._report(where, entry)
            return False
        record = entry.record
        before = {step.fragment: _bare(log, step.fragment) for step in _known(record, log)}
        outer = log.settings.outer
        try:
            log.apply(record, entry.digest)
        except IntegrityError as error:
            self._report(where, error.args[0])
            return False
        self._audit.num_records += 1
        self._audit.num_receipts += len(record.receipts)
        self._note_objects(record, before)
        if record.kind == "step":
            for step in record.fragments:
                merged = tuple(
                    r for r in record.receipts if (r.fragment, r.fate) == (step.fragment, "merged")
                )
                self._audit.merges.append(
                    Merge(
                        version=record.global_version,
                        seq=record.seq,
                        kernel=record.kernel,
                        step=step,
                        before=before[step.fragment],
                        receipts=merged,
                        lr=outer.lr,
                        momentum=outer.momentum,
                    )
                )
        return True

    def _note_objects(self, record: LogRecord, before: Mapping[int, FragmentHead]) -> None:
        objects = self._audit.objects
        for head in before.values():  # they belong to no version from here on
            for ref in refs(head):
                objects[ref.key].last = record.global_version - 1
        for step in record.fragments:
            for ref in refs(step):
                known = objects.get(ref.key)
                if known is None:
                    objects[ref.key] = Named(ref, first=record.global_version)
                    continue
                known.last = None  # a rollback points at it again
                if known.ref != ref:
                    where = self._keys.commit(record.seq)
                    self._report(where, f"it says of {ref.key} what an earlier record does not")

    def _give_up(self, newest: int) -> None:
        seq = self._audit.log.seq + 1
        if seq < newest:
            where = self._keys.commit(seq)
            self._report(where, f"records {seq + 1} to {newest} cannot be judged without it")

    # ---- what is derived from them --------------------------------------------------------------

    def _check_checkpoint(self, seq: int) -> None:
        key = self._keys.checkpoint(seq)
        self._audit.num_checkpoints += 1
        try:
            found = wire.parse(bytes(self._store.get(key)), LogState, what=key)
        except ProtocolError as error:
            self._report(key, str(error))
        except ObjectNotFoundError:
            return  # derived, so it may be deleted at any time
        else:
            if wire.canonical(found) != wire.canonical(self._audit.log):
                self._report(key, f"it is not what records 1 to {seq} add up to")

    def _check_head(self, head: Head | None, seq: int) -> None:
        log = self._audit.log
        if head is not None and head.seq == seq and head.digest != log.digest:
            where = self._keys.commit(seq) if seq else self._keys.run_record
            self._report(where, "it is not the record that Redis knows under this number")


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """Threads to read objects with; what has not begun when the block is left never does."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="verify")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def refs(of: FragmentHead | FragmentStep) -> Iterator[ObjectRef]:
    """The objects that one version of a fragment consists of."""
    yield from (ref for ref in (of.published, of.outer, of.step) if ref is not None)


def _known(record: LogRecord, log: LogState) -> list[FragmentStep]:
    """Its steps of fragments that there are; `LogState.apply` refuses all others."""
    return [step for step in record.fragments if 0 <= step.fragment < len(log.fragments)]


def _bare(log: LogState, fragment: int) -> FragmentHead:
    """A fragment as it is now, without its memories."""
    return msgspec.structs.replace(log.fragments[fragment], hashes=[], norms=[])
