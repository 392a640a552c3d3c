"""The baseline's share of `ddl chaos --against ddp`: tuned in its favour, measured, and recomputed as if
each restart had the machine for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, median

from ddl.errors import DdlError
from ddl.protocol.records import Record
from ddl.simulate.tape import Tape
from ddl_cli.chaos.acts import acts
from ddl_cli.chaos.gang import Drill, drill
from ddl_cli.chaos.schedule import tape_of
from ddl_cli.chaos.steps import count_in, seconds_without
from ddl_cli.units import short_time

FREE_CHECKPOINT_EVERY = 20
"""Steps between checkpoints where nothing fails, to measure what one takes."""


class DdpReport(Record, frozen=True, kw_only=True):
    """Data-parallel training under the same tape.

    `goodput_ratio`: steps that it got further by, as a share of those that it takes in the same time
    where nothing fails. `uncontended_goodput_ratio`: the same, worked out for restarts that take
    `uncontended_start_s`: the start of one rank alone, measured in the same call. `restart_s`: from a
    death to the next step, of all that were not cut short by the next death. `checkpoint_every`:
    steps, the best by Daly's rule for the cost of a checkpoint and this tape.
    """

    goodput_ratio: float
    uncontended_goodput_ratio: float
    uncontended_start_s: float
    seconds_without_any_step: int
    restart_s: tuple[float, ...]
    median_restart_s: float | None
    deaths: int
    steps: int
    useful_steps: int
    failure_free_steps_per_s: float
    checkpoint_every: int
    checkpoint_s: float
    problems: tuple[str, ...] = ()


def measure_ddp(
    folder: Path,
    tape: Tape,
    *,
    args: Mapping[str, object],
    free_s: float,
    say: Callable[[str], None],
) -> DdpReport:
    """Start it alone, run it without faults, then under the tape. Raises: DdlError."""

    def run(name: str, of: Tape, every: int) -> Drill:
        return drill(folder / name, of, args=args, checkpoint_every=every, say=say)

    say("the baseline: one rank alone, to see how fast it starts")
    alone = run("alone", tape_of((), learners=1, horizon_s=1.0), FREE_CHECKPOINT_EVERY)
    say(f"the baseline without faults, for {short_time(free_s)}")
    nothing = tape_of((), learners=tape.learners, horizon_s=free_s)
    free = run("without-faults", nothing, FREE_CHECKPOINT_EVERY)
    rate = free.useful_steps / free.window.seconds
    if not rate:
        raise DdlError(
            f"the baseline took no step in {short_time(free_s)} without faults",
            hint="Give it longer: --free-seconds 60",
        )
    every = best_interval(free.checkpoint_s, _mtbf_s(tape), 1 / rate)
    say(f"the baseline under the same tape, a checkpoint every {every} steps")
    hit = run("chaos", tape, every)
    return judge(tape, hit, rate=rate, every=every, start_s=alone.start_s)


def judge(tape: Tape, hit: Drill, *, rate: float, every: int, start_s: float) -> DdpReport:
    """Put the baseline's figures together.

    Args:
        rate: steps a second where nothing fails.
    """
    restarts = hit.restarts_s
    return DdpReport(
        goodput_ratio=hit.useful_steps / (rate * hit.window.seconds),
        uncontended_goodput_ratio=replayed(tape, start_s=start_s, checkpoint_s=every / rate),
        uncontended_start_s=start_s,
        seconds_without_any_step=seconds_without([hit.steps], hit.window),
        restart_s=tuple(restarts),
        median_restart_s=median(restarts) if restarts else None,
        deaths=len(hit.deaths),
        steps=count_in(hit.steps, hit.window),
        useful_steps=hit.useful_steps,
        failure_free_steps_per_s=rate,
        checkpoint_every=every,
        checkpoint_s=hit.checkpoint_s,
    )


def best_interval(checkpoint_s: float, mtbf_s: float, step_s: float) -> int:
    """Steps between checkpoints that lose least: sqrt(2 * cost * mean time between failures) (Young,
    Daly), at least 1."""
    if mtbf_s == math.inf:
        return FREE_CHECKPOINT_EVERY
    return max(1, round(math.sqrt(2 * checkpoint_s * mtbf_s) / step_s))


def _mtbf_s(tape: Tape) -> float:
    kills = sum(fault.kind == "kill" for fault in tape.faults)
    return tape.horizon_s / kills if kills else math.inf


def replayed(tape: Tape, *, start_s: float, checkpoint_s: float) -> float:
    """Share of the time of a tape that leads further, if a restart takes `start_s`.

    A killed rank sends all back to the last checkpoint, one each `checkpoint_s` of training. While any
    rank is stopped nobody steps. In its favour, as in `gang`: what is starting is not hit, and a
    checkpoint costs nothing.
    """
    now, ready, done = 0.0, 0.0, 0.0
    halted: set[str] = set()

    def train_until(at: float) -> float:
        return 0.0 if halted else max(0.0, at - max(now, ready))

    for act in acts(tape):
        if act.verb not in ("kill", "halt", "resume") or not act.target.startswith("learner-"):
            continue
        at = min(act.at_s, tape.horizon_s)
        done += train_until(at)
        now = at
        if act.verb == "halt":
            halted.add(act.target)
        else:
            halted.discard(act.target)
        if act.verb == "kill" and ready <= at < tape.horizon_s:
            done = math.floor(done / checkpoint_s + 1e-9) * checkpoint_s
            ready = now + start_s
    done += train_until(tape.horizon_s)
    return done / tape.horizon_s


def rows_of(report: DdpReport) -> list[tuple[str, str]]:
    """The summary as pairs of a name and a sentence."""
    restarts = "no restart was finished"
    if report.restart_s:
        restarts = (
            f"{short_time(mean(report.restart_s))} on average, "
            f"{short_time(max(report.restart_s))} at most, {len(report.restart_s)} finished"
        )
    return [
        (
            "goodput",
            f"{report.goodput_ratio:.1%} of its step rate without faults: {report.useful_steps} "
            f"steps further, {report.steps} taken",
        ),
        (
            "  recomputed",
            f"{report.uncontended_goodput_ratio:.1%}, if every restart took "
            f"{short_time(report.uncontended_start_s)} as one rank alone does",
        ),
        ("restarts", f"{report.deaths} deaths; {restarts}"),
        (
            "checkpoints",
            f"every {report.checkpoint_every} steps, the best for this tape; "
            f"{1e3 * report.checkpoint_s:.0f} ms each",
        ),
        ("nobody stepped", f"in {report.seconds_without_any_step} s"),
    ]
