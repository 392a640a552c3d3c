"""Numbers, durations and names, short enough for a table. ASCII only: any terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def short_number(value: float) -> str:
    """A count in at most five characters: 950, 1.2k, 37k, 4.1M, 12G."""
    for limit, divisor, unit in ((1e3, 1, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")):
        if abs(value) < limit * 0.9995:
            scaled = value / divisor
            return f"{scaled:.1f}{unit}" if unit and abs(scaled) < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value / 1e12:.1f}T"


def short_time(seconds: float) -> str:
    """A duration in its two largest units: 0.4 s, 12 s, 1m20s, 2h03m, 3d04h."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, size, below, part in (("m", 60, 3600, "s"), ("h", 3600, 86400, "m")):
        if whole < below:
            return f"{whole // size}{unit}{whole % size * 60 // size:02d}{part}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def fine_time(seconds: float) -> str:
    """The same for what may take milliseconds: 4 ms, 1.2 s."""
    return short_time(seconds) if seconds >= 1 else f"{1e3 * max(0.0, seconds):.0f} ms"


def times(number: int) -> str:
    """How often: once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Names of at most `width` characters (4 or more) that stay different from each other.

    A long one loses its middle, marked by "~"; if that makes two equal, more of its start or end
    is kept instead, and if nothing helps they are numbered.
    """
    for start in _starts(width - 1):
        cut = [_cut(name, width, start) for name in names]
        if len(set(cut)) == len(set(names)):
            return cut
    numbered = {name: f"~{number}" for number, name in enumerate(dict.fromkeys(names), 1)}
    return [name[: width - len(numbered[name])] + numbered[name] for name in names]


def _starts(room: int) -> Iterator[int]:
    """How many characters of the start to keep, the best look first."""
    half = room // 2
    yield half
    for step in range(1, room + 1):
        yield from (start for start in (half - step, half + step) if 0 <= start <= room)


def _cut(name: str, width: int, start: int) -> str:
    if len(name) <= width:
        return name
    end = width - 1 - start
    return f"{name[:start]}~{name[len(name) - end :]}"
