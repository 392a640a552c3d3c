"""The demo's book-keeping check: the log, what learners say of themselves, and what waited at the
end must tell one story (design 7). Independent of the coordinator's own sums.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from ddl.coordinator.history import History
from ddl.core.log import LogState
from ddl.core.snapshot import snapshot
from ddl.errors import IntegrityError
from ddl.protocol.records import LearnerRecord, LedgerTotals, LogRecord, Receipt, RunRecord
from ddl.registry.base import View
from ddl.store.base import Store

ROUNDING: Final = 1e-9
"""Relative difference that adding floats in another order may make."""


class Books(NamedTuple):
    """A run's log, read and checked from the first record to the last."""

    run: RunRecord
    state: LogState
    receipts: tuple[Receipt, ...]

    def merged_tokens(self, learner: str) -> float:
        """Merged work of one learner, fragments weighted by their share."""
        return sum(
            self.state.shares[r.fragment] * r.tokens
            for r in self.receipts
            if r.learner == learner and r.fate == "merged"
        )


def read_books(store: Store, name: str) -> Books:
    """Read a run's whole log. Applying each record checks the chain, that every contribution has
    one receipt, and that no number is left out.

    Raises: IntegrityError, StoreError.
    """
    history = History(store, name)
    run = history.run_record()
    if run is None:
        raise IntegrityError(f"there is no run {name!r} in {store.url}")
    state = history.genesis(run)
    receipts: list[Receipt] = []
    for record, digest in _records(history):
        state.apply(record, digest)
        receipts += record.receipts
    return Books(run, state, tuple(receipts))


def _records(history: History) -> Iterator[tuple[LogRecord, str]]:
    seq = 1
    while (entry := history.read(seq)) is not None:
        yield entry.record, entry.digest
        seq += 1


class Account(NamedTuple):
    """Tokens of one learner's life, fragments weighted by their share."""

    record: LearnerRecord | None
    settled: float
    outstanding: float

    @property
    def known(self) -> float:
        """All that was handed in, as the log and the open announcements tell."""
        return self.settled + self.outstanding


def accounts(books: Books, view: View) -> dict[tuple[str, int], Account]:
    """Every life of every learner that ever handed in, or that is registered at the end."""
    shares = books.state.shares
    settled: dict[tuple[str, int], float] = defaultdict(float)
    outstanding: dict[tuple[str, int], float] = defaultdict(float)
    for receipt in books.receipts:
        settled[receipt.learner, receipt.incarnation] += shares[receipt.fragment] * receipt.tokens
    have_receipt = {receipt.id for receipt in books.receipts}
    for handin in view.handins.values():
        if handin.id not in have_receipt:
            outstanding[handin.learner, handin.incarnation] += (
                shares[handin.fragment] * handin.tokens
            )
    records = {(r.id, r.incarnation): r for r in view.learners.values()}
    return {
        life: Account(records.get(life), settled[life], outstanding[life])
        for life in sorted({*settled, *outstanding, *records})
    }


def problems(books: Books, view: View, *, killed: tuple[str, ...]) -> list[str]:
    """Sentences on everything that does not add up; empty when the books balance.

    A killed learner's own last word is older than its last hand-in: it cannot be asked.
    """
    found = []
    for (name, _), account in accounts(books, view).items():
        record = account.record
        if name in killed or record is None:
            continue
        if not _same(record.handed_in.tokens, account.known):
            found.append(
                f"{name} handed in {record.handed_in.tokens:.1f} tokens, "
                f"but {account.known:.1f} have a receipt or wait for one"
            )
        kept = record.handed_in.tokens + record.discarded.tokens + record.in_u.tokens
        if not _same(record.tokens, kept):
            found.append(
                f"{name} trained on {record.tokens} tokens, but handed in, discarded "
                f"and kept {kept:.1f}"
            )
    totals = run_totals(books, view)
    fates = totals.merged + totals.refused + totals.expired + totals.lost + totals.rolled_back
    if not _same(totals.handed_in, fates + totals.outstanding):
        found.append(
            f"{totals.handed_in:.1f} tokens were handed in, but {fates:.1f} have a fate "
            f"and {totals.outstanding:.1f} wait for one"
        )
    return found


def run_totals(books: Books, view: View) -> LedgerTotals:
    """Tokens by fate as the log's ledger has them, beside the sum of all that was handed in, as
    added up from single contributions."""
    shown = snapshot(view)
    assert shown is not None
    shares, rows = books.state.shares, books.state.ledger
    everything = accounts(books, view).values()
    return LedgerTotals(
        handed_in=sum(account.known for account in everything),
        outstanding=shown.ledger.outstanding,
        discarded=shown.ledger.discarded,
        **{
            fate: sum(s * getattr(row, fate).tokens for s, row in zip(shares, rows, strict=True))
            for fate in ("merged", "refused", "expired", "lost", "rolled_back")
        },
    )


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=ROUNDING, abs_tol=1e-3)
