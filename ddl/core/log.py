"""The log, folded: everything that the records of a run imply.

`LogState.apply` is the only way in which a run's durable state changes: after a commit, at a
restart, in `ddl verify` and in the tests. It refuses a record that does not fit, so a broken chain,
a repeated receipt or a skipped version can never be built upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from ddl import config
from ddl.config import Settings
from ddl.errors import IntegrityError
from ddl.protocol import wire
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    Amount,
    FragmentState,
    FragmentStep,
    Handin,
    Head,
    Health,
    LedgerRow,
    LogRecord,
    ObjectRef,
    Receipt,
    RunRecord,
)

CHECKPOINT_EVERY: Final = 256
"""Records between two checkpoints."""

HISTORY: Final = 32
"""Versions per fragment whose hash and norms are remembered: more than any allowed staleness."""


class FragmentHead(msgspec.Struct, kw_only=True):
    """Newest version of one fragment.

    `hashes`: version -> SHA-256 of its published payload, the last `HISTORY` ones.
    `norms`: L2 norm per step of merged contributions, newest last; the gate's history.
    """

    version: int
    line: int
    published: ObjectRef
    outer: ObjectRef | None = None
    step: ObjectRef | None = None
    hashes: dict[int, str] = {}
    norms: list[float] = []
    merges: int = 0


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one incarnation handed in for one fragment and got a receipt for."""

    last: Receipt
    settled: Amount


