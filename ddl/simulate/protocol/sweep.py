"""Runs under every combination of some settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from msgspec.structs import replace

from ddl.config import Scalar
from ddl.simulate.fleet import places
from ddl.simulate.protocol.tally import RunCell
from ddl.simulate.protocol.world import World
from ddl.simulate.settings import Study
from ddl.simulate.tape import Tape


def of_runs(study: Study) -> Study:
    """The part of a study that `ddl` can run: decoupled, and as long as its `protocol` says."""
    return replace(study, methods=("decoupled",), horizon_s=study.protocol.horizon_s)


def simulate_runs(
    study: Study, sweep: Mapping[str, Sequence[Scalar]], *, tape: Tape | None = None
) -> tuple[RunCell, ...]:
    """One run for each cell of the study and each combination of the values of `sweep`.

    Raises: ConfigError: as `World`.
    """
    study = of_runs(study)
    if tape:
        study = replace(study, horizon_s=tape.horizon_s)
    combinations = [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]
    return tuple(
        World(study, place, size, changes=changes, tape=tape).run_to_the_end()
        for place, size in places(study)
        for changes in combinations
    )
