"""A row of numbers as bars: in one line, or several lines high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BARS: Final = "_.-:=+*#"


_EIGHTHS: Final = 8
"""Steps of height in one line of a chart."""


def curve(values: Sequence[float], width: int, *, ascii_only: bool) -> str:
    """At most `width` bars, each the mean of its part of `values`; numbers that are not finite are
    left out. Equal values are low bars."""
    means = _means(values, width)
    bars = _ASCII_BARS if ascii_only else _BARS
    return "".join(bars[level] for level in _levels(means, len(bars)))


def chart(values: Sequence[float], width: int, height: int, *, ascii_only: bool) -> list[str]:
    """The same as columns, `height` lines high, between the highest and the lowest mean, which stand
    at the left."""
    means = _means(values, width)
    if not means or height < 2:
        return []
    steps = 1 if ascii_only else _EIGHTHS
    levels = [level + 1 for level in _levels(means, height * steps)]
    labels = [f"{max(means):.4g}", *("" for _ in range(height - 2)), f"{min(means):.4g}"]
    label_width = max(map(len, labels))
    lines = []
    for row, label in enumerate(labels):
        below = (height - 1 - row) * steps
        cells = (_cell(level - below, steps, ascii_only=ascii_only) for level in levels)
        lines.append(f"{label:>{label_width}} {''.join(cells)}".rstrip())
    return lines


def _cell(level: int, steps: int, *, ascii_only: bool) -> str:
    if level <= 0:
        return " "
    return "#" if ascii_only else _BARS[min(level, steps) - 1]


def _means(values: Sequence[float], width: int) -> list[float]:
    known = [value for value in values if math.isfinite(value)]
    if not known or width < 1:
        return []
    count = min(width, len(known))
    edges = [round(i * len(known) / count) for i in range(count + 1)]
    return [sum(known[start:end]) / (end - start) for start, end in pairwise(edges)]


def _levels(means: Sequence[float], count: int) -> list[int]:
    """Each value as one of `count` levels, from 0 for the least; equal ones are the least."""
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (count - 1) / (high - low) if high > low else 0.0
    return [round((mean - low) * scale) for mean in means]


def bar(ratio: float, width: int) -> str:
    """How much of something is done, as `[####....]`; ASCII, so that it is the same everywhere."""
    done = round(min(1.0, max(0.0, ratio)) * (width - 2))
    return f"[{'#' * done}{'.' * (width - 2 - done)}]"