class LogState(msgspec.Struct, kw_only=True):
    """The folded log. Serialised as it is, this is a checkpoint."""

    schema: int = wire.SCHEMA
    lineage: str
    seq: int = 0
    global_version: int = 0
    line: int = 0
    epoch: int = 0
    digest: str
    progress: float = 0.0
    state: Literal["running", "held", "paused", "stopped"] = "running"
    settings: Settings
    shares: list[float]
    fragments: list[FragmentHead]
    ledger: list[LedgerRow]
    accounts: dict[str, Account] = {}
    last_fragment: int = -1
    merged_lately: list[dict[str, int]] = []
    health: Health = Health()
    committed_at: float = 0.0

    @classmethod
    def genesis(cls, run: RunRecord) -> LogState:
        """The state after record 0."""
        return cls(
            lineage=run.lineage,
            digest=wire.digest(wire.canonical(run)),
            settings=run.settings,
            shares=list(run.layout.shares),
            fragments=[
                FragmentHead(version=0, line=0, published=ref, hashes={0: ref.sha256})
                for ref in run.fragments
            ],
            ledger=[LedgerRow() for _ in run.fragments],
            committed_at=run.created_at,
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
        sums: dict[str, int] = {}
        for row in self.merged_lately:
            for learner, tokens in row.items():
                sums[learner] = sums.get(learner, 0) + tokens
        total = sum(sums.values())
        return {learner: tokens / total for learner, tokens in sums.items()} if total else {}

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
            ledger=tuple(self.ledger),
            health=self.health,
            committed_at=self.committed_at,
            shares=self.learner_shares(),
        )

    def fragment_state(self, fragment: int) -> FragmentState:
        """One fragment as shown in Redis."""
        head = self.fragments[fragment]
        return FragmentState(
            fragment=fragment,
            version=head.version,
            line=head.line,
            published=head.published,
            step=head.step,
        )

    # ---- writing ----------------------------------------------------------------------------

    def next_record(
        self,
        kind: Literal["step", "receipts", "rollback", "settings", "stop"],
        *,
        epoch: int,
        holder: str,
        written_at: float,
        ddl_version: str,
        receipts: Sequence[Receipt] = (),
        fragments: Sequence[FragmentStep] = (),
        **more: Any,
    ) -> LogRecord:
        """The record that would follow, with ledger and progress as they will be after it."""
        ledger, progress = self._settle(receipts)
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
            **more,
        )

    def apply(self, record: LogRecord, digest: str) -> None:
        """Take the next record in; `digest` is the SHA-256 of its bytes.

        Raises:
            IntegrityError: the record does not follow this state. Nothing has changed then.
        """
        self._check(record)
        for step in record.fragments:
            head = self.fragments[step.fragment]
            head.version = step.version_after
            head.line = record.line
            head.published, head.outer, head.step = step.published, step.outer, step.step
            if record.kind == "rollback":
                head.hashes.clear()  # what was learned on the old line is of no use on the new one
            head.hashes[step.version_after] = step.published.sha256
            for old in [v for v in head.hashes if v <= step.version_after - HISTORY]:
                del head.hashes[old]
        for receipt in record.receipts:
            field = handin_field(receipt.learner, receipt.incarnation, receipt.fragment)
            before = self.settled(receipt.learner, receipt.incarnation, receipt.fragment)
            amount = Amount(steps=receipt.steps, tokens=receipt.tokens)
            self.accounts[field] = Account(last=receipt, settled=before + amount)
        if record.kind == "step":
            self._remember_merge(record)
        if record.kind == "settings":
            self.settings = config.replace(self.settings, record.changes)
            self.state = "running"
        if record.kind == "stop":
            self.state = "stopped"
        self.seq = record.seq
        self.global_version = record.global_version
        self.line = record.line
        self.epoch = record.epoch
        self.digest = digest
        self.progress = record.progress
        self.ledger = list(record.ledger)
        self.committed_at = record.written_at

    def _remember_merge(self, record: LogRecord) -> None:
        (step,) = record.fragments
        head = self.fragments[step.fragment]
        merged = [r for r in record.receipts if r.fate == "merged"]
        head.norms = (head.norms + [r.norm / r.steps for r in merged if r.norm is not None])[
            -HISTORY:
        ]
        head.merges += 1
        self.last_fragment = step.fragment
        tokens: dict[str, int] = {}
        for receipt in merged:
            tokens[receipt.learner] = tokens.get(receipt.learner, 0) + receipt.tokens
        window = 4 * len(self.fragments)
        self.merged_lately = [*self.merged_lately, tokens][-window:]
        self.health = record.health

    def _settle(self, receipts: Iterable[Receipt]) -> tuple[list[LedgerRow], float]:
        """Ledger and progress with these receipts added."""
        ledger = list(self.ledger)
        merged = 0.0
        for receipt in receipts:
            amount = Amount(steps=receipt.steps, tokens=receipt.tokens)
            ledger[receipt.fragment] = ledger[receipt.fragment].add(receipt.fate, amount)
            if receipt.fate == "merged":
                merged += self.shares[receipt.fragment] * receipt.tokens
        return ledger, self.progress + merged

    def _check(self, record: LogRecord) -> None:
        def require(good: bool, what: str, found: object, expected: object) -> None:
            if not good:
                raise IntegrityError(
                    f"log record {record.seq} does not follow record {self.seq}: "
                    f"{what} is {found}, expected {expected}",
                    hint="Run `ddl verify` on this run",
                )

        def equal(what: str, found: object, expected: object) -> None:
            require(found == expected, what, found, expected)

        moves = record.kind in ("step", "rollback")
        equal("lineage", record.lineage, self.lineage)
        equal("seq", record.seq, self.seq + 1)
        equal("prev_digest", record.prev_digest, self.digest)
        equal("global_version", record.global_version, self.global_version + moves)
        equal("line", record.line, self.line + (record.kind == "rollback"))
        require(record.epoch >= self.epoch, "epoch", record.epoch, f"{self.epoch} or more")
        equal("number of fragments moved > 0", bool(record.fragments), moves)
        for step in record.fragments:
            before = self.fragments[step.fragment].version
            equal(f"version_before of fragment {step.fragment}", step.version_before, before)
            equal(f"version_after of fragment {step.fragment}", step.version_after, before + 1)
        expected_seq: dict[str, int] = {}
        for r in record.receipts:
            field = handin_field(r.learner, r.incarnation, r.fragment)
            seq = expected_seq.get(field, self.account_seq(r.learner, r.incarnation, r.fragment))
            equal(f"receipt seq of {field}", r.seq, seq + 1)
            expected_seq[field] = r.seq
        ledger, progress = self._settle(record.receipts)
        equal("ledger", list(record.ledger), ledger)
        if record.kind != "rollback":
            equal("progress", record.progress, progress)


def outstanding(log: LogState, handins: Mapping[str, Handin]) -> list[Amount]:
    """Per fragment, work that is announced and has no receipt yet."""
    rows = [Amount() for _ in log.fragments]
    for handin in handins.values():
        if handin.seq > log.account_seq(handin.learner, handin.incarnation, handin.fragment):
            rows[handin.fragment] += Amount(steps=handin.steps, tokens=handin.tokens)
    return rows
