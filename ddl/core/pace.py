"""When rounds open, in which order, and what their past says of how long to wait (design 3.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Final

from ddl.config import RoundSettings
from ddl.core import rounds
from ddl.core.rounds import Ema, OpenRound
from ddl.protocol.records import Waits

LAUNCHES_PER_EPOCH: Final = 1_000_000
"""Launch numbers of an epoch start at epoch * this, so that no two coordinators share one."""

LAGS_KEPT: Final = 64
"""Recent hand-ins, and openings, that the estimate of arrival lags rests on."""


class Pace:
    """Opens rounds and remembers how they went; owned and driven by the machine.

    Args:
        epoch: of the lease; launch numbers come from it.
        num_fragments: of the run.
        last_fragment: the fragment that was merged last, -1 for none.
    """

    def __init__(self, *, epoch: int, num_fragments: int, last_fragment: int) -> None:
        self._launch = epoch * LAUNCHES_PER_EPOCH
        self._num_fragments = num_fragments
        self._next_fragment = (last_fragment + 1) % num_fragments
        self._opened_at: dict[int, float] = {}
        self._last_opened_at: float | None = None
        self._fragment_opened_at: dict[int, float] = {}
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self._quorum_s = Ema()
        self._sync_s = Ema()

    @property
    def has_opened(self) -> bool:
        """Whether this coordinator has opened a round."""
        return self._last_opened_at is not None

    def opens_at(self, every_steps: float, step_s: float, now: float) -> float:
        """The instant from which on one more round may open."""
        if self._last_opened_at is None:
            return now
        return self._last_opened_at + rounds.opening_gap_s(every_steps, step_s, self._num_fragments)

    def due_fragment(self, busy: Container[int]) -> int | None:
        """The next fragment in cyclic order that is not busy, if there is one."""
        for offset in range(self._num_fragments):
            fragment = (self._next_fragment + offset) % self._num_fragments
            if fragment not in busy:
                return fragment
        return None

    def opened_at(self, fragment: int) -> float | None:
        """When its last round opened; None if this coordinator has opened none."""
        return self._fragment_opened_at.get(fragment)

    def open(
        self, fragment: int, *, version_before: int, line: int, now: float, deadline_s: float
    ) -> OpenRound:
        """Open a round of `fragment`; the next one in order is due after it."""
        self._launch += 1
        self._next_fragment = (fragment + 1) % self._num_fragments
        self._last_opened_at = self._fragment_opened_at[fragment] = now
        self._opened_at[self._launch] = now
        self._opened_at.pop(self._launch - LAGS_KEPT, None)
        return OpenRound(
            fragment=fragment,
            version_before=version_before,
            launch=self._launch,
            line=line,
            now=now,
            deadline_s=deadline_s,
        )

    def note_arrival(self, launch: int, now: float) -> None:
        """A hand-in for round `launch` became usable, in time or late."""
        opened_at = self._opened_at.get(launch)
        if opened_at is not None:
            self._lags_s.append(now - opened_at)

    def note_waits(self, waits: Waits) -> None:
        """A round's step is in the log, and its time went like this."""
        self._quorum_s.add(waits.quorum_s)
        self._sync_s.add(waits.fetch_s + waits.merge_s + waits.publish_s)

    def grace_end(
        self, round_: OpenRound, settings: RoundSettings, *, now: float, step_s: float | None
    ) -> float:
        """Until when a round waits for more that has its quorum since `now`."""
        return rounds.grace_end(
            settings,
            opened_at=round_.opened_at,
            quorum_at=now,
            step_s=step_s,
            quorum_s=self._quorum_s.value,
            sync_s=self._sync_s.value,
            lags_s=self._lags_s,
        )

    def shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self._opened_at = {launch: at + seconds for launch, at in self._opened_at.items()}
        if self._last_opened_at is not None:
            self._last_opened_at += seconds
        for fragment in self._fragment_opened_at:
            self._fragment_opened_at[fragment] += seconds
