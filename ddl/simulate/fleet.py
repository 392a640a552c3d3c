"""Goodput and uptime of a fleet under every method of a study.

* **Goodput**, in percent: the useful work done, of what all chips would do if each always stepped at
  its own speed. For chips of one speed it is the paper's: the share of allocated cluster time that
  goes into useful steps, where a step without some slices counts less.
* **Uptime**, in percent: the share of time in which any learner steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

from msgspec.structs import replace

from ddl.errors import ConfigError
from ddl.protocol.records import Record
from ddl.protocol.wire import SCHEMA
from ddl.simulate.life import Life, Share, live, union_s
from ddl.simulate.paper import Figures, Place
from ddl.simulate.settings import Study
from ddl.simulate.tape import AWAY, Lots, Played, Tape

SLOWEST: Final = 0.1
"""However wide the spread of speeds, no slice is slower than this share of its kind's speed."""


class Cell(Record, frozen=True, kw_only=True):
    """One method on one size of the fleet; percent. `paper_*`: None where the paper has no figure."""

    method: str
    learners: int
    chips: int
    goodput: float
    uptime: float
    paper_goodput: float | None = None
    paper_uptime: float | None = None


class Result(Record, frozen=True, kw_only=True):
    """What `ddl simulate --json` prints.

    `mean_abs_error_goodput`: percentage points, over the cells that stand in the paper; None without any.
    `seconds`: that the simulation took.
    """

    schema: int = SCHEMA
    cells: tuple[Cell, ...]
    mean_abs_error_goodput: float | None
    seconds: float


class Outcome(NamedTuple):
    """One history of one cell."""

    goodput: float
    uptime: float
    tape: Tape


def places(study: Study) -> Iterator[tuple[Place, float]]:
    """The cells of a study, row by row, and how many times `machines` each has."""
    whole = sum(kind.chips for kind in study.machines)
    for method in study.methods:
        for learners in study.learners if method == "decoupled" else (1,):
            for size in study.sizes:
                yield Place(method, learners, round(size * whole)), size


def simulate(
    study: Study, *, beside: Mapping[Place, Figures] | None = None, tape: Tape | None = None
) -> tuple[Cell, ...]:
    """All cells, each the mean of its histories.

    Args:
        beside: figures to show beside ours.
        tape: the failures of the only history, as long as the tape is, in place of drawn ones.
    Raises: ConfigError: more learners than slices, or a tape of other learners.
    """
    if tape:
        study = replace(study, horizon_s=tape.horizon_s, seeds=1)
    cells = []
    for place, size in places(study):
        outcomes = [
            history(study, place, size, seed=seed, tape=tape) for seed in range(study.seeds)
        ]
        paper = (beside or {}).get(place)
        cells.append(
            Cell(
                **place._asdict(),
                goodput=fmean(outcome.goodput for outcome in outcomes),
                uptime=fmean(outcome.uptime for outcome in outcomes),
                paper_goodput=paper.goodput if paper else None,
                paper_uptime=paper.uptime if paper else None,
            )
        )
    return tuple(cells)


def tape_of(study: Study) -> Tape:
    """The failures of the first history of a study of one cell. Raises: ConfigError: it has more."""
    cells = list(places(study))
    if len(cells) > 1:
        raise ConfigError(
            f"a tape is of one cell, and the study has {len(cells)}",
            hint="Choose with --method, --learners and --chips",
        )
    ((place, size),) = cells
    return history(study, place, size, seed=0).tape


def mean_abs_error(cells: tuple[Cell, ...]) -> float | None:
    """Of goodput against the paper's, in percentage points; None where it has no figure."""
    errors = [
        abs(cell.goodput - cell.paper_goodput) for cell in cells if cell.paper_goodput is not None
    ]
    return fmean(errors) if errors else None


def history(
    study: Study, place: Place, size: float, *, seed: int, tape: Tape | None = None
) -> Outcome:
    """One cell, once. Raises: ConfigError: as `simulate`."""
    shares = deal(study, place.learners, size, seed=seed)
    lives = lives_of(study, place, shares, seed=seed, tape=tape)
    horizon_s = study.horizon_s
    capacity = sum(share.capacity for share in shares)
    return Outcome(
        goodput=100 * sum(life.work for life in lives) / (capacity * horizon_s),
        uptime=100 * union_s([life.spells for life in lives]) / horizon_s,
        tape=Tape(
            learners=place.learners,
            horizon_s=horizon_s,
            faults=tuple(
                sorted((f for life in lives for f in life.faults), key=lambda fault: fault.time_s)
            ),
        ),
    )


def lives_of(
    study: Study, place: Place, shares: Sequence[Share], *, seed: int, tape: Tape | None = None
) -> list[Life]:
    """What becomes of the learners that have these shares.

    Raises: ConfigError: a tape of other learners.
    """
    if tape and place.learners not in (1, tape.learners):
        raise ConfigError(
            f"the tape is of {tape.learners} learners, not of {place.learners}",
            hint=f"Use --learners {tape.learners}; data-parallel training takes the faults of all",
        )
    return [_life(study, place, share, number, seed, tape) for number, share in enumerate(shares)]


def _life(
    study: Study, place: Place, share: Share, number: int, seed: int, tape: Tape | None
) -> Life:
    if tape is None:
        lots = Random(f"{seed}/{number}")  # noqa: S311 - a history, not a secret
        failures: Lots | Played = Lots(study.machines, lots)
    else:
        away = (f for f in tape.faults if f.kind in AWAY)
        mine = (f for f in away if place.learners == 1 or f.learner == number)
        failures = Played(mine)
    return live(
        share,
        failures,
        study.times,
        horizon_s=study.horizon_s,
        elastic=place.method != "data-parallel",
        spares=study.spares,
        number=number,
    )


def deal(study: Study, learners: int, size: float, *, seed: int) -> list[Share]:
    """The fleet's slices in the order of their kinds, in parts as equal as can be, one per learner.

    Raises: ConfigError: fewer slices than learners.
    """
    lots = Random(f"{seed}/speeds")  # noqa: S311 - a history, not a secret
    slices: list[tuple[int, float]] = []
    for number, kind in enumerate(study.machines):
        count = max(1, round(size * kind.chips / kind.slice_chips))
        spread = kind.speed_spread
        slices += (
            (number, kind.speed * (max(SLOWEST, lots.gauss(1.0, spread)) if spread else 1.0))
            for _ in range(count)
        )
    if len(slices) < learners:
        raise ConfigError(
            f"{learners} learners cannot share {len(slices)} slices", hint="Give each one or more"
        )
    slice_chips = tuple(kind.slice_chips for kind in study.machines)
    bounds = [len(slices) * number // learners for number in range(learners + 1)]
    return [_share(slices[start:end], slice_chips) for start, end in pairwise(bounds)]


def _share(slices: list[tuple[int, float]], slice_chips: tuple[int, ...]) -> Share:
    counts = [0] * len(slice_chips)
    for kind, _ in slices:
        counts[kind] += 1
    return Share(
        slices=tuple(counts),
        slice_chips=slice_chips,
        slowest=min(speed for _, speed in slices),
        capacity=sum(slice_chips[kind] * speed for kind, speed in slices),
    )
