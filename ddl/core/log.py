"""The log, folded: everything that the records of a run imply.

`LogState.apply` is the only way in which a run's durable state changes: after a commit, at a
restart, in `ddl verify` and in the tests. It refuses a record that does not fit, so a broken chain,
a repeated receipt or a skipped version can never be built upon.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any, Final

import msgspec

from ddl import config
from ddl.config import Scalar, Settings
from ddl.core import preset, units
from ddl.core.chain import because, check_follows, state_after
from ddl.core.health import HEALTH, Vitals
from ddl.core.keep import Promises
from ddl.limits import STALENESS_LIMIT
from ddl.protocol import wire
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    Amount,
    Fate,
    FragmentState,
    FragmentStep,
    Head,
    Health,
    LedgerRow,
    LogRecord,
    ObjectRef,
    Receipt,
    RecordKind,
    RunRecord,
    RunState,
)
from ddl.protocol.units import UnitsDone

START: Final = "coordinator start"
"""Who writes the record with settings that a coordinator was started with."""

CHECKPOINT_EVERY: Final = 256
"""Records between two checkpoints."""

HISTORY: Final = STALENESS_LIMIT + 2
"""Versions per fragment whose hash and norm are remembered: enough for any allowed staleness."""

REQUESTS_KEPT: Final = 64
"""Answered requests that are remembered, so that none is served by two coordinators."""

LATELY_CYCLES: Final = 4
"""How many merges of each fragment count when learners' shares are told."""


