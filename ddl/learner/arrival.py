"""Finding the run to join, also one that is only about to be started, or started again: whoever starts
Redis, coordinator and learners by one script need not put them in order."""

from __future__ import annotations

import time
from difflib import SequenceMatcher
from typing import Final

from ddl.clock import Clock
from ddl.errors import DdlError, RegistryError, RunOverError, UnknownRunError
from ddl.journal import Journal
from ddl.protocol.address import safe_url
from ddl.protocol.records import RunEntry
from ddl.registry.base import LearnerRegistry
from ddl.registry.reader import read_runs

LOOK_S: Final = 0.25
"""Between two looks."""

AGAIN_S: Final = 10.0
"""Longest wait for a run that is over: a coordinator that goes on with it takes seconds to say so."""

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


def await_going_on(
    registry: LearnerRegistry, run: str, *, wait_s: float, journal: Journal, clock: Clock
) -> None:
    """See that the run has not come to its end, or is started again within `wait_s`, AGAIN_S at most.

    Raises: RunOverError: a life that could do nothing would only hide what the one before it has done.
        RegistryError.
    """
    wait_s = min(wait_s, AGAIN_S)
    deadline = clock.monotonic() + wait_s
    told = False
    while True:
        head = registry.read_head()
        if head is None or head.state != "stopped":
            return
        over = f"the run {run!r} is over{': ' if head.why else ''}{head.why}"
        if clock.monotonic() >= deadline:
            raise RunOverError(over)
        if not told:
            told = True
            journal.tell(
                "run.awaited", f"{over}; waiting up to {wait_s:g} s, as it may be started again"
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
