"""The tables of `ddl simulate`, for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ddl.simulate.fleet import Cell, Result
from ddl.simulate.protocol.tally import RunCell, RunResult
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


def run_lines(result: RunResult) -> Iterator[str]:
    """One row per run."""
    horizon = short_time(result.runs[0].horizon_s)
    yield f"runs of {horizon}; trained and merged: % of what all chips could do;"
    yield "fresh, late: contributions that a round merges, handed in for it or for an earlier one"
    yield ""
    yield _line("learners / chips, settings", iter(_COLUMNS))
    for run in result.runs:
        yield _line(run_name(run), _run_cells(run))
    if len(result.runs) == 1:
        yield ""
        yield from _details(result.runs[0])
    yield ""
    yield f"simulated in {short_time(result.seconds)}"


_COLUMNS = ("trained", "uptime", "merged", "rounds", "fresh", "late", "quorum", "grace", "sync")


def _run_cells(run: RunCell) -> Iterator[str]:
    waits = run.waits
    yield from (f"{ratio:.1f}" for ratio in (run.goodput, run.uptime, run.merged))
    yield str(run.rounds)
    yield from (f"{number:.1f}" for number in (run.fresh, run.late))
    sync_s = waits.fetch_s + waits.merge_s + waits.publish_s
    yield from (f"{seconds:.2f} s" for seconds in (waits.quorum_s, waits.grace_s, sync_s))


def _details(run: RunCell) -> Iterator[str]:
    rates = run.bytes_per_s
    for name, text in (
        ("a round every", "-" if run.round_every_s is None else short_time(run.round_every_s)),
        ("staleness", f"{run.staleness:.2f}"),
        ("fates", ", ".join(f"{number} {fate}" for fate, number in sorted(run.fates.items()))),
        ("a learner's link", _rates(rates.learner_up, rates.learner_down)),
        ("the coordinator's link", _rates(rates.coordinator_up, rates.coordinator_down)),
        ("shares, %", " ".join(f"{share:.1f}" for share in run.shares)),
        ("learners' processes", _starts(run)),
        ("coordinators' processes", str(run.coordinators)),
    ):
        yield f"{name:<{_NAME}}{text}"


def _rates(up: float, down: float) -> str:
    return f"{short_number(8 * up)}bit/s up, {short_number(8 * down)}bit/s down"


def _starts(run: RunCell) -> str:
    if run.start_s is None:
        return "none came to step"
    return f"{run.starts}, stepping {short_time(run.start_s)} after their start (median)"


def run_name(run: RunCell) -> str:
    """What a row of the table of runs, or a bar, is called."""
    settings = [f"{key.partition('.')[2]}={value}" for key, value in run.settings.items()]
    return ", ".join([f"{run.learners} / {short_number(run.chips)}", *settings])


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
