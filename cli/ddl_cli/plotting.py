"""Plots as files. Matplotlib is an extra: only those who draw need it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddl.errors import ConfigError
from ddl.simulate.fleet import Cell
from ddl.simulate.protocol.tally import RunCell
from ddl_cli.report.canvas import figure_class
from ddl_cli.simulated import row_name, run_name
from ddl_cli.units import short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")


def draw_cells(file: Path, cells: Sequence[Cell], *, title: str) -> None:
    """Goodput over the size of the fleet, a curve per row of the table; crosses are the paper's.

    A fleet of one size gives bars. Raises: ConfigError: as `new_figure` and `save`.
    """
    figure = new_figure(file)
    axes = figure.add_subplot()
    rows = [(name, list(group)) for name, group in groupby(cells, key=row_name)]
    if len({cell.chips for cell in cells}) == 1:
        bars = axes.barh([name for name, _ in rows], [row[0].goodput for _, row in rows])
        axes.bar_label(bars, fmt="%.0f", padding=3)
        axes.invert_yaxis()
        axes.set_xlim(0, 105)
        axes.set_xlabel("goodput, %")
    else:
        _curves(axes, rows)
    axes.set_title(title)
    save(figure, file)


def draw_runs(file: Path, runs: Sequence[RunCell], *, title: str) -> None:
    """For every run what was trained and what was merged, and what its rounds were made of.

    Raises: ConfigError: as `new_figure` and `save`.
    """
    figure = new_figure(file)
    left, right = figure.subplots(1, 2, sharey=True)
    names, places = [run_name(run) for run in runs], range(len(runs))
    left.barh([at - 0.2 for at in places], [run.goodput for run in runs], 0.4, label="trained")
    left.barh([at + 0.2 for at in places], [run.merged for run in runs], 0.4, label="merged")
    left.set_xlabel("% of what all chips could do")
    left.set_yticks(places, names)
    left.invert_yaxis()
    fresh = [run.fresh for run in runs]
    right.barh(places, fresh, label="fresh")
    right.barh(places, [run.late for run in runs], left=fresh, label="late")
    right.set_xlabel("contributions in a round")
    for axes in (left, right):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    figure.suptitle(title)
    save(figure, file)


def _curves(axes: Axes, rows: list[tuple[str, list[Cell]]]) -> None:
    for name, row in rows:
        sizes = [cell.chips for cell in row]
        (curve,) = axes.plot(sizes, [cell.goodput for cell in row], marker=".", label=name)
        paper = [(cell.chips, cell.paper_goodput) for cell in row if cell.paper_goodput is not None]
        if paper:
            axes.plot(*zip(*paper, strict=True), "x", color=curve.get_color())
    axes.set_xscale("log")
    ticks = sorted({cell.chips for _, row in rows for cell in row})
    axes.set_xticks(ticks, [short_number(chips) for chips in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 100)
    axes.set_xlabel("chips")
    axes.set_ylabel("goodput, % (x: the paper's)")
    axes.grid(alpha=0.3)
    axes.legend()


def new_figure(file: Path) -> Figure:
    """An empty figure that is to become `file`.

    Raises: ConfigError: matplotlib is not installed, or the file's name says no format that we draw.
    """
    if file.suffix.lower() not in FORMATS:
        raise ConfigError(f"{file} is no plot", hint=f"Use a name in {' or '.join(FORMATS)}")
    return figure_class("--plot")(figsize=(8, 5), layout="constrained")


def save(figure: Figure, file: Path) -> None:
    """Write it. Raises: ConfigError: the file cannot be written."""
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error}") from error
