"""Which values settings may have, alone and together. Pure: `ddl.config` says where a value came from.

A limit says what a value must be, or nothing if it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ddl.config import Settings

STALENESS_LIMIT: Final = 30
"""Highest `round.staleness_max`: the log remembers the digests of so many versions."""

LONGEST_S: Final = 365 * 24 * 3600
"""More seconds than anybody waits. Far beyond, the waits of the operating system and of Redis
overflow, and a run whose log says so cannot be coordinated any more."""

JOIN_WAIT_S: Final = 30.0
"""How long a learner waits for a run that Redis does not know yet, unless it is told otherwise."""

Limit = Callable[[Any], str]


def _at_least(least: int) -> Limit:
    def judge(value: float) -> str:
        if not value >= least:
            return f"at least {least:,}"
        return "finite" if value == math.inf else ""  # no JSON number, so no record could hold it

    return judge


def _above(bound: float) -> Limit:
    return lambda value: "" if bound < value < math.inf else f"a finite number above {bound:g}"


def _between(low: float, high: float) -> Limit:
    return lambda value: "" if low <= value <= high else f"at least {low:g} and at most {high:g}"


def _seconds(least: float) -> Limit:
    return lambda value: (
        "" if least <= value <= LONGEST_S else f"from {least:g} s to a year ({LONGEST_S:,} s)"
    )


def _above_to(bound: float, high: float) -> Limit:
    return lambda value: "" if bound < value <= high else f"above {bound:g} and at most {high:g}"


def _below(low: float, high: float) -> Limit:
    return lambda value: "" if low <= value < high else f"at least {low:g} and below {high:g}"


LIMITS: Final[Mapping[str, Limit]] = {
    "run.seed": _at_least(0),
    "store.part_bytes": _at_least(5 * 1024 * 1024),
    "fragments.num": _at_least(0),
    "round.every_steps": _at_least(1),
    "round.overlap_steps": _at_least(1),
    "round.in_flight": _at_least(1),
    "round.quorum": _at_least(1),
    "round.grace_ratio": _below(0.0, 1.0),
    "round.deadline_s": _seconds(0),
    "round.staleness_max": _between(0, STALENESS_LIMIT),
    "round.staleness_decay": _between(0.0, 1.0),
    "adopt.alpha": _between(0.0, 1.0),
    "outer.lr": _above_to(0.0, 1000.0),  # far beyond, every merge overflows
    "outer.momentum": _below(0.0, 1.0),
    "gate.norm_factor": _above(1.0),
    "gate.calm_rounds": _at_least(0),
    "gate.refusals_max": _at_least(1),
    "liveness.beat_s": _seconds(0.01),
    "liveness.suspect_s": _seconds(0.01),
    "liveness.gone_s": _seconds(0.01),
    "liveness.lease_s": _seconds(1),  # with less than a round trip none could ever be held
    "liveness.max_offline_s": _seconds(0.01),
    "liveness.drain_s": _seconds(0.01),
    "health.loss_jump_ratio": _above(0.0),
    "health.bad_rounds": _at_least(1),
    "stop.tokens": _at_least(0),
    "stop.commits": _at_least(0),
    "keep.versions": _at_least(1),
    "keep.every": _at_least(0),
}


def conflicts(s: Settings) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """What cannot work together: the keys, a sentence with their values, and what to do."""
    if s.round.overlap_steps >= s.round.every_steps:
        yield (
            ("round.overlap_steps", "round.every_steps"),
            f"round.overlap_steps ({s.round.overlap_steps}) must be less than "
            f"round.every_steps ({s.round.every_steps})",
            f"Use at most {s.round.every_steps - 1}",
        )
    if s.fragments.num and s.round.in_flight > s.fragments.num:
        yield (
            ("round.in_flight", "fragments.num"),
            f"round.in_flight ({s.round.in_flight}) is more than fragments.num "
            f"({s.fragments.num}): a fragment has one open round at most",
            f"Use round.in_flight = {s.fragments.num}",
        )
    if s.fragments.num > s.round.every_steps:
        yield (
            ("fragments.num", "round.every_steps"),
            f"fragments.num ({s.fragments.num}) is more than round.every_steps "
            f"({s.round.every_steps}): a learner would hand in fragments with no step on them",
            f"Use fragments.num = {s.round.every_steps} or fewer",
        )
    live = s.liveness
    if not 3 * live.beat_s <= live.suspect_s <= live.gone_s:
        yield (
            ("liveness.beat_s", "liveness.suspect_s", "liveness.gone_s"),
            f"liveness.beat_s ({live.beat_s:g}), suspect_s ({live.suspect_s:g}) and gone_s "
            f"({live.gone_s:g}) must satisfy 3 * beat_s <= suspect_s <= gone_s",
            f"Use suspect_s = {3 * live.beat_s:g} or more, and gone_s no less than that",
        )
    if live.lease_s < 3 * live.beat_s:
        yield (
            ("liveness.lease_s", "liveness.beat_s"),
            f"liveness.lease_s ({live.lease_s:g}) is less than 3 beats of {live.beat_s:g} s",
            f"Use lease_s = {3 * live.beat_s:g} or more",
        )
