"""The paper's Table 1 (arXiv 2604.21428): modelled goodput and uptime in percent, MTBI of a chip 1 year."""

from __future__ import annotations

from typing import Final, NamedTuple

from ddl.simulate.settings import Method


class Place(NamedTuple):
    """Which cell of a table."""

    method: Method
    learners: int
    chips: int


class Figures(NamedTuple):
    """What stands in it, in percent."""

    goodput: float
    uptime: float


CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)

_ROWS: Final[dict[tuple[Method, int], tuple[tuple[float, float], ...]]] = {
    ("data-parallel", 1): ((72, 72), (57, 57), (38, 38), (27, 27), (18, 18)),
    ("data-parallel-elastic", 1): ((88, 88), (80, 81), (69, 69), (58, 59), (40, 42)),
    ("decoupled", 2): ((94, 100), (88, 97), (80, 96), (70, 90), (54, 80)),
    ("decoupled", 4): ((96, 100), (93, 100), (89, 99), (82, 99), (73, 99)),
    ("decoupled", 8): ((98, 100), (96, 100), (94, 100), (88, 100), (80, 99)),
    ("decoupled", 16): ((99, 100), (98, 100), (96, 100), (93, 100), (86, 99)),
}
TABLE_1: Final = {
    Place(method, learners, chips): Figures(*figures)
    for (method, learners), row in _ROWS.items()
    for chips, figures in zip(CHIPS, row, strict=True)
}
