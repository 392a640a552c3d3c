"""A `ddl` command in a process of its own, under a watchdog, so that it never outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddl import watchdog
from ddl.errors import DdlError

LAST_LINES: Final = 12
"""Lines of a log that tell why its process ended."""

STOP_S: Final = watchdog.PATIENCE_S + 5.0
"""Longest wait for a process that was asked to end; the watchdog kills it after PATIENCE_S."""


class Child:
    """One `ddl` command, running from here on.

    Args:
        name: what people call it.
        arguments: of `ddl`.
        log: file that takes all it prints; appended to.
        env: variables set beside those of this process.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ddl_cli", *arguments]
        with log.open("ab") as output:  # after what an earlier life of it wrote
            self._watchdog, self.pid = watchdog.start(
                command, output=output, env={**os.environ, **env}
            )

    def ended(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._watchdog.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, None if it still runs after `timeout_s`."""
        try:
            return self._watchdog.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        os.kill(self.pid, signal.SIGKILL)
        self._watchdog.wait(STOP_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens if it has ended."""
        if self.ended() is None:
            with suppress(ProcessLookupError):  # it ends at this very moment
                os.kill(self.pid, number)

    def ask_to_end(self) -> None:
        """Let the watchdog end it, in good order if it can; nothing happens if it has ended."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()

    def reap(self) -> None:
        """Wait for its end."""
        assert self._watchdog.stdout is not None
        self._watchdog.stdout.close()
        self._watchdog.wait(STOP_S)

    def is_there(self) -> bool:
        """Whether the process itself still exists, whatever its watchdog says."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def death(self) -> DdlError:
        """The error for one that should not have ended: its name, its code and its last words."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:]
        words = "\n".join(f"    {line}" for line in lines) or "    (nothing)"
        return DdlError(
            f"{self.name} ended unexpectedly, with exit code {self.ended()}; "
            f"the last lines of {self.log}:\n{words}"
        )
