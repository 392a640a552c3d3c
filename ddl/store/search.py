"""Finding the end of a dense numbering by exact keys: no listing, which learners may not do."""

from __future__ import annotations

from collections.abc import Callable


def last_present(is_there: Callable[[int], bool], *, known: int = 0) -> int:
    """The largest n for which `is_there(n)`, given that all numbers from 1 to it are there.

    `known` is a number that is there for certain, 0 for none. Asks about 2 log2(n - known) times.
    """
    step = 1
    low = known
    while is_there(low + step):
        low += step
        step *= 2
    high = low + step  # not there; everything up to low is
    while high - low > 1:
        middle = (low + high) // 2
        if is_there(middle):
            low = middle
        else:
            high = middle
    return low
