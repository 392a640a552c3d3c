"""Work on one tensor by several threads; the loops run without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import torch

from ddl.fused.sizes import TILE

SHARE: Final = 8 * TILE
"""Elements that a thread takes at a time: long beside the cost of handing it out, and short enough
that threads which other processes slow down do not keep the rest waiting."""


def in_shares(numel: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, stop)` for parts that cover `numel` elements, at borders of tiles.

    As many threads as torch would use (`torch.set_num_threads`) take them; small tensors stay in
    the caller's.
    """
    starts = range(0, numel, SHARE)
    threads = min(torch.get_num_threads(), len(starts))
    if threads < 2:
        if numel:
            work(0, numel)
        return
    for _ in _pool(threads).map(lambda at: work(at, min(at + SHARE, numel)), starts):
        pass  # what a share raised is raised here


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="ddl-fused")
