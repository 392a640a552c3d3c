"""The plots of a report, each as the text of an SVG picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Final

from ddl_cli.report.canvas import (
    Plot,
    grouped,
    panels,
    picture,
    time_along,
    tokens_along,
    versions_along,
)
from ddl_cli.report.story import Mark, MarkKind, Step, Story
from ddl_cli.units import short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES: Final[dict[MarkKind, tuple[str, str]]] = {
    "joined": ("^", "tab:green"),
    "back": ("2", "tab:green"),
    "gone": ("x", "tab:red"),
    "left": ("v", "tab:gray"),
    "rollback": ("<", "tab:purple"),
    "held": ("s", "tab:red"),
    "coordinator": ("D", "tab:orange"),
    "changed": ("o", "tab:blue"),
}
MEANINGS: Final[dict[MarkKind, str]] = {
    "joined": "first work of a learner",
    "back": "a learner came back",
    "gone": "a learner died",
    "left": "a learner left",
    "rollback": "rolled back",
    "held": "held",
    "coordinator": "another coordinator took over",
    "changed": "settings changed, paused or resumed",
}


def draw_all(story: Story) -> list[Plot]:
    """All plots that the run has data for; none before the first version."""
    if not story.steps:
        return []
    drawers = (_loss, _participation, _shares, _work, _waits, _bytes, _health)
    return [plot for draw in drawers if (plot := draw(story)) is not None]


def _loss(story: Story) -> Plot | None:
    losses = story.losses
    if not losses:
        return None
    figure, (by_tokens, by_time) = panels(2, height=3.4)
    values = [loss for _, loss in losses]
    by_tokens.plot(*grouped([step.progress for step, _ in losses], values), color="black")
    by_time.plot(*grouped([step.at_s for step, _ in losses], values), color="black")
    by_tokens.set_xlabel("merged tokens")
    by_tokens.set_ylabel("training loss, mean of the learners")
    tokens_along(by_tokens)
    time_along(by_time)
    _draw_marks(by_tokens, story.marks, lambda mark: mark.progress)
    _draw_marks(by_time, story.marks, lambda mark: mark.at_s)
    if story.marks:
        by_time.legend(fontsize="small")
    says = (
        f"Training loss {values[0]:.3f} at the first version and {values[-1]:.3f} at version "
        f"{losses[-1][0].version}, after {short_number(story.progress)} tokens."
    )
    return picture("Loss", figure, says)


def _draw_marks(axes: Axes, marks: Sequence[Mark], x_of: Callable[[Mark], float]) -> None:
    """A symbol at the lower edge for everything that happened."""
    for kind, (symbol, colour) in STYLES.items():
        xs = [x_of(mark) for mark in marks if mark.kind == kind]
        if xs:
            axes.plot(
                xs,
                [0.03] * len(xs),
                symbol,
                color=colour,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
                label=MEANINGS[kind],
            )


def _participation(story: Story) -> Plot:
    figure, (axes,) = panels(1)
    versions = [float(step.version) for step in story.steps]
    counts = [float(len(step.tokens)) for step in story.steps]
    carried = [float(step.carried) for step in story.steps]
    axes.step(*grouped(versions, counts), where="mid", label="merged")
    axes.step(*grouped(versions, carried), where="mid", label="carried to a later version")
    versions_along(axes)
    axes.set_ylabel("contributions")
    axes.set_ylim(bottom=0)
    axes.legend()
    says = f"On average {mean(counts):.1f} contributions were merged into a version."
    return picture("Who took part", figure, says)


def _shares(story: Story) -> Plot:
    names = sorted(story.parts, key=lambda name: -story.parts[name].tokens["merged"])
    figure, (axes,) = panels(1, height=max(1.6, min(8.0, 0.3 * len(names) + 0.8)))
    left = [0.0] * len(names)
    for fate in story.parts[names[0]].tokens:
        values = [story.parts[name].tokens[fate] for name in names]
        if any(values):
            axes.barh(names, values, left=left, label=fate.replace("_", " "))
            left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("tokens")
    tokens_along(axes)
    axes.legend()
    merged = story.tokens["merged"] or 1.0
    says = "Share of the merged tokens: " + ", ".join(
        f"{name} {story.parts[name].tokens['merged'] / merged:.0%}" for name in names[:12]
    )
    return picture("What each learner contributed", figure, says + ".")


def _work(story: Story) -> Plot:
    """Tokens a second, in equal stretches of time: versions often come in pairs."""
    figure, (axes,) = panels(1)
    end_s = max(story.end_s, 1e-3)
    num = max(1, min(60, len(story.steps) // 2))
    tokens = [0.0] * num
    for step in story.steps:
        tokens[min(num - 1, int(num * step.at_s / end_s))] += sum(step.tokens.values())
    edges = [end_s * i / num for i in range(num + 1)]
    axes.stairs([value * num / end_s for value in tokens], edges, fill=True, alpha=0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("merged tokens/s")
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
    time_along(axes)
    _draw_marks(axes, story.marks, lambda mark: mark.at_s)
    if story.marks:
        axes.legend(fontsize="small", loc="upper left")
    kept = story.merged_share
    says = f"{story.progress / end_s:,.0f} merged tokens a second on average."
    if kept is not None:
        says += f" {kept:.1%} of the work that was handed in has been merged."
    return picture("Work done", figure, says)


def _waits(story: Story) -> Plot:
    figure, (axes,) = panels(1)
    parts = ("quorum_s", "grace_s", "fetch_s", "merge_s", "publish_s")
    versions = [float(step.version) for step in story.steps]
    rows = [grouped(versions, [getattr(s.waits, part) for s in story.steps]) for part in parts]
    axes.stackplot(rows[0][0], *(row[1] for row in rows), labels=[p[:-2] for p in parts])
    versions_along(axes)
    axes.set_ylabel("seconds")
    axes.legend(loc="upper left", ncols=len(parts))
    means = {part: mean(getattr(s.waits, part) for s in story.steps) for part in parts}
    says = "Where a round's time went, on average: " + ", ".join(
        f"{part[:-2]} {1e3 * value:.0f} ms" for part, value in means.items()
    )
    return picture("What rounds waited for", figure, says + ".")


def _bytes(story: Story) -> Plot:
    figure, (axes,) = panels(1)
    times = [step.at_s for step in story.steps]
    up = _cumulated([step.up_bytes for step in story.steps])
    down = _cumulated([step.down_bytes for step in story.steps])
    axes.plot(*grouped(times, up), label="up, all learners together")
    axes.plot(*grouped(times, down), label="down, each learner that holds all versions")
    axes.set_ylabel("bytes so far")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{short_number(value)}B")
    time_along(axes)
    axes.legend()
    says = f"{short_number(up[-1])}B of contributions went up, and {short_number(down[-1])}B down to each learner."
    return picture("Bytes", figure, says)


def _health(story: Story) -> Plot | None:
    known: list[tuple[str, str]] = [
        ("cos_peers", "contributions with their merge"),
        ("cos_prev", "step with the steps before"),
    ]
    figure, (cosines, norms) = panels(2)
    for name, label in known:
        rows = _known(story.steps, name)
        if rows:
            cosines.plot(*grouped(*zip(*rows, strict=True)), label=label, linewidth=1)
    rows = _known(story.steps, "step_norm")
    if not rows:
        return None
    norms.plot(*grouped(*zip(*rows, strict=True)), linewidth=1)
    cosines.set_ylabel("cosine")
    cosines.set_ylim(-1, 1)
    cosines.legend()
    norms.set_ylabel("length of the outer step (L2)")
    norms.set_ylim(bottom=0)
    for axes in (cosines, norms):
        versions_along(axes)
    says = f"Length of the outer step: {rows[0][1]:.3g} at first, {rows[-1][1]:.3g} at the end."
    return picture("Health of outer steps", figure, says)


def _known(steps: Sequence[Step], name: str) -> list[tuple[float, float]]:
    """Version and value, where the value is known."""
    values = ((float(s.version), getattr(s.health, name)) for s in steps)
    return [(version, value) for version, value in values if value is not None]


def _cumulated(values: Sequence[int]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums
