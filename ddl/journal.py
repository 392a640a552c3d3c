"""What a process says of itself while it runs: facts, one line each, on a text stream.

A fact has a name (noun.verb-past, such as `version.published`), a sentence for people, and fields
for programs. Secrets never go in. Nothing is configured globally: who starts a process hands its
journal down.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Literal, TextIO

import msgspec

from ddl.clock import Clock, SystemClock

Form = Literal["text", "json"]


class Journal:
    """Writes facts to `stream`; safe to use from several threads at once.

    Args:
        stream: where to; None drops everything. A stream that is closed or broken is not written
            to again: whoever read it has gone, and the work goes on.
        form: "text" gives `HH:MM:SS name  sentence`, "json" one object a line.
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
            line = f"{time.strftime('%H:%M:%S', time.localtime(at))} {name:<24} {text}"
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
