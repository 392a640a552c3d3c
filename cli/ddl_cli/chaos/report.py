"""What a trial came to beside one without faults: as a record, and as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from ddl.protocol.records import LedgerTotals, Record
from ddl.protocol.wire import SCHEMA
from ddl.simulate.tape import Tape
from ddl_cli.chaos import baseline
from ddl_cli.chaos.baseline import DdpReport
from ddl_cli.chaos.measure import Measured
from ddl_cli.chaos.model import predicted_ratio
from ddl_cli.demo import books as bookkeeping
from ddl_cli.units import short_number, short_time


class FaultRow(Record, frozen=True, kw_only=True):
    """A fault that was done.

    `at_s`: since the tape began; `at`: seconds since the epoch. `pid`: the process that was hit, 0 if
    there was none. `recovery_s`: from the fault's end until `recovered_by` (a step of the learner, a
    merge of its work, a version of the run), None if that did not come any more.
    """

    kind: str
    target: str
    pid: int
    at_s: float
    at: float
    lasted_s: float
    recovered_by: str
    recovery_s: float | None


class LearnerTime(Record, frozen=True, kw_only=True):
    """Seconds, added up over learners.

    `whole_s`: of all learners, dead or alive. `living_s`: of processes that were there and not
    stopped; `starting_s`: the part of it before a process' first step.
    """

    whole_s: float
    living_s: float
    starting_s: float


class Losses(Record, frozen=True, kw_only=True):
    """Held-out loss of both runs after equally many merged tokens."""

    tokens: float
    chaos: float
    failure_free: float


class DdlReport(Record, frozen=True, kw_only=True):
    """`ddl` under faults.

    `goodput_ratio`: steps that came to some use, as a share of those that the failure-free run would
    have taken in the same learner-time (`living_s`), starts included; `kept_rate_ratio`: as a share of
    those that it would have taken in the same time, nobody dead. `step_rate_ratio`: all steps, lost
    ones too, as such a share; `model_rate_ratio`: what the protocol model of `ddl simulate` has for it
    under the same tape, given how long the processes of this machine took to start. `versions_lost`:
    versions that were shown and are not in the log as they were, or have objects that are missing or
    damaged.
    `seconds_without_any_step`: whole seconds in which no learner took a step. `median_recovery_s` by
    kind. `step_s`: a simulated accelerator's; the real update of a small model is a part of it.
    """

    goodput_ratio: float
    versions_lost: int
    seconds_without_any_step: int
    faults: tuple[FaultRow, ...]
    ledger: LedgerTotals
    learners: int
    seconds: float
    versions: int
    steps: int
    lost_steps: float
    allowed_steps: float
    kept_rate_ratio: float
    step_rate_ratio: float
    model_rate_ratio: float
    failure_free_steps_per_s: float
    learner_time: LearnerTime
    median_recovery_s: dict[str, float]
    step_s: float
    loss: Losses | None
    restarted: tuple[str, ...]
    problems: tuple[str, ...]


class Report(Record, frozen=True, kw_only=True):
    """The document of `ddl chaos --json`; `ddp` is there with `--against ddp`."""

    schema: int = SCHEMA
    ddl: DdlReport
    ddp: DdpReport | msgspec.UnsetType = msgspec.UNSET
    tape: Tape


def judge(chaos: Measured, free: Measured, losses: Losses | None, *, tape: Tape) -> DdlReport:
    """Put everything together, and say what is not as it must be."""
    course = chaos.course
    assert course.view is not None, "the trial has ended"
    faults = tuple(_rows(chaos))
    allowed = free.steps_per_s * chaos.living_s
    dead = tuple(name for name in chaos.steps if name not in course.left)
    useful, whole_s = chaos.num_steps - chaos.lost_steps, chaos.window.seconds * len(chaos.steps)
    run, free_steps = chaos.books.run, free.steps_per_s * whole_s
    return DdlReport(
        goodput_ratio=useful / allowed,
        versions_lost=chaos.versions_lost,
        seconds_without_any_step=chaos.seconds_without,
        faults=faults,
        ledger=bookkeeping.run_totals(chaos.books, course.view),
        learners=len(chaos.steps),
        seconds=chaos.window.seconds,
        versions=chaos.books.state.global_version,
        steps=chaos.num_steps,
        lost_steps=chaos.lost_steps,
        allowed_steps=allowed,
        kept_rate_ratio=useful / free_steps,
        step_rate_ratio=chaos.num_steps / free_steps,
        model_rate_ratio=predicted_ratio(
            tape,
            settings=run.settings,
            parameters=run.layout.num_parameters,
            step_s=1 / free.steps_per_s,
            starts_s=chaos.starts_s,
        ),
        failure_free_steps_per_s=free.steps_per_s,
        learner_time=LearnerTime(
            whole_s=whole_s,
            living_s=chaos.living_s,
            starting_s=chaos.starting_s,
        ),
        median_recovery_s=_medians(faults),
        step_s=float(chaos.books.run.settings.task.args["step_s"]),
        loss=losses,
        restarted=tuple(course.restarts),
        problems=(
            *course.problems,
            *bookkeeping.problems(chaos.books, course.view, killed=dead),
            *(["a version that was shown is lost"] if chaos.versions_lost else []),
        ),
    )


def _rows(chaos: Measured) -> Iterator[FaultRow]:
    for hit in sorted(chaos.course.incidents, key=lambda hit: hit.at):
        by, at = chaos.recovered_at(hit)
        yield FaultRow(
            kind=hit.fault.kind,
            target=hit.target,
            pid=hit.pid,
            at_s=hit.at - chaos.window.begin,
            at=hit.at,
            lasted_s=hit.over_at - hit.at,
            recovered_by=by,
            recovery_s=None if at is None else at - hit.over_at,
        )


def _medians(faults: Sequence[FaultRow]) -> dict[str, float]:
    by_kind = defaultdict(list)
    for row in faults:
        if row.recovery_s is not None:
            by_kind[row.kind].append(row.recovery_s)
    return {kind: median(values) for kind, values in by_kind.items()}


def text(report: Report) -> str:
    """The summary for people: one table, `ddl` above data-parallel training."""
    return "\n".join(
        line
        for title, rows in parts_of(report)
        for line in (title, *(f"  {name:<14}  {value}" for name, value in rows))
    )


def parts_of(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """What was put through it, and its summary as pairs of a name and a sentence."""
    parts = [("ddl", rows_of(report.ddl))]
    if isinstance(report.ddp, DdpReport):
        parts.append(("data-parallel (torchrun)", baseline.rows_of(report.ddp)))
    return parts


def rows_of(report: DdlReport) -> list[tuple[str, str]]:
    """The summary as pairs of a name and a sentence."""
    time = report.learner_time
    ledger = msgspec.structs.asdict(report.ledger)
    tokens = ", ".join(
        f"{short_number(value)} {fate.replace('_', ' ')}" for fate, value in ledger.items() if value
    )
    rows = [
        (
            "goodput",
            f"{report.goodput_ratio:.1%} of what the living learner-time allows: "
            f"{report.steps} steps, {report.lost_steps:.0f} of them lost, "
            f"{report.allowed_steps:.0f} allowed; {report.kept_rate_ratio:.1%} of the step rate "
            "without faults",
        ),
        (
            "model",
            f"of the step rate without faults {report.step_rate_ratio:.1%} were kept; `ddl simulate` "
            f"has {report.model_rate_ratio:.1%} under the same tape",
        ),
        (
            "learner-time",
            f"{short_time(time.living_s)} of {short_time(time.whole_s)} living, "
            f"{short_time(time.starting_s)} of it starting",
        ),
        (
            "without faults",
            f"{report.failure_free_steps_per_s:.2f} steps/s of a learner, in the same call; "
            f"a step is a simulated one of {report.step_s:g} s with a small real update in it",
        ),
        (
            "versions",
            f"{report.versions} made, {report.versions_lost} lost",
        ),
        ("nobody stepped", f"in {report.seconds_without_any_step} of {report.seconds:.0f} s"),
        ("tokens", tokens),
        ("recovery", _recovery(report)),
    ]
    if report.loss is not None:
        loss = report.loss
        rows.append(
            (
                "held-out loss",
                f"{loss.chaos:.4f}, without faults {loss.failure_free:.4f}, "
                f"both after {short_number(loss.tokens)} merged tokens",
            )
        )
    if report.restarted:
        rows.append(("started again", f"{len(report.restarted)} that ended by themselves"))
    return rows


def _recovery(report: DdlReport) -> str:
    counts: dict[str, int] = defaultdict(int)
    for row in report.faults:
        counts[row.kind] += 1
    return ", ".join(
        f"{count} x {kind} {short_time(report.median_recovery_s[kind])}"
        if kind in report.median_recovery_s
        else f"{count} x {kind} -"
        for kind, count in counts.items()
    )
