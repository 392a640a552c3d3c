"""What must be true of a run's log at the end of every chaos test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddl.coordinator.verify import verify_run
from ddl.errors import ProtocolError
from ddl.protocol.records import Handin, HandinId, Receipt
from ddl.protocol.wire import parse
from ddl.registry.base import View
from ddl.store.local import LocalStore
from ddl_cli.demo.books import problems, read_books


def receipts(store: Path, run: str) -> dict[HandinId, Receipt]:
    """Every receipt of the log. That each contribution has one only, and that no number is left out,
    is checked while the log is read."""
    found = read_books(LocalStore(store), run).receipts
    by_id = {receipt.id: receipt for receipt in found}
    assert len(by_id) == len(found)
    return by_id


def check_books(store: Path, run: str, view: View, *, killed: tuple[str, ...] = ()) -> None:
    """The log is whole and every object is what it says; learners and the log tell one story.

    `killed`: learners whose last word is older than their last hand-in.
    """
    opened = LocalStore(store)
    found = verify_run(opened, run)
    assert found.num_differences == 0, found
    assert problems(read_books(opened, run), view, killed=killed) == []


def spooled(spool: Path, learner: str) -> Iterator[Handin]:
    """What waits whole in a learner's spool, oldest first; nothing is changed there."""
    for path in sorted(spool.glob(f"*/{learner}/*.json")):
        try:
            yield parse(path.read_bytes(), Handin, what=str(path))
        except (FileNotFoundError, ProtocolError):  # dropped meanwhile, with its receipt
            continue
