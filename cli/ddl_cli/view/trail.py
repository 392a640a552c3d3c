"""What a series of looks tells and one alone does not: rates, and events further back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from ddl.core.facts import by_time
from ddl.core.snapshot import losses
from ddl.protocol.records import Fact, RunSnapshot
from ddl_cli.reading import EVENTS_KEPT

OVER_S: Final = 10.0
"""Rates are those over so many seconds."""


class Rates(NamedTuple):
    """Bytes per second between all learners and the store; None while only one look was had."""

    up: float | None = None
    down: float | None = None


class Trail:
    """Takes snapshots in, one after the other.

    Args:
        facts: what is known to have happened before the first, oldest first.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.rates = Rates()
        self._facts: dict[tuple[float, str], Fact] = {}
        self._losses: list[tuple[int, float]] = []
        self._note(facts)
        self._moved: dict[tuple[str, int], tuple[int, int]] = {}
        self._sums: deque[tuple[float, int, int]] = deque()

    def add(self, shown: RunSnapshot) -> RunSnapshot:
        """The snapshot with all events that are known by now, and their losses."""
        self._note(shown.events)
        self._measure(shown)
        return msgspec.structs.replace(
            shown,
            events=by_time(self._facts.values()),
            losses=tuple(self._losses) or shown.losses,
        )

    def _note(self, facts: Iterable[Fact]) -> None:
        new = [fact for fact in facts if _name(fact) not in self._facts]
        self._facts |= {_name(fact): fact for fact in new}
        self._losses += losses(new)
        del self._losses[:-EVENTS_KEPT]
        while len(self._facts) > EVENTS_KEPT:
            del self._facts[next(iter(self._facts))]

    def _measure(self, shown: RunSnapshot) -> None:
        up, down = self._sums[-1][1:] if self._sums else (0, 0)
        moved = {}
        for one in shown.learners:
            life = (one.id, one.incarnation)
            before = self._moved.get(life)
            moved[life] = (one.up_bytes, one.down_bytes)
            if before is not None:
                up += max(0, one.up_bytes - before[0])
                down += max(0, one.down_bytes - before[1])
        self._moved = moved
        self._sums.append((shown.taken_at, up, down))
        while len(self._sums) > 2 and self._sums[1][0] <= shown.taken_at - OVER_S:
            self._sums.popleft()
        began_at, up_before, down_before = self._sums[0]
        if shown.taken_at > began_at:
            seconds = shown.taken_at - began_at
            self.rates = Rates((up - up_before) / seconds, (down - down_before) / seconds)


def _name(fact: Fact) -> tuple[float, str]:
    return (fact.at, fact.text)
