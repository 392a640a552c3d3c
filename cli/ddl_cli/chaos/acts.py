"""What is done to which process when: a tape, taken apart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from ddl.simulate.tape import Fault, Tape

Verb = Literal["kill", "start", "halt", "resume", "cut", "mend", "corrupt", "flush"]
Target = str
"""`learner-N`, COORDINATOR or REDIS."""

COORDINATOR: Final = "coordinator"
"""Whichever of the two coordinators works at the moment."""
REDIS: Final = "redis"

SLOW_PERIOD_S: Final = 1.0
"""A slow learner stands still for the first half of so long, again and again."""

_PAIRS: Final[dict[str, tuple[Verb, ...]]] = {
    "kill": ("kill", "start"),
    "stop": ("halt", "resume"),
    "cut": ("cut", "mend"),
    "corrupt": ("corrupt",),
    "kill-coordinator": ("kill", "start"),
    "stop-coordinator": ("halt", "resume"),
    "restart-redis": ("kill", "start"),
    "flush-redis": ("flush",),
}


class Act(NamedTuple):
    """One act. `fault`: its place in the tape."""

    at_s: float
    verb: Verb
    target: Target
    fault: int


def acts(tape: Tape) -> list[Act]:
    """All acts of a tape, in the order of time. What ends after the horizon is not left out."""
    made = [act for place, fault in enumerate(tape.faults) for act in _acts_of(fault, place)]
    return sorted(made, key=lambda act: act.at_s)


def target_of(fault: Fault) -> Target:
    """Who is hit."""
    if fault.learner is not None:
        return f"learner-{fault.learner + 1}"
    return COORDINATOR if fault.kind.endswith(COORDINATOR) else REDIS


def _acts_of(fault: Fault, place: int) -> Iterator[Act]:
    target = target_of(fault)
    if fault.kind == "slow":
        for number in range(max(1, round(fault.duration_s / SLOW_PERIOD_S))):
            at = fault.time_s + number * SLOW_PERIOD_S
            yield Act(at, "halt", target, place)
            yield Act(at + SLOW_PERIOD_S / 2, "resume", target, place)
        return
    for verb, at in zip(_PAIRS[fault.kind], _instants(fault), strict=False):
        yield Act(at, verb, target, place)


def _instants(fault: Fault) -> tuple[float, float]:
    return fault.time_s, fault.time_s + fault.duration_s
