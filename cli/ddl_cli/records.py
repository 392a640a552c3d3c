"""All records of a log, with a bar: a store is far away, and a log is long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddl.coordinator.history import History
    from ddl.protocol.records import LogRecord


def read_log(history: History) -> Iterator[LogRecord]:
    """All records after `run.json`, oldest first, with a bar for whoever waits.

    Raises: ProtocolError, StoreError.
    """
    from ddl_cli.progress import bars

    newest = history.newest_seq()
    with bars() as tick:
        for entry in history.entries(range(1, newest + 1)):
            tick("records", entry.record.seq, newest)
            yield entry.record