class FragmentHead(msgspec.Struct, kw_only=True):
    """Newest version of one fragment, made by record `seq`.

    `hashes`: SHA-256 of the published payloads of the last `HISTORY` versions of this line, the
    newest last.
    `norms`, `root_norms`: L2 norm of what was merged per step and per square root of its steps, the
    median of each of the last `HISTORY` merges; the gate compares with them. `merges` counts all.
    """

    version: int
    line: int
    seq: int = 0
    published: ObjectRef
    outer: ObjectRef | None = None
    step: ObjectRef | None = None
    hashes: list[str]
    norms: list[float] = []
    root_norms: list[float] = []
    merges: int = 0

    def hash_of(self, version: int) -> str | None:
        """SHA-256 of what was published as `version`, None if it is unknown or long gone."""
        age = self.version - version
        return self.hashes[-1 - age] if 0 <= age < len(self.hashes) else None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one incarnation handed in for one fragment and got a receipt for."""

    last: Receipt
    settled: Amount


class LogState(msgspec.Struct, kw_only=True):
    """The folded log. Serialised as it is, this is a checkpoint.

    Attributes:
        digest: SHA-256 of the newest record, of `run.json` before the first.
        promises: what `[keep]` has promised to keep, now and before.
        shares: each fragment's share of the parameters.
        accounts: by `keys.handin_field`.
        last_fragment: merged by the newest step, -1 before the first.
        merged_lately: tokens by learner of each of the last merges, oldest first; `lately` their
            sums, kept so that telling shares costs nothing.
        barred: learners that were kicked, with the reason.
        answered: ids of the last requests that a record answered, oldest first.
        units: by data set, the units of data that are finished.
        committed_at, version_at: when the newest record was written, and that of the newest version.
        why, state_at: why the run is in its state and who brought it there, and since when.
        pace_steps: steps from one version of a fragment to its next that the run has come to: from 1 up
            to H. Only `outer.preset = "auto"` goes by it (see `ddl.core.preset`).
        ordered: settings that a person has changed during the run, with the value before: who starts
            a coordinator with that value does not mean to undo the order.
        outdone: settings that a start was given by flags, with what its file said: who starts a
            coordinator without these flags does not mean to undo them.
    """

    schema: int = wire.SCHEMA
    lineage: str
    seq: int = 0
    global_version: int = 0
    line: int = 0
    epoch: int = 0
    digest: str
    progress: float = 0.0
    state: RunState = "running"
    why: str = ""
    state_at: float = 0.0
    settings: Settings
    promises: Promises
    shares: list[float]
    fragments: list[FragmentHead]
    ledger: list[LedgerRow]
    accounts: dict[str, Account] = {}
    last_fragment: int = -1
    merged_lately: list[dict[str, int]] = []
    lately: dict[str, int] = {}
    health: Health = Health()
    vitals: Vitals = msgspec.field(default_factory=Vitals)
    barred: dict[str, str] = {}
    answered: list[str] = []
    units: dict[str, UnitsDone] = {}
    committed_at: float = 0.0
    version_at: float = 0.0
    pace_steps: float = 1.0
    ordered: dict[str, Scalar] = {}
    outdone: dict[str, Scalar] = {}

    @classmethod
    def genesis(cls, run: RunRecord, digest: str | None = None) -> LogState:
        """The state after record 0.

        `digest` is that of the bytes of run.json as they lie in the store; without it, of those
        that this version of ddl would write, which is right only for a record of its own.
        """
        return cls(
            lineage=run.lineage,
            digest=digest or wire.digest(wire.canonical(run)),
            settings=run.settings,
            promises=Promises.genesis(run.settings.keep),
            shares=list(run.layout.shares),
            fragments=[
                FragmentHead(version=0, line=0, published=ref, hashes=[ref.sha256])
                for ref in run.fragments
            ],
            ledger=[LedgerRow() for _ in run.fragments],
            committed_at=run.created_at,
            version_at=run.created_at,
            state_at=run.created_at,
            outdone=dict(run.outdone),
        )

    # ---- reading ----------------------------------------------------------------------------

    def account_seq(self, learner: str, incarnation: int, fragment: int) -> int:
        """Number of the last receipted contribution; 0 before the first."""
        account = self.accounts.get(handin_field(learner, incarnation, fragment))
        return account.last.seq if account else 0

    def settled(self, learner: str, incarnation: int, fragment: int) -> Amount:
        """Work of one incarnation and fragment that has its receipts."""
        account = self.accounts.get(handin_field(learner, incarnation, fragment))
        return account.settled if account else Amount()

    def learner_shares(self) -> dict[str, float]:
        """Each learner's share of the tokens merged in the last rounds."""
        total = sum(self.lately.values())
        return {learner: tokens / total for learner, tokens in self.lately.items()}

    @property
    def budget_used(self) -> str:
        """Which budget of the run is used up; empty while it goes on."""
        stop = self.settings.stop
        if stop.commits and sum(head.merges for head in self.fragments) >= stop.commits:
            return f"stop.commits = {stop.commits} reached"
        if stop.tokens and self.progress >= stop.tokens:
            return f"stop.tokens = {stop.tokens} reached"
        return ""

    @property
    def budget_ratio(self) -> float:
        """Share of the run's budget that is used, of the one that is used more; 0 without one."""
        stop = self.settings.stop
        used = [0.0]
        if stop.commits:
            used.append(sum(head.merges for head in self.fragments) / stop.commits)
        if stop.tokens:
            used.append(self.progress / stop.tokens)
        return min(1.0, max(used))

    def head(self) -> Head:
        """The newest record in short, as shown in Redis."""
        return Head(
            seq=self.seq,
            global_version=self.global_version,
            line=self.line,
            epoch=self.epoch,
            digest=self.digest,
            progress=self.progress,
            lineage=self.lineage,
            state=self.state,
            why=self.why,
            state_at=self.state_at,
            ledger=tuple(self.ledger),
            health=self.health,
            committed_at=self.version_at,
            shares=self.learner_shares(),
            units=self.units,
        )

    def fragment_state(self, fragment: int) -> FragmentState:
        """One fragment as shown in Redis."""
        head = self.fragments[fragment]
        return FragmentState(
            fragment=fragment,
            version=head.version,
            line=head.line,
            seq=head.seq,
            published=head.published,
            step=head.step,
        )

    # ---- writing ----------------------------------------------------------------------------

    def next_record(
        self,
        kind: RecordKind,
        *,
        epoch: int,
        holder: str,
        written_at: float,
        ddl_version: str,
        receipts: Sequence[Receipt] = (),
        fragments: Sequence[FragmentStep] = (),
        **more: Any,
    ) -> LogRecord:
        """The record that would follow, with ledger, progress and state as they will be after it."""
        ledger, progress = self.totals_with(receipts)
        moves = kind in ("step", "rollback")
        return LogRecord(
            ddl_version=ddl_version,
            kind=kind,
            lineage=self.lineage,
            seq=self.seq + 1,
            global_version=self.global_version + moves,
            line=self.line + (kind == "rollback"),
            epoch=epoch,
            holder=holder,
            prev_digest=self.digest,
            written_at=written_at,
            fragments=tuple(fragments),
            receipts=tuple(receipts),
            ledger=tuple(ledger),
            progress=more.pop("progress", progress),
            state=more.pop("state", state_after(kind, self.state)),
            **more,
        )

    def apply(self, record: LogRecord, digest: str) -> None:
        """Take the next record in; `digest` is the SHA-256 of its bytes.

        Raises:
            IntegrityError: the record does not follow this state. Nothing has changed then.
        """
        settings = check_follows(record, self)
        for step in record.fragments:
            head = self.fragments[step.fragment]
            head.version = step.version_after
            head.line, head.seq = record.line, record.seq
            head.published, head.outer, head.step = step.published, step.outer, step.step
            if record.kind == "rollback":
                head.hashes = []  # what was learned on the old line is of no use on the new one
            head.hashes = [*head.hashes, step.published.sha256][-HISTORY:]
        for receipt in record.receipts:
            field = handin_field(receipt.learner, receipt.incarnation, receipt.fragment)
            amount = Amount(steps=receipt.steps, tokens=receipt.tokens)
            if (account := self.accounts.get(field)) is not None:
                amount += account.settled
            self.accounts[field] = Account(last=receipt, settled=amount)
        if record.kind == "step":
            self._remember_merge(record)
        if record.kind == "rollback":
            self.vitals.note_rollback(record.global_version, by_person=record.who != HEALTH)
            self.health = Health()
        if record.kind == "settings":
            self._note_orders(record)
            self.settings = settings
            if (self.state, record.state) == ("held", "running"):
                self.vitals.note_release()
        barred = self.barred | record.barred
        self.barred = {learner: reason for learner, reason in barred.items() if reason}
        if record.request:
            self.answered = [*self.answered, record.request][-REQUESTS_KEPT:]
        if record.state != self.state:
            self.state, self.state_at = record.state, record.written_at
            self.why = because(record)
        self.seq = record.seq
        if record.global_version > self.global_version:
            self.version_at = record.written_at
        self.global_version = record.global_version
        self.promises.note(self.settings.keep, self.global_version)
        self.line = record.line
        self.epoch = record.epoch
        self.digest = digest
        self.progress = record.progress
        self.ledger = list(record.ledger)
        self.units = units.fold(self.units, record.units)
        self.committed_at = record.written_at

    def _note_orders(self, record: LogRecord) -> None:
        before = {key: config.get(self.settings, key) for key in record.changes}
        if record.who == START:
            self.ordered = {k: v for k, v in self.ordered.items() if k not in before}
            kept = {k: v for k, v in self.outdone.items() if k not in before}
            self.outdone = kept | record.outdone
        else:
            self.ordered = before | self.ordered

    def _remember_merge(self, record: LogRecord) -> None:
        merged = [r for r in record.receipts if r.fate == "merged"]
        for step in record.fragments:
            head = self.fragments[step.fragment]
            moves = [
                (r.norm, r.steps)
                for r in merged
                if r.fragment == step.fragment and r.norm is not None
            ]
            if moves:
                by_step = median([norm / steps for norm, steps in moves])
                by_root = median([norm / math.sqrt(steps) for norm, steps in moves])
                head.norms = [*head.norms, by_step][-HISTORY:]
                head.root_norms = [*head.root_norms, by_root][-HISTORY:]
            head.merges += 1
            self.last_fragment = step.fragment
        row: dict[str, int] = {}
        for receipt in merged:
            row[receipt.learner] = row.get(receipt.learner, 0) + receipt.tokens
        self.merged_lately.append(row)
        for learner, tokens in row.items():
            self.lately[learner] = self.lately.get(learner, 0) + tokens
        if len(self.merged_lately) > LATELY_CYCLES * len(self.fragments):
            for learner, tokens in self.merged_lately.pop(0).items():
                self.lately[learner] -= tokens
                if not self.lately[learner]:
                    del self.lately[learner]
        self.health = record.health
        stalenesses = [receipt.staleness for receipt in merged] or [0]
        pace = preset.grown(
            self.pace_steps, staleness=median(stalenesses), num_fragments=len(self.fragments)
        )
        self.pace_steps = min(float(self.settings.round.every_steps), pace)
        self.vitals.note_step(
            record.health,
            staleness=fmean(stalenesses),
            version=record.global_version,
            num_fragments=len(self.fragments),
            settings=self.settings.health,
        )

    def totals_with(self, receipts: Iterable[Receipt]) -> tuple[list[LedgerRow], float]:
        """Ledger and progress as they are with these receipts added."""
        sums: dict[tuple[int, Fate], tuple[int, int]] = {}
        progress = self.progress
        for receipt in receipts:
            key = (receipt.fragment, receipt.fate)
            steps, tokens = sums.get(key, (0, 0))
            sums[key] = (steps + receipt.steps, tokens + receipt.tokens)
            if receipt.fate == "merged":
                progress += self.shares[receipt.fragment] * receipt.tokens
        ledger = list(self.ledger)
        for (fragment, fate), (steps, tokens) in sums.items():
            ledger[fragment] = ledger[fragment].add(fate, Amount(steps=steps, tokens=tokens))
        return ledger, progress
