"""Records of a log, read ahead: a store is far away, and a log is long."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ddl.coordinator.history import History
    from ddl.protocol.records import LogRecord

READERS: Final = 8
AHEAD: Final = 256
"""Records asked for at a time, so that a log of any length fits into memory."""


def read_records(history: History, seqs: range) -> Iterator[LogRecord]:
    """These records, in this order, as far as they are there. Raises: ProtocolError, StoreError."""
    with ThreadPoolExecutor(READERS, "records") as readers:
        for start in range(0, len(seqs), AHEAD):
            for entry in readers.map(history.read, seqs[start : start + AHEAD]):
                if entry is None:
                    return
                yield entry.record


def read_log(history: History) -> Iterator[LogRecord]:
    """All records after `run.json`, oldest first, with a bar for whoever waits. Raises as above."""
    from ddl_cli.progress import bars

    newest = history.newest_seq()
    with bars() as tick:
        for record in read_records(history, range(1, newest + 1)):
            tick("records", record.seq, newest)
            yield record
