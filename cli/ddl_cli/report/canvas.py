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


TICKS: Final = 8
"""Labels along an axis that is as wide as the page, at most."""

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
TIME_STEPS: Final = (
    *(1, 2, 5, 10, 20, 30),
    *(_MINUTE * n for n in (1, 2, 5, 10, 20, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(_DAY * n for n in (1, 2, 5, 10, 20, 50, 100)),
)
"""Seconds between two labels of time: such as people count in."""


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
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(_ticks(axes), steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))


def versions_along(axes: Axes) -> None:
    """Global versions from left to right."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("version")
    axes.xaxis.set_major_locator(MaxNLocator(_ticks(axes), integer=True))


def time_along(axes: Axes) -> None:
    """Seconds from left to right, of what is drawn by now."""
    from matplotlib.ticker import MultipleLocator

    axes.set_xlabel("time")
    begin, end = axes.get_xlim()
    least = (end - begin) / _ticks(axes)
    step = next((step for step in TIME_STEPS if step >= least), least)
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(lambda value, _: short_time(value))


def _ticks(axes: Axes) -> int:
    """Labels that have room below a panel."""
    place = axes.get_subplotspec()
    return TICKS // (place.get_gridspec().ncols if place is not None else 1)


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
