"""Waiting for the run to join: for its Redis, then for its coordinator."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import cast

import pytest

from ddl.clock import SystemClock
from ddl.errors import RegistryError, RegistryUnavailableError, UnknownRunError
from ddl.journal import Journal
from ddl.learner.arrival import await_run
from ddl.protocol.records import RunEntry
from ddl.registry.base import LearnerRegistry

ENTRY = cast("RunEntry", object())
AWAY = RegistryUnavailableError("nobody answers")
URL = "redis://127.0.0.1:1/0"


class Scripted:
    """Answers one look after the other as told; the last answer stays."""

    def __init__(self, *answers: RunEntry | RegistryError | None) -> None:
        self._answers: Iterator[RunEntry | RegistryError | None] = iter(answers)
        self._last: RunEntry | RegistryError | None = None

    def read_entry(self) -> RunEntry | None:
        self._last = next(self._answers, self._last)
        if isinstance(self._last, RegistryError):
            raise self._last
        return self._last


def awaited(registry: Scripted, *, wait_s: float) -> tuple[RunEntry, list[str]]:
    log = io.StringIO()
    entry = await_run(
        cast("LearnerRegistry", registry),
        URL,
        "demo",
        wait_s=wait_s,
        journal=Journal(log),
        clock=SystemClock(),
    )
    return entry, log.getvalue().splitlines()


def test_redis_may_be_started_after_the_learner_and_the_run_after_redis() -> None:
    """Both are waited for, and each is told once."""
    entry, told = awaited(Scripted(AWAY, AWAY, None, None, ENTRY), wait_s=30.0)
    assert entry is ENTRY
    assert ["nobody answers" in line for line in told] == [True, False]
    assert all("waiting for run" in line for line in told)


@pytest.mark.parametrize(
    ("answer", "error"), [(AWAY, RegistryUnavailableError), (None, UnknownRunError)]
)
def test_who_does_not_wait_hears_at_once_what_is_missing(
    answer: RegistryError | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        awaited(Scripted(answer, ENTRY), wait_s=0.0)


def test_what_no_patience_mends_is_not_waited_for() -> None:
    """A wrong password, say."""
    with pytest.raises(RegistryError, match="wrong password"):
        awaited(Scripted(RegistryError("wrong password"), ENTRY), wait_s=30.0)
