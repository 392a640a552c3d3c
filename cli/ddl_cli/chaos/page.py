"""The page of `ddl chaos`: what was done to whom, and how little came of it. Needs matplotlib."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec

from ddl_cli.chaos.measure import Measured
from ddl_cli.chaos.report import DdlReport, FaultRow, Report, parts_of
from ddl_cli.chaos.steps import Span
from ddl_cli.report.canvas import Plot, grouped, panels, picture, time_along, tokens_along
from ddl_cli.report.page import document, figure, table
from ddl_cli.units import short_number, short_time

STYLES: Final = {
    "kill": ("x", "tab:red"),
    "stop": ("s", "tab:orange"),
    "slow": ("d", "tab:orange"),
    "cut": ("|", "tab:purple"),
    "corrupt": ("*", "tab:brown"),
    "kill-coordinator": ("X", "black"),
    "stop-coordinator": ("D", "black"),
    "restart-redis": ("v", "tab:blue"),
    "flush-redis": ("^", "tab:blue"),
}
"""Kind of fault -> its mark."""


def render(whole: Report, chaos: Measured, free: Measured, *, written_at: float) -> str:
    """The page. `written_at`: seconds since the epoch."""
    report = whole.ddl
    title = f"ddl chaos: goodput {report.goodput_ratio:.1%}, {report.versions_lost} versions lost"
    plots = (_steps(report, chaos, free), _lives(report, chaos), _loss(chaos, free))
    return document(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            f'<p class="quiet">{report.learners} learners on one machine, '
            f"{short_time(report.seconds)} under {len(report.faults)} faults, "
            f"written {_utc(written_at)}</p>",
            *(_facts(title, rows) for title, rows in parts_of(whole)),
            *(figure(plot) for plot in plots),
            "<h2>Faults</h2>",
            table(_HEAD, map(_cells, report.faults), numbers=(0, 4, 5, 6)),
            *(f"<p>FAILED: {escape(problem)}</p>" for problem in report.problems),
            "<details><summary>as JSON</summary><pre>",
            escape(json.dumps(msgspec.to_builtins(whole), indent=1)),
            "</pre></details>",
        ],
    )


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows)
    return f"<h2>{escape(title)}</h2><dl>{shown}</dl>"


_HEAD: Final = ("at", "time", "what", "who", "process", "lasted", "recovered after", "by a")


def _cells(row: FaultRow) -> tuple[str, ...]:
    recovery = "not any more" if row.recovery_s is None else short_time(row.recovery_s)
    return (
        short_time(row.at_s),
        _utc(row.at),
        row.kind,
        row.target,
        str(row.pid or "-"),
        short_time(row.lasted_s),
        recovery,
        row.recovered_by,
    )


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _steps(report: DdlReport, chaos: Measured, free: Measured) -> Plot:
    """Steps in each second, beside what all learners take where nothing fails."""
    drawn, (axes,) = panels(1, height=3.4)
    window = chaos.window
    counts = Counter(
        int(step.at - window.begin)
        for taken in chaos.steps.values()
        for step in taken
        if window.begin <= step.at < window.end
    )
    seconds = int(window.seconds)
    axes.stairs([counts[second] for second in range(seconds)], fill=True, alpha=0.5, label="steps")
    axes.axhline(free.steps_per_s * report.learners, color="black", label="without faults")
    for kind, (symbol, colour) in STYLES.items():
        xs = [row.at_s for row in report.faults if row.kind == kind]
        if xs:
            ys = [0.03] * len(xs)
            where = axes.get_xaxis_transform()
            axes.plot(xs, ys, symbol, color=colour, transform=where, clip_on=False, label=kind)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps in a second, all learners")
    time_along(axes)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    says = (
        f"{report.steps / window.seconds:.1f} steps a second of all learners together, "
        f"{free.steps_per_s * report.learners:.1f} where nothing fails; "
        f"{report.seconds_without_any_step} seconds without any."
    )
    return picture("Steps", drawn, says)


def _lives(report: DdlReport, chaos: Measured) -> Plot:
    """A bar for each life of each learner, pale until its first step, grey where it was stopped."""
    names = list(chaos.steps)
    drawn, (axes,) = panels(1, height=max(1.6, min(8.0, 0.3 * len(names) + 0.8)))
    for place, name in enumerate(names):
        steps, course = chaos.steps[name], chaos.course
        for life in course.alive.of(name):
            first = next((s.at for s in steps if s.at >= life.begin), life.end)
            axes.broken_barh(
                [_bar(life, chaos.window)], (place - 0.3, 0.6), color="tab:green", alpha=0.25
            )
            working = Span(min(first, life.end), life.end)
            axes.broken_barh([_bar(working, chaos.window)], (place - 0.3, 0.6), color="tab:green")
        halts = [_bar(span, chaos.window) for span in course.halted.of(name)]
        axes.broken_barh(halts, (place - 0.3, 0.6), color="silver")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    time_along(axes)
    time = report.learner_time
    says = (
        f"Of {short_time(time.whole_s)} of learner-time processes were there for "
        f"{short_time(time.living_s)}, {short_time(time.starting_s)} of it (pale) before their "
        "first step; grey: stopped."
    )
    return picture("Lives of the learners", drawn, says)


def _bar(span: Span, window: Span) -> tuple[float, float]:
    """Where it begins, and how long it is."""
    seen = span.within(window)
    return seen.begin - window.begin, seen.seconds


def _loss(chaos: Measured, free: Measured) -> Plot:
    drawn, (axes,) = panels(1, height=3.4)
    for name, run in (("under faults", chaos), ("without faults", free)):
        losses = run.story.losses
        if losses:
            tokens, values = [step.progress for step, _ in losses], [loss for _, loss in losses]
            axes.plot(*grouped(tokens, values), label=name)
    axes.set_xlabel("merged tokens")
    axes.set_ylabel("training loss, mean of the learners")
    axes.legend()
    tokens_along(axes)
    says = (
        f"Training loss over merged tokens: {short_number(chaos.story.progress)} under faults, "
        f"{short_number(free.story.progress)} without."
    )
    return picture("Loss", drawn, says)
