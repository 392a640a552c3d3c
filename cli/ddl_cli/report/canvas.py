"""What plots are made of: panels, axes in tokens and time, and the text of an SVG picture. Needs
matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from ddl.errors import ConfigError
from ddl_cli.units import short_number, short_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS_MAX: Final = 200
"""More than these are averaged in groups: a picture has no more room."""


class Plot(NamedTuple):
    """One picture.

    Attributes:
        says: what it shows, in words, for who cannot see it.
    """

    title: str
    svg: str
    says: str


def figure_class(needed_by: str) -> type[Figure]:
    """Matplotlib's figure. Raises: ConfigError: it is not installed; `needed_by` says for what."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"matplotlib is not installed: {needed_by} needs it",
            hint="Install the extra: pip install 'decoupled-diloco[plot]'",
        ) from error
    return Figure


def grouped(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """The same curve in at most POINTS_MAX points: means of neighbours."""
    size = -(-len(xs) // POINTS_MAX)
    starts = range(0, len(xs), size)
    return (
        [mean(xs[start : start + size]) for start in starts],
        [mean(ys[start : start + size]) for start in starts],
    )


def tokens_along(axes: Axes) -> None:
    """Tokens from left to right."""
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))


def time_along(axes: Axes) -> None:
    """Seconds from left to right."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("time")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: short_time(value))


def panels(num: int, *, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels side by side."""
    figure = figure_class("a page")(figsize=(9, height), layout="constrained")
    panels = [figure.add_subplot(1, num, 1 + i) for i in range(num)]
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def picture(title: str, figure: Figure, says: str) -> Plot:
    """The figure as a plot."""
    file = io.StringIO()
    # without a date and random ids the same run gives the same page
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return Plot(title, "<svg" + file.getvalue().partition("<svg")[2], says)
