"""Several pieces of one transfer at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from typing import TypeVar

from ddl.store.retry import Stop

T = TypeVar("T")


def run_all(pool: Executor, stop: Stop, jobs: Iterable[Callable[[], T]]) -> list[T]:
    """Results of all `jobs`, in order; returns or raises only when none of them runs any more.

    When one fails, or the caller is interrupted, `stop` is set and jobs that have not begun never
    do; jobs must watch `stop`. Raises: the first failure.
    """
    futures: list[Future[T]] = []
    try:
        for job in jobs:
            stop.check()
            futures.append(pool.submit(job))
        finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in finished:
            future.result()
        return [future.result() for future in futures]
    finally:
        if not all(future.done() for future in futures):
            stop.set()
            for future in futures:
                future.cancel()
            wait(futures)
