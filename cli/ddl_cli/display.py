"""How snapshots of a run are shown: a live screen, plain lines, one table, or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

import typer
from rich.console import Console
from rich.live import Live

from ddl.core.membership import PRESENT
from ddl.protocol.records import Fact, RunSnapshot
from ddl.protocol.wire import canonical
from ddl_cli.view.head import summary
from ddl_cli.view.pages import printed
from ddl_cli.view.paper import canvas
from ddl_cli.view.screen import Seen, picture
from ddl_cli.view.trail import Trail

SUMMARY_EVERY_S: Final = 10.0
"""How often plain lines say where the run stands, by the run's own clock."""

LATE_S: Final = 1.5
"""An event that is told more than so long after a later one has its own time beside it."""


class Display(Protocol):
    """Shows snapshots, one after the other, while its context is open."""

    def running(self) -> AbstractContextManager[object]: ...

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None: ...


class Screen:
    """The overview, redrawn in place; leaves the last picture standing. For `ddl demo`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._trail = Trail()

    def running(self) -> AbstractContextManager[object]:
        return self._live

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None:
        seen = Seen(self._trail.add(snapshot), notice, self._trail.rates)
        self._live.update(picture(self._console, seen, None), refresh=True)


class Table:
    """The whole picture, printed once for every snapshot."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None:
        for line in printed(snapshot, canvas(self._console), notice=notice):
            self._console.print(line, soft_wrap=True)


class Lines:
    """A plain line for every event, and now and then one for where the run stands: for logs.

    Times go forward only: some events are told late, and get the time of the line before.

    Args:
        since_at: events up to this instant are old, and left out.
        left_out: names of events that are too many to be told one by one.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        since_at: float = float("-inf"),
        left_out: Collection[str] = (),
    ) -> None:
        self._write = write
        self._since_at = since_at
        self._left_out = left_out
        self._seen: set[tuple[float, str]] = set()
        self._summary_at = self._told_at = float("-inf")
        self._notice = False

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None:
        if bool(notice) != self._notice:
            self._notice = bool(notice)
            self._write(f"{_clock(time.time())} {notice or 'Redis is back'}")
        for fact in snapshot.events:
            is_new = fact.at > self._since_at and _name(fact) not in self._seen
            if is_new and fact.name not in self._left_out:
                self._line(fact.at, fact.text)
        self._seen = {_name(fact) for fact in snapshot.events}
        if not notice and snapshot.taken_at >= self._summary_at + SUMMARY_EVERY_S:
            self._summary_at = snapshot.taken_at
            self._line(snapshot.taken_at, summary(snapshot))

    def _line(self, at: float, text: str) -> None:
        self._told_at = max(self._told_at, at)
        late = f" (at {_clock(at)})" if self._told_at - at > LATE_S else ""
        self._write(f"{_clock(self._told_at)} {text}{late}")


class JsonLines:
    """One JSON object a line."""

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def show(self, snapshot: RunSnapshot, notice: str = "") -> None:
        if notice:
            typer.echo(notice, err=True)
        typer.echo(canonical(snapshot))


def is_over(snapshot: RunSnapshot) -> bool:
    """Whether nothing more will happen: the run has ended and its learners have gone."""
    present = any(learner.state in PRESENT for learner in snapshot.learners)
    return snapshot.run.state == "stopped" and not present


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _name(fact: Fact) -> tuple[float, str]:
    return (fact.at, fact.text)
