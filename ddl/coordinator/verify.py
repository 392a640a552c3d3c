"""`ddl verify`: does everything in the store say the same?

Checked are the chain of records and all that follows from it (versions, receipts at most once, the
ledger), the checkpoints, every object that the records name, the contributions that were merged and are
kept, and, if asked, every merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddl.codec.digest import sha256
from ddl.coordinator.audit import Audit, Difference, Named, Report, Tick, audit_log, workers
from ddl.coordinator.replay import NOT_ITS_NAME, Replay
from ddl.core.snapshot import ledger_totals
from ddl.errors import ObjectNotFoundError
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import HandinId, Head, LedgerTotals, Record
from ddl.protocol.wire import SCHEMA
from ddl.store.base import ObjectInfo, Store

DIFFERENCES_TOLD: Final = 20
"""Differences that are told one by one; beyond, only their number."""


class Skipped(Record, frozen=True, kw_only=True):
    """A step that could not be replayed, and why."""

    seq: int
    why: str


class ReplayResult(Record, frozen=True, kw_only=True):
    """Steps that gave the same bytes again, and those that could not be tried.

    `num_not_kept`: those of `num_skipped` of which `[keep]` let go what they were made from.
    """

    num_steps: int
    num_equal: int
    num_skipped: int
    num_not_kept: int
    skipped: tuple[Skipped, ...]
    """The first of all others that could not be tried."""


class Verification(Record, frozen=True, kw_only=True):
    """What `ddl verify --json` prints.

    `num_objects`: versions and outer states. `num_gone`: those that are not there any more, as `[keep]`
    allows. `num_contributions`: merged ones that are kept. `replay`: None if it was
    not asked for. The run is as it should be if `num_differences` is 0. `progress`: tokens in the
    newest model, which is what was merged but for what rollbacks undid.
    """

    schema: int = SCHEMA
    run: str
    lineage: str
    global_version: int
    num_records: int
    num_receipts: int
    ledger: LedgerTotals
    progress: float
    num_checkpoints: int
    num_objects: int
    objects_bytes: int
    num_gone: int
    num_contributions: int
    contributions_bytes: int
    replay: ReplayResult | None
    num_differences: int
    differences: tuple[Difference, ...]
    """The first of them."""


def verify_run(
    store: Store,
    run_name: str,
    *,
    replay: bool = False,
    head: Head | None = None,
    tick: Tick = lambda *_: None,
) -> Verification:
    """Check a run as it lies in the store; it may be going on meanwhile.

    Args:
        replay: also merge what is kept of the contributions again.
        head: the newest record as Redis shows it, read before this call; None if it is not known.
        tick: told of progress, from this thread.
    Raises:
        ConfigError: there is no such run; RefusedError: it is being removed; ProtocolError: its
            `run.json` cannot be read; StoreError: the store does not let us look.
    """
    found = _Differences()
    audit = audit_log(store, run_name, found.report, head=head, tick=tick)
    objects = _Objects(store, audit, found.report)
    objects.check(tick)
    contributions = _Contributions(store, audit, found.report)
    contributions.check(tick)
    return Verification(
        run=audit.run.name,
        lineage=audit.run.lineage,
        global_version=audit.log.global_version,
        num_records=audit.num_records,
        num_receipts=audit.num_receipts,
        ledger=ledger_totals(audit.log.ledger, audit.log.shares),
        progress=audit.log.progress,
        num_checkpoints=audit.num_checkpoints,
        num_objects=objects.num_whole,
        objects_bytes=objects.whole_bytes,
        num_gone=objects.num_gone,
        num_contributions=contributions.num_whole,
        contributions_bytes=contributions.whole_bytes,
        replay=_replay(store, audit, found.report, tick) if replay else None,
        num_differences=found.count,
        differences=tuple(found.first),
    )


class _Differences:
    def __init__(self) -> None:
        self.count = 0
        self.first: list[Difference] = []
        self._seen: set[tuple[str, str]] = set()

    def report(self, where: str, what: str) -> None:
        """Tell of a difference; two checks may see the same one."""
        if (where, what) in self._seen:
            return
        self._seen.add((where, what))
        self.count += 1
        if len(self.first) < DIFFERENCES_TOLD:
            self.first.append(Difference(where=where, what=what))


class _Objects:
    """Reads every object whole; one that its settings let go may be missing, never damaged."""

    def __init__(self, store: Store, audit: Audit, report: Report) -> None:
        self.num_whole = 0
        self.whole_bytes = 0
        self.num_gone = 0
        self._store = store
        self._audit = audit
        self._report = report

    def check(self, tick: Tick) -> None:
        objects = list(self._audit.objects.values())
        with workers() as pool:
            missing = []
            for done, (named, problem) in enumerate(
                zip(objects, pool.map(self._problem, objects), strict=True), 1
            ):
                if problem is None:
                    missing.append(named)
                elif problem:
                    self._report(named.ref.key, problem)
                else:
                    self.num_whole += 1
                    self.whole_bytes += named.ref.bytes
                tick("objects", done, len(objects))
        if missing:
            self._judge(missing)

    def _judge(self, missing: list[Named]) -> None:
        """Tell of missing objects that should be there, by the log as it is by now: a run that goes
        on lets go of objects meanwhile."""
        now = audit_log(self._store, self._audit.run.name, lambda *_: None)
        for named in missing:
            if _is_promised(now, now.objects.get(named.ref.key, named)):
                self._report(named.ref.key, "it is missing")
            else:
                self.num_gone += 1

    def _problem(self, named: Named) -> str | None:
        """What is wrong with an object: "" for nothing, None if it is not there."""
        ref = named.ref
        try:
            data = self._store.get(ref.key)
        except ObjectNotFoundError:
            return None
        if len(data) != ref.bytes:
            return f"it has {len(data)} bytes, the log says {ref.bytes}"
        found = sha256(data)
        if found != ref.sha256:
            return f"its SHA-256 is {found[:16]}..., the log says {ref.sha256[:16]}..."
        return ""


class _Contributions:
    """Reads every contribution whole that was merged and is kept: its name tells what its bytes are. Of
    others, whoever merges them judges."""

    def __init__(self, store: Store, audit: Audit, report: Report) -> None:
        self.num_whole = 0
        self.whole_bytes = 0
        self._store = store
        self._keys = ObjectKeys(audit.run.name)
        self._merged = {receipt.id for merge in audit.merges for receipt in merge.receipts}
        self._report = report

    def check(self, tick: Tick) -> None:
        merged = list(self._kept())
        with workers() as pool:
            for done, ((info, _), is_whole) in enumerate(
                zip(merged, pool.map(self._is_whole, merged), strict=True), 1
            ):
                if is_whole:
                    self.num_whole += 1
                    self.whole_bytes += info.bytes
                elif is_whole is not None:
                    self._report(info.key, NOT_ITS_NAME)
                tick("contributions", done, len(merged))

    def _kept(self) -> Iterator[tuple[ObjectInfo, HandinId]]:
        for info in self._store.list(self._keys.contributions):
            parsed = self._keys.parse_contribution(info.key)
            if parsed is not None and (id_ := HandinId(*parsed)) in self._merged:
                yield info, id_

    def _is_whole(self, kept: tuple[ObjectInfo, HandinId]) -> bool | None:
        """Whether its bytes are what its name tells; None if it has been let go meanwhile."""
        info, id_ = kept
        try:
            data = self._store.get(info.key)
        except ObjectNotFoundError:
            return None
        return self._keys.contribution(*id_, sha256(data)) == info.key


def _is_promised(audit: Audit, named: Named) -> bool:
    if named.ref == audit.run.frozen:
        return True
    last = audit.log.global_version if named.last is None else named.last
    return audit.log.promises.hold(named.first, last)


def _replay(store: Store, audit: Audit, report: Report, tick: Tick) -> ReplayResult:
    replay = Replay(store, audit.run)
    skipped: list[Skipped] = []
    equal = num_not_kept = 0
    for done, merge in enumerate(audit.merges, 1):
        outcome = replay.step(merge, audit.log.promises)
        if outcome.difference:
            report(outcome.where, outcome.difference)
        elif outcome.is_let_go:
            num_not_kept += 1
        elif outcome.skipped:
            skipped.append(Skipped(seq=merge.seq, why=outcome.skipped))
        else:
            equal += 1
        tick("merges", done, len(audit.merges))
    return ReplayResult(
        num_steps=len(audit.merges),
        num_equal=equal,
        num_skipped=num_not_kept + len(skipped),
        num_not_kept=num_not_kept,
        skipped=tuple(skipped[:DIFFERENCES_TOLD]),
    )
