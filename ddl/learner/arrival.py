"""Finding the run to join, also one that is only about to be started: whoever starts Redis, coordinator
and learners by one script need not put them in order."""

from __future__ import annotations

import time
from difflib import SequenceMatcher
from typing import Final

from ddl.clock import Clock
from ddl.errors import DdlError, RegistryError, UnknownRunError
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
    Raises: UnknownRunError after `wait_s`, which names the runs that are there; RegistryError, if it
        will not pass or is still so after `wait_s`.
    """
    deadline = clock.monotonic() + wait_s
    where = safe_url(redis_url)
    awaited = ""
    while True:
        problem: RegistryError | None = None
        try:
            entry = registry.read_entry()
        except RegistryError as error:
            if not error.retryable:
                raise
            entry, problem = None, error
        if entry is not None:
            return entry
        if clock.monotonic() >= deadline:
            raise problem or UnknownRunError(
                f"Redis at {where} does not know the run {run!r}; {_others(redis_url, run)}",
                hint="Start its coordinator: ddl coordinator start RUN.toml",
            )
        awaiting = "Redis" if problem else "the run"
        if awaiting != awaited:
            awaited = awaiting
            journal.tell(
                "run.awaited",
                f"waiting for run {run!r} at {where} to be started, for up to {wait_s:g} s; "
                f"{problem or _others(redis_url, run)}",
            )
        time.sleep(LOOK_S)


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
