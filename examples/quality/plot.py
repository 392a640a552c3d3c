"""A table as a picture: how each row got there, and where its seeds ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from ddl_cli.plotting import new_figure, save
from ddl_cli.units import short_number
from examples.quality.cells import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SKIPPED = 1
"""Points at a curve's beginning that are left out: there the loss falls so far that no rows differ."""


def draw(file: Path, rows: Mapping[str, Sequence[Outcome]], *, title: str, unit: str) -> None:
    """Left the held-out loss over tokens, the mean of the seeds; right where each seed ended.

    Args:
        rows: label -> its outcomes, one a seed; the first row is what the others are measured against.
    Raises: ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = new_figure(file)
    left, right = figure.subplots(1, 2)
    _curves(left, rows)
    left.set_ylabel(f"held-out loss, {unit}")
    first = mean(outcome.heldout_loss for outcome in next(iter(rows.values())))
    labels = []
    for at, (label, outcomes) in enumerate(rows.items()):
        losses = [outcome.heldout_loss for outcome in outcomes]
        right.plot(losses, [at] * len(losses), "o", alpha=0.5)
        right.plot(mean(losses), at, "k|", markersize=14)
        labels.append(f"{label}\n{100 * (mean(losses) / first - 1):+.1f} %")
    right.set_yticks(range(len(labels)), labels)
    right.invert_yaxis()
    right.set_xlabel(f"at the end, {unit}; a dot is a seed")
    right.grid(alpha=0.3, axis="x")
    figure.suptitle(title)
    save(figure, file)


def _curves(axes: Axes, rows: Mapping[str, Sequence[Outcome]]) -> None:
    for label, outcomes in rows.items():
        curves = [outcome.curve[SKIPPED:] for outcome in outcomes]
        if all(curves):
            points = list(zip(*curves, strict=True))
            xs = [mean(tokens for tokens, _ in looks) for looks in points]
            ys = [mean(loss for _, loss in looks) for looks in points]
            axes.plot(xs, ys, marker=".", label=label)
    axes.xaxis.set_major_formatter(lambda tokens, _: short_number(tokens))
    axes.set_xlabel("tokens")
    axes.grid(alpha=0.3)
    axes.legend()
