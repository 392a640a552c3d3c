"""What a learner measures of itself while it trains, at next to no cost for the training thread."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ddl.protocol.records import Upload

if TYPE_CHECKING:
    from torch import Tensor


class LossMeter:
    """The recent training loss, without a device sync in the training thread.

    `add` only keeps the detached scalar; `value`, called from another thread, reads what has
    come since and folds it into a moving average.
    """

    def __init__(self, keep: float = 0.9, most: int = 256) -> None:
        self._waiting: deque[Tensor | float] = deque(maxlen=most)
        self._keep = keep
        self._value: float | None = None
        self._lock = threading.Lock()

    def add(self, loss: Tensor | float) -> None:
        """Take one step's loss: a number or a scalar tensor on any device."""
        self._waiting.append(loss if isinstance(loss, float | int) else loss.detach())

    def restart(self) -> None:
        """Forget all losses: they were those of another model."""
        with self._lock:
            self._waiting.clear()
            self._value = None

    def value(self) -> float | None:
        """The moving average over all finite losses so far; None before the first."""
        with self._lock:
            while self._waiting:
                loss = float(self._waiting.popleft())
                if loss - loss == 0.0:  # finite
                    before = loss if self._value is None else self._value
                    self._value = self._keep * before + (1.0 - self._keep) * loss
            return self._value


class StepClock:
    """Training-thread time, split into outside of ddl, inside, and pauses of the run; and the time of
    a step.

    Owned by the training thread; other threads only read its floats. Seconds, monotonic.
    """

    def __init__(self, now: float) -> None:
        self.stall_s = 0.0
        self.busy_s = 0.0
        self.paused_s = 0.0
        self.step_s: float | None = None
        self._left_at = now
        self._entered_at = now
        self._applied_at: float | None = None
        self._moved_at = now

    def idle_s(self, now: float) -> float:
        """Time since the last applied step, or since training began; without pauses."""
        return max(0.0, now - self._moved_at)

    def begin(self, now: float) -> None:
        """Training begins: what came before (imports, data, the first download) is no part of it."""
        self._left_at = self._moved_at = now

    def enter(self, now: float) -> None:
        """The training thread comes into ddl."""
        self.busy_s += now - self._left_at
        self._entered_at = now

    def leave(self, now: float) -> None:
        """The training thread goes back to the user's loop."""
        self.stall_s += now - self._entered_at
        self._left_at = now

    def pause(self, seconds: float, *, ordered: bool) -> None:
        """So much more of the present call was a pause, which is no part of a step; one that was
        `ordered`, for the whole run, is not lost in ddl either."""
        self._moved_at += seconds
        if self._applied_at is not None:
            self._applied_at += seconds
        if ordered:
            self.paused_s += seconds
            self._entered_at += seconds

    def applied(self, now: float, num: int = 1) -> None:
        """`num` steps have been applied by `now`."""
        if self._applied_at is not None:
            took_s = (now - self._applied_at) / num
            before = took_s if self.step_s is None else self.step_s
            self.step_s = 0.9 * before + 0.1 * took_s
        self._applied_at = self._moved_at = now


class Transfers:
    """Bytes moved, and the upload under way. Any thread may add; readers see a recent state."""

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0
        self._upload: tuple[int, int, float] | None = None  # bytes, done before, started at
        self._lock = threading.Lock()

    def begin_upload(self, num_bytes: int, now: float) -> None:
        with self._lock:
            self._upload = (num_bytes, self.up_bytes, now)

    def end_upload(self) -> None:
        with self._lock:
            self._upload = None

    def add_up(self, num_bytes: int) -> None:
        with self._lock:
            self.up_bytes += num_bytes

    def add_down(self, num_bytes: int) -> None:
        with self._lock:
            self.down_bytes += num_bytes

    def upload(self, now: float) -> Upload | None:
        """The upload under way, for people."""
        with self._lock:
            if self._upload is None:
                return None
            size, before, started_at = self._upload
            done = min(size, self.up_bytes - before)
            rate = done / max(now - started_at, 1e-6)
            return Upload(bytes=size, done_bytes=done, bytes_per_s=rate)


def rss_bytes() -> int:
    """Memory of this process that is in RAM now (its peak where the system tells no more)."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
