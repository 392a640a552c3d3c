"""What happened in a trial: who was there when, which fault hit whom, what was shown to the world."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ddl.registry.base import View
from ddl.simulate.tape import Fault
from ddl_cli.chaos.steps import Span

NOT_YET: Final = Span(0.0, 0.0)


class Incident(NamedTuple):
    """A fault as it was done.

    Attributes:
        target: who was hit.
        pid: its process when it was hit; 0 if there was none.
        at, over_at: from the fault to its end, as the process was started again.
    """

    fault: Fault
    target: str
    pid: int
    at: float
    over_at: float


class Spans:
    """Times in which something held, by name; it begins and ends once at a time."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._done: dict[str, list[Span]] = defaultdict(list)

    def begin(self, name: str, at: float) -> None:
        """It holds from `at` on, unless it does already."""
        self._since.setdefault(name, at)

    def end(self, name: str, at: float) -> None:
        """It holds no more, if it did."""
        if name in self._since:
            self._done[name].append(Span(self._since.pop(name), at))

    def holds(self, name: str) -> bool:
        return name in self._since

    def of(self, name: str) -> list[Span]:
        """Those that have ended, in the order of time."""
        return self._done[name]


@dataclass(kw_only=True)
class Course:
    """One trial, from its first process to its last.

    Attributes:
        alive: when a learner's process was there; `halted`: when it was stopped.
        window: from the first step of the last learner to the end of the tape.
        heads: log record -> its digest, as Redis showed it at some time.
        restarts: sentences on processes that ended by themselves and were started again, as a
            service manager does.
        problems: sentences on what should not have been.
        left: learners that left in good order.
        view: Redis after the end.
    """

    alive: Spans = field(default_factory=Spans)
    halted: Spans = field(default_factory=Spans)
    window: Span = NOT_YET
    incidents: list[Incident] = field(default_factory=list)
    heads: dict[int, str] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    view: View | None = None
