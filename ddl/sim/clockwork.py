"""Virtual time, and processes that live in it.

A process' threads are generators: they yield what they wait for, and are resumed at the virtual
instant at which it has come. Between two yields nothing else happens, so a history depends on
nothing but the order of instants; ties go in the order of planning.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

START = 1_000.0
"""Instant at which histories begin: instants differ from durations at a glance."""


class Signal:
    """Something that is waited for; `count` says how often it has come.

    Who waits names the count that it has seen, so what comes between two waits is not missed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Wake all who wait now."""
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def wait(self, wake: Callable[[], None]) -> None:
        """Have this called when it comes."""
        self._waiting.append(wake)


class Until(NamedTuple):
    """Wait for a signal, or until `seconds` are over."""

    signal: Signal
    seen: int
    seconds: float = inf


class Answer(Protocol):
    """Wait for a value that somebody brings; an error is raised."""

    def ask(self, go_on: Callable[[Any], None]) -> None:
        """Have the value brought to `go_on`, once."""


Wait: TypeAlias = float | Until | Answer
"""What a thread may yield; a number is seconds to sleep."""

Thread: TypeAlias = Generator[Wait, Any, T]


class KilledError(BaseException):
    """Raised within a thread whose process dies at this very point. Nothing may catch it."""


class Timeline:
    """The clock. It leaps from one planned action to the next.

    Attributes:
        now: seconds.
        events: how often a thread went on or a service was called.
    """

    def __init__(self) -> None:
        self.now = START
        self.events = 0
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Plan an action."""
        heapq.heappush(self._planned, (self.now + seconds, next(self._order), action))

    def run(self, until: float) -> None:
        """Let time pass until the instant `until`."""
        planned = self._planned
        while planned and planned[0][0] <= until:
            self.now, _, action = heapq.heappop(planned)
            action()
        self.now = until

    # ---- ddl.clock.Clock

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Process:
    """A process: it may be killed, or suspended and resumed, at any instant.

    Args:
        name: of the machine it runs on: stays the same over restarts.
        pid: never the same for two processes.
    """

    def __init__(self, timeline: Timeline, name: str, pid: int) -> None:
        self.timeline = timeline
        self.name = name
        self.pid = pid
        self.alive = True
        self.suspended = False
        self._held: list[tuple[Thread[None], Any]] = []

    @property
    def now(self) -> float:
        return self.timeline.now

    def start(self, thread: Thread[None]) -> None:
        """Run a thread, from now on."""
        self.go_on(thread, None)

    def kill(self) -> None:
        """End at once, as by SIGKILL. What is on its way to a service still gets there."""
        self.alive = False
        self._held.clear()

    def suspend(self) -> None:
        """Stand still, as by SIGSTOP: clocks go on, and so does what is on its way."""
        self.suspended = True

    def resume(self) -> None:
        """Go on, as by SIGCONT; all that was waited for meanwhile has come."""
        self.suspended = False
        held, self._held = self._held, []
        for thread, value in held:
            self.go_on(thread, value)

    def go_on(self, thread: Thread[None], value: Any) -> None:
        """Run a thread until its next wait, giving it what this one was for."""
        if not self.alive:
            return
        if self.suspended:
            self._held.append((thread, value))
            return
        self.timeline.events += 1
        while True:
            try:
                wait = thread.throw(value) if isinstance(value, Exception) else thread.send(value)
            except StopIteration:
                return
            except KilledError:
                self.kill()
                return
            if not isinstance(wait, Until) or wait.signal.count == wait.seen:
                break
            value = None  # what is waited for has come already
        if isinstance(wait, float):
            self.timeline.after(wait, partial(self.go_on, thread, None))
        elif isinstance(wait, Until):
            turn = _Turn(self, thread)
            wait.signal.wait(turn.soon)
            if wait.seconds < inf:
                self.timeline.after(wait.seconds, turn.come)
        else:
            wait.ask(partial(self.go_on, thread))


class _Turn:
    """A wait for two things: the thread goes on with whatever comes first, and then never again."""

    __slots__ = ("_process", "_thread")

    def __init__(self, process: Process, thread: Thread[None]) -> None:
        self._process: Process | None = process
        self._thread = thread

    def come(self) -> None:
        """Go on."""
        process, self._process = self._process, None
        if process is not None:
            process.go_on(self._thread, None)

    def soon(self) -> None:
        """Go on at this instant, but not within whoever calls this."""
        if self._process is not None:
            self._process.timeline.after(0.0, self.come)
