"""What `ddl simulate` would have said of a trial: the protocol model under the same faults."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from ddl.config import Settings
from ddl.simulate.protocol.sweep import simulate_runs
from ddl.simulate.settings import Machines, Protocol, Study, Times
from ddl.simulate.tape import Fault, Tape
from ddl_cli.chaos.schedule import tape_of

LOCAL_MBIT: Final = 10_000.0
"""Of links within one machine; what is sent over them is small beside it."""

LOCAL_LATENCY_S: Final = 0.002

START_S: Final = 5.0
"""From a process' start to its first step, where no learner was ever started again."""


def predicted_ratio(
    tape: Tape,
    *,
    settings: Settings,
    parameters: int,
    step_s: float,
    starts_s: Iterable[float],
) -> float:
    """Steps that the learners of this fleet would take, as a share of those without faults.

    Args:
        settings: of the run.
        parameters: of its model.
        step_s: a learner's step, without faults.
        starts_s: from the starts of learners' processes to their first steps, as they were measured.
            They are the one thing of this machine that the model cannot know.
    """
    start_s = median([*starts_s] or [START_S])
    study = Study(
        methods=("decoupled",),
        learners=(tape.learners,),
        seeds=1,
        times=Times(step_s=step_s, down_s=0.0, up_s=0.0, restart_s=0.0),
        machines=(Machines(chips=tape.learners, slice_chips=1, mtbi_s=1e12, return_scale_s=1.0),),
        protocol=Protocol(
            parameters=parameters,
            up_mbit=LOCAL_MBIT,
            down_mbit=LOCAL_MBIT,
            coordinator_mbit=LOCAL_MBIT,
            latency_s=LOCAL_LATENCY_S,
            settings=settings,
        ),
    )
    absences = tape_of(
        (fault for one in tape.faults if (fault := _absence(one, start_s)) is not None),
        learners=tape.learners,
        horizon_s=tape.horizon_s,
    )
    (run,) = simulate_runs(study, {}, tape=absences)
    return run.goodput / 100


def _absence(fault: Fault, start_s: float) -> Fault | None:
    """The fault as time in which its learner takes no step; None if it goes on stepping."""
    match fault.kind:
        case "kill":
            lasts_s = fault.duration_s + start_s
        case "stop":
            lasts_s = fault.duration_s
        case "slow":  # it stands still for half of the time
            lasts_s = fault.duration_s / 2
        case _:
            return None
    return Fault(time_s=fault.time_s, learner=fault.learner, kind="kill", duration_s=lasts_s)
