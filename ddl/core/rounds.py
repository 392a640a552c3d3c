"""When a round opens, how long it waits, and when it closes (design 3.3). Small pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ddl.config import RoundSettings
from ddl.names import counted
from ddl.protocol.records import Round

DEADLINE_LEAST_S = 5.0
"""Shortest automatic deadline: below it, ordinary network hiccups would decide."""


class OpenRound:
    """A round under way; owned and changed by the machine.

    `extended`: it found no quorum by its deadline and waits on, without holding a slot.
    `retry_at`: it closes no earlier, because its merge has failed. `shown`: as last shown in Redis.
    """

    __slots__ = (
        "deadline_at",
        "extended",
        "fragment",
        "grace_until",
        "launch",
        "line",
        "opened_at",
        "quorum_at",
        "reason",
        "retry_at",
        "shown",
        "version_before",
    )

    def __init__(
        self,
        *,
        fragment: int,
        version_before: int,
        launch: int,
        line: int,
        now: float,
        deadline_s: float,
    ) -> None:
        self.fragment = fragment
        self.version_before = version_before
        self.launch = launch
        self.line = line
        self.opened_at = now
        self.deadline_at = now + deadline_s
        self.quorum_at: float | None = None
        self.grace_until: float | None = None
        self.extended = False
        self.retry_at: float | None = None
        self.reason = ""
        self.shown: Round | None = None

    def shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self.opened_at += seconds
        self.deadline_at += seconds
        if self.quorum_at is not None:
            self.quorum_at += seconds
        if self.grace_until is not None:
            self.grace_until += seconds
        if self.retry_at is not None:
            self.retry_at += seconds

    def instants(self) -> list[float]:
        """When something may happen to it by time alone."""
        known = (self.deadline_at, self.grace_until, self.retry_at)
        return [instant for instant in known if instant is not None]

    def record(
        self,
        *,
        quorum: int,
        arrived: Sequence[str],
        awaited: Sequence[str],
        late: Sequence[str],
        share: float,
        held_by: str = "",
    ) -> Round:
        """This round as shown in Redis. `held_by`: why it is not judged now, whoever is in."""
        return Round(
            fragment=self.fragment,
            version_before=self.version_before,
            launch=self.launch,
            line=self.line,
            opened_at=self.opened_at,
            deadline_at=self.deadline_at,
            quorum=quorum,
            grace_until=self.grace_until,
            arrived=tuple(arrived),
            awaited=tuple(awaited),
            late=tuple(late),
            reason=held_by or self.reason,
            failed=self.retry_at is not None,
            extended=self.extended,
            share=share,
        )


class Decision(NamedTuple):
    """What to do with a round now, and the sentence that says why."""

    kind: Literal["wait", "close", "extend"]
    reason: str


class Ema:
    """Exponential moving average of a duration in seconds; None before the first value."""

    __slots__ = ("_keep", "value")

    def __init__(self, keep: float = 0.8) -> None:
        self._keep = keep
        self.value: float | None = None

    def add(self, value: float) -> None:
        kept = value if self.value is None else self.value
        self.value = self._keep * kept + (1.0 - self._keep) * value


def opening_gap_s(every_steps: float, step_s: float, num_fragments: int) -> float:
    """Seconds between two openings, so that each fragment is due once in `every_steps` steps.

    Without this floor, a fast link would merge after every few steps, and quality falls with it.
    """
    return every_steps * step_s / num_fragments


def deadline_s(settings: RoundSettings, step_s: float | None) -> float:
    """Seconds from opening to deadline."""
    if settings.deadline_s > 0:
        return settings.deadline_s
    return max(DEADLINE_LEAST_S, 4.0 * settings.overlap_steps * (step_s or 0.0))


def grace_end(
    settings: RoundSettings,
    *,
    opened_at: float,
    quorum_at: float,
    step_s: float | None,
    quorum_s: float | None,
    sync_s: float | None,
    lags_s: Sequence[float],
) -> float:
    """Instant at which a round that has its quorum stops waiting for more.

    `quorum_s` and `sync_s` are moving averages of the time to quorum and of fetch, merge and
    publication. `lags_s`: how long after the opening recent hand-ins arrived.
    Source: arXiv 2604.21428, Eq. 3, as a part of the whole formula in design 3.3.
    """
    if step_s is None:
        return quorum_at  # nothing known yet: do not wait for what may never come
    slack_s = settings.overlap_steps * step_s - (quorum_s or 0.0) - (sync_s or 0.0)
    by_slack_s = (quorum_at - opened_at) + settings.grace_ratio * max(0.0, slack_s)
    by_lags_s = percentile(lags_s, 0.9) if settings.grace_ratio > 0 else 0.0
    return opened_at + min(settings.every_steps * step_s / 2.0, max(by_slack_s, by_lags_s))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def close_decision(
    round_: OpenRound,
    *,
    quorum: int,
    live: int,
    fresh: int,
    carried: int,
    coming: int,
    awaited: Sequence[str],
    now: float,
) -> Decision:
    """Whether a round closes now.

    Args:
        live: learners that rounds may wait for.
        fresh: usable contributions handed in for this very round.
        carried: usable ones that missed an earlier round of the fragment.
        coming: announced for this very round and being fetched; grace does not cut them off.
        awaited: learners that may still hand in.
    """
    ready = fresh + carried
    if round_.retry_at is not None and now < round_.retry_at:
        return Decision("wait", round_.reason)
    if ready >= quorum and not awaited:
        return Decision("close", f"all live learners are in ({live})")
    grace_over = round_.grace_until is not None and now >= round_.grace_until
    if grace_over and fresh >= quorum and not coming:
        return Decision("close", f"quorum of {quorum} and grace are over; not in: {_some(awaited)}")
    if now >= round_.deadline_at:
        if ready >= quorum:
            return Decision("close", f"deadline; not in: {_some(awaited)}")
        return Decision("extend", _below_quorum(quorum, live, ready, coming))
    if ready < quorum:
        return Decision("wait", _below_quorum(quorum, live, ready, coming))
    return Decision("wait", f"quorum of {quorum} reached; waiting for {_some(awaited)}")


def _below_quorum(quorum: int, live: int, ready: int, coming: int) -> str:
    needs = f"needs {counted(quorum, 'contribution')}"
    so_far = f"{ready} in, {coming} being fetched" if coming else f"{ready} in"
    if live < quorum:
        able = f"only {counted(live, 'learner')}" if live else "no learner"
        return f"{needs}, but {able} can hand in now ({so_far})"
    return f"{needs}, {so_far}"


def _some(names: Sequence[str]) -> str:
    if not names:
        return "nobody"
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
