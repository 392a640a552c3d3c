"""What a process says of itself while it runs: facts, one line each, on a text stream.

A fact has a name (noun.verb-past, such as `version.published`), a sentence for people, and fields
for programs. Secrets never go in. Nothing is configured globally: who starts a process hands its
journal down.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final, Literal, TextIO

import msgspec

from ddl.clock import Clock, SystemClock

Form = Literal["text", "colour", "json"]

REMIND_S: Final = 60.0
"""How often a trouble that lasts is told again."""

LASTS_S: Final = 5.0
"""A trouble that was told of lately is no news before it has lasted for so long."""


class Journal:
    """Writes facts to `stream`; safe to use from several threads at once.

    Args:
        stream: where to; None drops everything. A stream that is closed or broken is not written
            to again: whoever read it has gone, and the work goes on.
        form: "text" gives `HH:MM:SS name  sentence`, "colour" the same with the escapes of a
            terminal, "json" one object a line.
        clock: its wall clock stamps the lines.
    """

    def __init__(
        self, stream: TextIO | None, *, form: Form = "text", clock: Clock | None = None
    ) -> None:
        self._stream = stream
        self._form = form
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._last: dict[str, str] = {}

    def tell(self, name: str, text: str, /, **fields: Any) -> None:
        """Write one fact."""
        at = self._clock.wall()
        if self._form == "json":
            row = {**fields, "at": round(at, 3), "name": name, "text": text}
            line = msgspec.json.encode(row).decode()
        else:
            clock, padded = time.strftime("%H:%M:%S", time.localtime(at)), f"{name:<24}"
            if self._form == "colour":
                clock, padded = f"\033[2m{clock}\033[0m", f"\033[36m{padded}\033[0m"  # dim, cyan
            line = f"{clock} {padded} {text}"
        with self._lock:
            if self._stream is None:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a pipe that was closed; a file object that was
                self._stream = None

    def on_change(self, topic: str, name: str, text: str, /, **fields: Any) -> None:
        """Write a fact unless it says of `topic` what the last one said: for what is asked often."""
        with self._lock:
            if self._last.get(topic) == text:
                return
            self._last[topic] = text
        self.tell(name, text, **fields)

    def forget(self, topic: str) -> bool:
        """Let the next `on_change` of this topic speak again; whether there was anything to forget."""
        with self._lock:
            return self._last.pop(topic, None) is not None


class Troubles:
    """What does not work now and is tried again, by subject; safe to use from several threads.

    Each is told when it begins, every `REMIND_S` while it lasts, and when it is over: never once a
    try. One that comes and goes is told again only if it lasts, for `LASTS_S` within `REMIND_S`. A
    subject is a plural such as "spool writes", which names the facts, too: `spool_writes.failed` and
    `spool_writes.recovered`.
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Trouble] = {}
        self._told_at: dict[str, float] = {}

    def begin(self, subject: str, reason: str) -> None:
        """It has failed, once more maybe; the trouble is as old as its first failure."""
        now = self._clock.monotonic()
        with self._lock:
            trouble = self._open.setdefault(subject, _Trouble(now))
            trouble.reason = reason
            lasting_s = now - trouble.since
            lately = now < self._told_at.get(subject, float("-inf")) + REMIND_S
            if lately and (trouble.told or lasting_s < LASTS_S):
                return
            self._told_at[subject] = now
            trouble.told = True
        lasting = f" (for {lasting_s:.0f} s now)" if lasting_s else ""
        self._journal.tell(
            f"{_fact(subject)}.failed",
            f"{reason}; trying again{lasting}",
            seconds=round(lasting_s, 3),
        )

    def end(self, *subjects: str) -> None:
        """These work; nothing is told unless their trouble was."""
        now = self._clock.monotonic()
        for subject in subjects:
            with self._lock:
                trouble = self._open.pop(subject, None)
            if trouble is not None and trouble.told:
                lasted_s = now - trouble.since
                self._journal.tell(
                    f"{_fact(subject)}.recovered",
                    f"{subject} work again after {lasted_s:.0f} s",
                    seconds=round(lasted_s, 3),
                )

    def seconds(self, *subjects: str) -> float:
        """For how long one of these has not worked by now; 0 if all do."""
        with self._lock:
            began = [self._open[s].since for s in subjects if s in self._open]
        return self._clock.monotonic() - min(began) if began else 0.0

    @property
    def reasons(self) -> str:
        """Why, for all that does not work now; empty if all does."""
        with self._lock:
            return "; ".join(dict.fromkeys(trouble.reason for trouble in self._open.values()))


class _Trouble:
    def __init__(self, since: float) -> None:
        self.since = since
        self.reason = ""
        self.told = False


def _fact(subject: str) -> str:
    return subject.replace(" ", "_")
