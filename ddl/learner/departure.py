"""SIGTERM: out within `drain_s`, whatever the process is doing.

A scheduler sends it once, at any moment, and SIGKILL some seconds later: while torch is imported,
while the model is built or compiled, in the middle of a download, a step or an upload. So it counts
from before torch is imported, and does not wait for a step boundary for ever:

    joining      there is nothing to hand in: `Departed` ends the main thread's work at once
    training     the learner drains at its next step boundary (`ddl.core.learner`)
    in any case  when `LIMIT_RATIO` of `drain_s` is over, a thread says goodbye and ends the process

`ddl learner join` minds it from the start, `ddl.Learner.join` from when the run knows of it, and only
where SIGTERM would have ended the process with no word (`is_nobodys`).

What is cut off by the limit is whole or not there: objects appear whole, and the spool keeps what was
encoded for the next life of this learner.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

from ddl.config import LivenessSettings

LIMIT_RATIO: Final = 0.9
"""Part of `drain_s` after which the process is ended; the rest is for its goodbye."""

EXIT_CODE: Final = os.EX_TEMPFAIL
"""Nothing is wrong with it, start it again."""


def is_nobodys() -> bool:
    """Whether SIGTERM just ends this process so far, and this thread may change that."""
    if threading.current_thread() is not threading.main_thread():
        return False
    wakeup = signal.set_wakeup_fd(-1)  # the only way to ask
    signal.set_wakeup_fd(wakeup)
    return wakeup == -1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Departed(BaseException):
    """SIGTERM came before there was anything to hand in. Not an error: nothing may hold it up."""


class Departure:
    """What SIGTERM does inside the block; begun by the main thread of a process that joins a run.
    Afterwards it does what it did before, unless somebody has changed that meanwhile.

    The time limit is kept by a thread that hears of the signal through `signal.set_wakeup_fd`: the
    handler itself runs only when the main thread is back from whatever C code it is in.

    Attributes:
        asked: whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.asked = False
        self._drain_s = LivenessSettings().drain_s
        self._drain: Callable[[], None] | None = None
        self._say_goodbye: Callable[[], None] | None = None
        self._over = threading.Event()

    def found(self, *, drain_s: float) -> None:
        """The run is found, and with it how long a departure may take."""
        self._drain_s = drain_s

    def joined(self, say_goodbye: Callable[[], None]) -> None:
        """The run knows this process now. `say_goodbye` is called in a thread of its own."""
        self._say_goodbye = say_goodbye

    def training(self, drain: Callable[[], None]) -> None:
        """Training begins: from now on SIGTERM asks for a drain.

        Raises: Departed if it has come before and somebody caught what it raised.
        """
        self._drain = drain
        if self.asked:
            raise Departed

    def __enter__(self) -> Self:
        signals, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        self._wakeup = wakeup
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        self._wakeup_before = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(
            target=self._watch, args=(signals,), name="ddl-departure", daemon=True
        ).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._drain = self._say_goodbye = None  # or the fork hook would hold the model for ever
        if threading.current_thread() is threading.main_thread():
            self._put_back()
        # else the next SIGTERM does it

    def _put_back(self) -> None:
        if (wakeup := signal.set_wakeup_fd(self._wakeup_before)) != self._wakeup:
            signal.set_wakeup_fd(wakeup)
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._before)
        os.close(self._wakeup)  # ends the watch, if nothing has come

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._over.is_set():
            self._put_back()
            signal.raise_signal(signal.SIGTERM)
            return
        if self.asked:
            return
        self.asked = True
        if self._drain is None:
            raise Departed
        self._drain()

    def _forget(self) -> None:
        """In a forked child, a worker of a DataLoader say: SIGTERM ends it, and is not for us."""
        if not self._over.is_set():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._over.set()

    def _watch(self, signals: int) -> None:
        with open(signals, "rb", buffering=0) as pipe:
            while came := pipe.read(1):
                if came[0] == signal.SIGTERM:
                    self._end_in_time()
                    return

    def _end_in_time(self) -> None:
        if self._over.wait(LIMIT_RATIO * self._drain_s):
            return
        if self._say_goodbye is not None:
            # in a thread of its own: what holds up the main thread may hold a lock that this needs
            goodbye = threading.Thread(target=self._say_goodbye, daemon=True)
            goodbye.start()
            goodbye.join((1.0 - LIMIT_RATIO) * self._drain_s)
        os._exit(EXIT_CODE)
