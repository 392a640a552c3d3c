"""What is to fail when: drawn from a seed, written by hand, or read from a tape. No I/O.

What each kind does, through real signals and real sockets:

    kill              SIGKILL to a learner; started again under its id after `duration_s`
    stop              SIGSTOP to a learner; SIGCONT after `duration_s`
    slow              a learner is stopped for half of every second
    cut               nothing passes between a learner and Redis
    corrupt           a bit of the next contribution that a learner uploads is flipped in the store
    kill-coordinator  SIGKILL to the coordinator that works; started again, as a standby, later
    stop-coordinator  SIGSTOP to the coordinator that works
    restart-redis     SIGKILL to Redis, which loses all; started again after `duration_s`
    flush-redis       FLUSHALL
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Final, cast, get_args

from ddl.errors import ConfigError
from ddl.simulate.tape import Fault, LearnerKind, ServiceKind, Tape

LEARNER_KINDS: Final[tuple[str, ...]] = get_args(LearnerKind)
SERVICE_KINDS: Final[tuple[str, ...]] = get_args(ServiceKind)
MOMENTARY: Final = ("corrupt", "flush-redis")
"""Kinds that are over when they have happened."""

MARGIN: Final = 0.1
"""Nothing of a service fails in the first and the last tenth, so that its recovery can be seen."""


@dataclass(frozen=True, kw_only=True)
class Odds:
    """What is likely to fail.

    Attributes:
        mtbf_s: mean time between two faults of one learner that is there.
        down_s: seconds for which a learner is away, slow or cut off.
        weights: of each kind among a learner's faults.
        service_down_s: seconds for which a service is away.
        services: kind -> how often it happens.
    """

    mtbf_s: float = 45.0
    down_s: float = 5.0
    weights: Mapping[LearnerKind, float] = field(
        default_factory=lambda: MappingProxyType(
            {"kill": 6.0, "stop": 1.0, "slow": 1.0, "cut": 1.0, "corrupt": 1.0}
        )
    )
    service_down_s: float = 1.0
    services: Mapping[ServiceKind, int] = field(
        default_factory=lambda: MappingProxyType(
            {"kill-coordinator": 3, "restart-redis": 1, "flush-redis": 1}
        )
    )

    def with_coordinator_kills(self, times: int) -> Odds:
        """The same, but for how often the coordinator is killed."""
        return replace(self, services={**self.services, "kill-coordinator": times})

    def without_redis(self) -> Odds:
        """The same, but nothing happens to Redis."""
        left = {kind: times for kind, times in self.services.items() if "redis" not in kind}
        return replace(self, services=left)


def draw(odds: Odds, *, learners: int, horizon_s: float, seed: int) -> Tape:
    """A tape by lot: faults of each learner come as a Poisson process while it is there; each kind of
    fault of a service comes so often, once in each of as many equal stretches of time.

    A learner's faults depend on the seed and its number only, so that one more changes no others.
    """
    faults = [
        fault
        for number in range(learners)
        for fault in _of_learner(odds, number, horizon_s, _random(seed, number))
    ]
    for kind, times in odds.services.items():
        faults += _of_service(odds, kind, times, horizon_s, _random(seed, kind))
    return tape_of(faults, learners=learners, horizon_s=horizon_s)


def tape_of(faults: Iterable[Fault], *, learners: int, horizon_s: float) -> Tape:
    """The faults in the order of time."""
    ordered = sorted(faults, key=lambda fault: fault.time_s)
    return Tape(learners=learners, horizon_s=horizon_s, faults=tuple(ordered))


def _random(seed: int, whose: object) -> Random:
    return Random(f"{seed}/{whose}")  # noqa: S311 - a history, not a secret


def _of_learner(odds: Odds, number: int, horizon_s: float, random: Random) -> Iterable[Fault]:
    kinds, weights = list(odds.weights), list(odds.weights.values())
    at = random.expovariate(1 / odds.mtbf_s)
    while at < horizon_s:
        (kind,) = random.choices(kinds, weights)
        lasts_s = 0.0 if kind in MOMENTARY else odds.down_s
        yield Fault(time_s=at, learner=number, kind=kind, duration_s=lasts_s)
        at += lasts_s + random.expovariate(1 / odds.mtbf_s)


def _of_service(
    odds: Odds, kind: ServiceKind, times: int, horizon_s: float, random: Random
) -> Iterable[Fault]:
    lasts_s = 0.0 if kind in MOMENTARY else odds.service_down_s
    for place in range(times):
        share = (place + random.random()) / times
        at = horizon_s * (MARGIN + (1 - 2 * MARGIN) * share)
        yield Fault(time_s=at, kind=kind, duration_s=lasts_s)


def parse_fault(text: str) -> Fault:
    """A fault as people write it: TIME:KIND[:LEARNER][:SECONDS], learners from 1.

    "30:kill:2:5": at 30 s learner-2 is killed for 5 s; "40:flush-redis"; "50:kill-coordinator:2".
    Raises: ConfigError.
    """
    parts = text.split(":")
    try:
        at, kind, rest = float(parts[0]), parts[1], parts[2:]
        learner = int(rest.pop(0)) - 1 if kind in LEARNER_KINDS else None
        lasts_s = 0.0 if kind in MOMENTARY else float(rest.pop(0))
    except (ValueError, IndexError):
        raise _not_a_fault(text, "it is not TIME:KIND[:LEARNER][:SECONDS]") from None
    if kind not in LEARNER_KINDS + SERVICE_KINDS:
        raise _not_a_fault(text, f"there is no kind {kind!r}")
    if rest or not 0 <= at < math.inf or not 0 <= lasts_s < math.inf or (learner or 0) < 0:
        raise _not_a_fault(text, "a part is too much, or out of range")
    return Fault(
        time_s=at,
        learner=learner,
        kind=cast("LearnerKind | ServiceKind", kind),
        duration_s=lasts_s,
    )


def _not_a_fault(text: str, why: str) -> ConfigError:
    kinds = ", ".join(LEARNER_KINDS + SERVICE_KINDS)
    return ConfigError(
        f"--fault {text!r}: {why}",
        hint=f"Write 30:kill:2:5 or 40:flush-redis; kinds are {kinds}",
    )


def check(tape: Tape, *, own_redis: bool = True) -> Tape:
    """The tape, if it can be played; only a Redis of our own may fail. Raises: ConfigError."""
    for fault in tape.faults:
        if not own_redis and "redis" in fault.kind:
            raise ConfigError(
                f"{fault.kind} at {fault.time_s:g} s is for a Redis of our own",
                hint="Leave --redis out, or the fault",
            )
        if (fault.kind in LEARNER_KINDS) != (fault.learner is not None):
            raise ConfigError(f"a fault of kind {fault.kind!r} at {fault.time_s:g} s: whose is it?")
        if fault.learner is not None and not 0 <= fault.learner < tape.learners:
            raise ConfigError(
                f"the tape is of {tape.learners} learners, and there is a fault of learner "
                f"{fault.learner + 1}",
                hint=f"Use --learners {fault.learner + 1}",
            )
    return tape


def cut_short(tape: Tape, horizon_s: float) -> Tape:
    """Its beginning."""
    faults = [fault for fault in tape.faults if fault.time_s < horizon_s]
    return tape_of(faults, learners=tape.learners, horizon_s=min(horizon_s, tape.horizon_s))
