"""The live screen: looks at a run in the background, draws, and does what keys say."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from rich.console import Console, Group
from rich.live import Live

from ddl.protocol.records import Fact, RunSnapshot
from ddl_cli.view.keyboard import Keyboard
from ddl_cli.view.look import Look, press
from ddl_cli.view.pages import Frame, rows_of, screenful
from ddl_cli.view.paper import canvas
from ddl_cli.view.trail import Rates, Trail

LEAST_HEIGHT: Final = 6
"""Lower windows are drawn as if they had so many lines."""

Next = Callable[[], tuple[RunSnapshot, str]]
"""The newest snapshot, and a notice if it is not of now."""


class Seen(NamedTuple):
    """The newest look at the run."""

    shown: RunSnapshot
    notice: str
    rates: Rates


class Watch:
    """Looks at a run every `interval_s` in a thread of its own, so that keys never wait for Redis.

    Args:
        told: called after every look.
    """

    def __init__(
        self,
        first: RunSnapshot,
        read: Next,
        *,
        facts: tuple[Fact, ...],
        interval_s: float,
        told: Callable[[], None],
    ) -> None:
        self._trail = Trail(facts)
        self.seen = Seen(self._trail.add(first), "", Rates())
        self.looks = 1
        self.failed: Exception | None = None
        self._read = read
        self._interval_s = interval_s
        self._told = told
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Look no more. A look that Redis does not answer may still be under way."""
        self._ending.set()

    def _look(self) -> None:
        while not self._ending.wait(self._interval_s):
            try:
                shown, notice = self._read()
            except Exception as error:  # noqa: BLE001 - handed to the thread that draws
                self.failed = error
                self._told()
                return
            seen = Seen(self._trail.add(shown), notice, self._trail.rates)
            self.seen, self.looks = seen, self.looks + 1
            if not self._ending.is_set():
                self._told()


def live(
    console: Console,
    first: RunSnapshot,
    read: Next,
    *,
    facts: tuple[Fact, ...],
    interval_s: float,
    looks: int | None,
    is_over: Callable[[RunSnapshot], bool],
) -> None:
    """Show the run until a key, `looks`, or the end of the run says to stop.

    Whatever ends it, the terminal is as it was, and the last picture of the run stays on it.
    Raises: whatever `read` does; KeyboardInterrupt; SystemExit after SIGTERM.
    """
    with Keyboard() as keyboard, _signals(keyboard.wake):
        watch = Watch(first, read, facts=facts, interval_s=interval_s, told=keyboard.wake)
        watch.start()
        look, seen, most = Look(), watch.seen, looks or sys.maxsize
        try:
            with Live(console=console, screen=True, auto_refresh=False) as screen:
                while not look.over and watch.failed is None:
                    if not look.paused:
                        seen = watch.seen
                    screen.update(picture(console, seen, look), refresh=True)
                    if watch.looks >= most or is_over(watch.seen.shown):
                        break
                    for key in keyboard.wait(interval_s):
                        look = press(look, key, [one.id for one in rows_of(seen.shown, look)])
        finally:
            watch.end()
            console.print(picture(console, watch.seen, None))
    if watch.failed is not None:
        raise watch.failed


def picture(console: Console, seen: Seen, look: Look | None) -> Group:
    """The page as large as the window; without a look, the overview to be left behind, in less."""
    frame = Frame(seen.shown, look or Look(), canvas(console), seen.rates, seen.notice)
    lines = screenful(frame, max(console.height, LEAST_HEIGHT))
    if look is None:
        lines = lines[:-1]
        while lines and not lines[-1]:
            del lines[-1]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return Group(*lines)


@contextmanager
def _signals(wake: Callable[[], None]) -> Iterator[None]:
    """Have `wake` called when the window changes its size; SIGTERM ends in good order, too."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGWINCH: lambda *_: wake(), signal.SIGTERM: end}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
