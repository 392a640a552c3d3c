"""Finding the run to join, also one that is only about to be started: whoever starts coordinator and
learners by one script need not put them in order."""

from __future__ import annotations

import time
from difflib import SequenceMatcher
from typing import Final

from ddl.clock import Clock
from ddl.errors import DdlError, UnknownRunError
from ddl.journal import Journal
from ddl.protocol.address import safe_url
from ddl.protocol.records import RunEntry
from ddl.registry.base import LearnerRegistry
from ddl.registry.reader import read_runs

LOOK_S: Final = 0.25
"""Between two looks."""

NAMES_SHOWN: Final = 5


def await_run(
    registry: LearnerRegistry,
    redis_url: str,
    run: str,
    *,
    wait_s: float,
    journal: Journal,
    clock: Clock,
) -> RunEntry:
    """The run's entry in Redis, as soon as there is one.

    Args:
        redis_url: what `registry` speaks to.
    Raises: UnknownRunError after `wait_s`, which names the runs that are there; RegistryError.
    """
    deadline = clock.monotonic() + wait_s
    entry, where = registry.read_entry(), safe_url(redis_url)
    if entry is None and wait_s > 0:
        journal.tell(
            "run.awaited",
            f"waiting for run {run!r} at {where} to be started, for up to {wait_s:g} s; "
            f"{_others(redis_url, run)}",
        )
    while entry is None and clock.monotonic() < deadline:
        time.sleep(LOOK_S)
        entry = registry.read_entry()
    if entry is None:
        raise UnknownRunError(
            f"Redis at {where} does not know the run {run!r}; {_others(redis_url, run)}",
            hint="Start its coordinator: ddl coordinator start RUN.toml",
        )
    return entry


def _others(redis_url: str, run: str) -> str:
    """Which runs there are, those of a like name first: it may be misspelt."""
    try:
        names = list(read_runs(redis_url))
    except DdlError:
        return "which others it knows cannot be read"
    if not names:
        return "it knows no other"
    names.sort(key=lambda name: -SequenceMatcher(None, run, name).ratio())
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"those it knows: {', '.join(names[:NAMES_SHOWN])}{more}"
