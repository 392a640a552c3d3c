"""Failures: drawn by lot, or read from a tape of earlier ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import mul
from pathlib import Path
from random import Random
from typing import Final, Literal, Protocol

from ddl.errors import ConfigError, ProtocolError
from ddl.protocol.records import Record
from ddl.protocol.wire import SCHEMA, canonical, parse
from ddl.simulate.settings import Machines

LearnerKind = Literal["kill", "stop", "slow", "cut", "corrupt"]
ServiceKind = Literal["kill-coordinator", "stop-coordinator", "restart-redis", "flush-redis"]
AWAY: Final = ("kill", "stop")
"""Kinds that take a learner's machine away. Of all others a fleet model knows nothing: learners step
on."""


class Fault(Record, frozen=True, kw_only=True):
    """Something fails at `time_s`, for `duration_s`.

    `kill`: one slice of a learner is gone. The other kinds are for `ddl chaos`, which says what they
    do. `learner` is None where a service fails. `machine`: the place of its kind in `Study.machines`.
    """

    time_s: float
    learner: int | None = None
    kind: LearnerKind | ServiceKind = "kill"
    duration_s: float
    machine: int = 0


class Tape(Record, frozen=True, kw_only=True):
    """All faults of one history, in the order of time."""

    schema: int = SCHEMA
    learners: int
    horizon_s: float
    faults: tuple[Fault, ...]


def save_tape(file: Path, tape: Tape) -> None:
    """Write a tape. Raises: ConfigError: the file cannot be written."""
    try:
        file.write_bytes(canonical(tape) + b"\n")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error


def load_tape(file: Path) -> Tape:
    """Read a tape. Raises: ConfigError: the file cannot be read, or holds none."""
    try:
        return parse(file.read_bytes(), Tape, what=f"tape {file}")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except ProtocolError as error:
        raise ConfigError(str(error), hint="`ddl simulate --save-tape FILE` writes one") from error


class Failures(Protocol):
    """What fails at one learner, and when."""

    def next_at(self, now: float, present: Sequence[int], /) -> float:
        """Instant of the next failure, if the learner steps from `now` on with `present[kind]` slices."""
        ...

    def take(self, present: Sequence[int]) -> tuple[int, float]:
        """That failure, at the instant that `next_at` told: the slice's kind, seconds it is away."""
        ...


class Lots:
    """Every chip that steps fails at the rate of its kind, whatever happened before."""

    def __init__(self, machines: Sequence[Machines], random: Random) -> None:
        self._machines = machines
        self._rates = [kind.slice_chips / kind.mtbi_s for kind in machines]
        self._random = random

    def next_at(self, now: float, present: Sequence[int]) -> float:
        rate = sum(map(mul, present, self._rates))
        return now + self._random.expovariate(rate) if rate else math.inf

    def take(self, present: Sequence[int]) -> tuple[int, float]:
        kind = 0
        if len(present) > 1:
            weights = list(map(mul, present, self._rates))
            kind = self._random.choices(range(len(weights)), weights)[0]
        return kind, away_s(self._machines[kind], self._random.random())


class Played:
    """What a tape holds for a learner. What fell into a pause is noticed with the next step."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._left = sorted(faults, key=lambda fault: fault.time_s, reverse=True)

    def next_at(self, _now: float, _present: Sequence[int], /) -> float:
        return self._left[-1].time_s if self._left else math.inf

    def take(self, present: Sequence[int]) -> tuple[int, float]:
        fault = self._left.pop()
        there = [kind for kind, count in enumerate(present) if count]
        kind = fault.machine if fault.machine in there else there[0]
        return kind, fault.duration_s


def away_s(kind: Machines, share: float) -> float:
    """Seconds that `share` (0 <= share < 1) of all failed slices are away at most."""
    rest = -math.expm1(math.log(share) / kind.return_exponent) if share else 1.0
    return kind.return_scale_s * math.pow(-math.log(rest), 1 / kind.return_shape)
