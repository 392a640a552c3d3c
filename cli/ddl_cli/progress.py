"""How far a long piece of work is: a bar on a terminal, nothing in a pipe or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Tick = Callable[[str, int, int], None]
"""Told what is being worked on, and how many of how many are done."""


@contextmanager
def bars() -> Iterator[Tick]:
    """A bar on stderr for each piece of work, while the block lasts."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not Console(stderr=True).is_terminal,
    ) as progress:
        tasks = {}

        def tick(what: str, done: int, whole: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=whole)
            progress.update(tasks[what], completed=done, total=whole)

        yield tick
