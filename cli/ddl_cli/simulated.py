"""The table of `ddl simulate`, for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ddl.simulate.fleet import Cell, Result
from ddl_cli.units import short_number, short_time

_NAME, _CELL = 34, 10


def lines(result: Result, *, title: str) -> Iterator[str]:
    """One row per method and number of learners, one column per size; the paper's below ours."""
    yield f"goodput / uptime in %; {title}"
    yield ""
    for number, (name, group) in enumerate(groupby(result.cells, key=row_name)):
        row = list(group)
        if number == 0:
            yield _line("chips", (short_number(cell.chips) for cell in row))
        yield _line(name, (_pair(cell.goodput, cell.uptime) for cell in row))
        if any(cell.paper_goodput is not None for cell in row):
            yield _line(
                "  the paper", (_pair(cell.paper_goodput, cell.paper_uptime) for cell in row)
            )
            yield _line("  goodput, difference", map(_difference, row))
    if result.mean_abs_error_goodput is not None:
        compared = sum(cell.paper_goodput is not None for cell in result.cells)
        yield ""
        yield (
            f"mean absolute error of goodput: {result.mean_abs_error_goodput:.2f} points "
            f"over {compared} cells; {short_time(result.seconds)}"
        )


def row_name(cell: Cell) -> str:
    """What a row of the table, or a curve, is called."""
    return f"{cell.method}, {cell.learners}" if cell.method == "decoupled" else cell.method


def _line(name: str, cells: Iterator[str]) -> str:
    return f"{name:<{_NAME}}" + "".join(f"{text:>{_CELL}}" for text in cells)


def _pair(goodput: float | None, uptime: float | None) -> str:
    return "-" if goodput is None or uptime is None else f"{goodput:.0f} / {uptime:.0f}"


def _difference(cell: Cell) -> str:
    if cell.paper_goodput is None:
        return "-"
    return f"{cell.goodput - cell.paper_goodput:+.1f}"
