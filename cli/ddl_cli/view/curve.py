"""A row of numbers as a line of small bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BARS: Final = "_.-:=+*#"


def curve(values: Sequence[float], width: int, *, ascii_only: bool) -> str:
    """At most `width` bars, each the mean of its part of `values`; numbers that are not finite are
    left out. Equal values are low bars."""
    known = [value for value in values if math.isfinite(value)]
    if not known or width < 1:
        return ""
    count = min(width, len(known))
    edges = [round(i * len(known) / count) for i in range(count + 1)]
    means = [sum(known[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    bars = _ASCII_BARS if ascii_only else _BARS
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((mean - low) * scale)] for mean in means)


def bar(ratio: float, width: int) -> str:
    """How much of something is done, as `[####....]`; ASCII, so that it is the same everywhere."""
    done = round(min(1.0, max(0.0, ratio)) * (width - 2))
    return f"[{'#' * done}{'.' * (width - 2 - done)}]"
