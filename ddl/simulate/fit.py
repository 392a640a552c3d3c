"""Where the constants of the preset `paper-table1` come from: `python -m ddl.simulate.fit`.

The paper gives no times. They are those of the grid below that come closest to its rows of **one**
learner (least squares; goodput and uptime count alike). Rows of several learners are left aside, so
that they test the model. How long a restart takes shows only in the row without elasticity, how long
pauses and absences take only in the elastic one; the length of a step is common to both. `steady` stands
for the simulation, so that no lots decide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from ddl.protocol.wire import canonical
from ddl.simulate import steady
from ddl.simulate.paper import TABLE_1, Figures, Place
from ddl.simulate.settings import PAPER, Machines, Method, Study, Times, preset

STEP_S: Final = [float(s) for s in range(5, 16)]
RESTART_S: Final = [float(s) for s in range(70, 101)]
PAUSE_S: Final = [s / 2 for s in range(20, 33)]
"""`down_s` = `up_s`: only their sum shows."""
RETURN_SCALE_S: Final = [200.0, 400.0, 800.0, 1200.0, 1800.0, 2400.0, 3600.0]

AWAY: Final = 1.5
"""Mean of the exponentiated Weibull distribution with shape 1 and exponent 2, over its scale."""

T = TypeVar("T")


def fit(figures: Mapping[Place, Figures]) -> Study:
    """The preset with the constants that come closest to those of `figures` that are of one learner."""
    given = preset(PAPER)
    (machines,) = given.machines

    def rigid_error(times: Times) -> float:
        return _error(
            "data-parallel",
            figures,
            machines,
            lambda size: steady.rigid(machines, times, size=size),
        )

    def elastic_error(pair: tuple[Times, float]) -> float:
        times, scale_s = pair
        return _error(
            "data-parallel-elastic",
            figures,
            machines,
            lambda size: steady.elastic(machines, times, size=size, away_s=AWAY * scale_s),
        )

    found: list[tuple[float, Times, float]] = []
    for step_s in STEP_S:
        rigid, times = _least(
            rigid_error,
            (Times(step_s=step_s, down_s=0.0, up_s=0.0, restart_s=s) for s in RESTART_S),
        )
        elastic, (times, scale_s) = _least(
            elastic_error,
            (
                (replace(times, down_s=pause_s, up_s=pause_s), scale_s)
                for pause_s in PAUSE_S
                for scale_s in RETURN_SCALE_S
            ),
        )
        found.append((rigid + elastic, times, scale_s))
    _, times, scale_s = min(found, key=lambda entry: entry[0])
    return replace(given, times=times, machines=(replace(machines, return_scale_s=scale_s),))


def _error(
    method: Method,
    figures: Mapping[Place, Figures],
    machines: Machines,
    settled: Callable[[float], Figures],
) -> float:
    """Sum of squares over the columns of one method, by one learner."""
    total = 0.0
    for place, known in figures.items():
        if (place.method, place.learners) == (method, 1):
            ours = settled(place.chips / machines.chips)
            total += (ours.goodput - known.goodput) ** 2 + (ours.uptime - known.uptime) ** 2
    return total


def _least(error: Callable[[T], float], candidates: Iterable[T]) -> tuple[float, T]:
    """The smallest error, and who has it."""
    return min(((error(made), made) for made in candidates), key=lambda pair: pair[0])


if __name__ == "__main__":
    sys.stdout.buffer.write(canonical(fit(TABLE_1)) + b"\n")
