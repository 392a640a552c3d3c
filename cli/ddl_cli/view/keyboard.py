"""Keys as they are pressed, from a terminal that is left as it was found."""

from __future__ import annotations

import os
import select
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

_SEQUENCES: Final = {
    "[A": "up",
    "[B": "down",
    "OA": "up",
    "OB": "down",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
}
_CHARACTERS: Final = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}


def keys(typed: str) -> Iterator[str]:
    """The names of keys in what a terminal sent; unknown sequences are left out."""
    rest = typed
    while rest:
        if rest[0] != "\x1b":
            key, rest = rest[0], rest[1:]
            if key.isprintable() or key in _CHARACTERS:
                yield _CHARACTERS.get(key, key)
            continue
        length = _sequence(rest)
        sequence, rest = rest[1 : 1 + length], rest[1 + length :]
        if not sequence:
            yield "esc"
        elif sequence in _SEQUENCES:
            yield _SEQUENCES[sequence]


def _sequence(rest: str) -> int:
    """Characters of the escape sequence that follows the first one of `rest`."""
    if rest[1:2] == "O":
        return min(2, len(rest) - 1)
    if rest[1:2] != "[":
        return 0
    end = 2
    while end < len(rest) and not rest[end].isalpha() and rest[end] != "~":
        end += 1
    return min(end, len(rest) - 1)


class Keyboard:
    """Reads keys while its context is open, unless standard input is no terminal.

    Keys are not echoed and not waited for with Enter; Ctrl-C and Ctrl-Z do what they always do.
    """

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._woken, self._waker = socket.socketpair()
        self._waker.settimeout(0.0)

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin, termios.TCSANOW)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)
        self._woken.close()
        self._waker.close()

    def wake(self) -> None:
        """Let `wait` return at once; may be called from any thread and from signal handlers."""
        with suppress(OSError):  # so many wait already that one more says nothing; or nobody waits
            self._waker.send(b".")

    def wait(self, timeout_s: float) -> list[str]:
        """Wait for keys, for `wake`, or for the time to pass; the keys pressed until then."""
        sources: list[int] = [self._woken.fileno()]
        if self._before is not None:
            sources.append(sys.stdin.fileno())
        ready, _, _ = select.select(sources, [], [], timeout_s)
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        if self._before is None or sys.stdin.fileno() not in ready:
            return []
        typed = os.read(sys.stdin.fileno(), 1024)
        if not typed:  # the terminal is gone; nobody will press a key any more
            self._before = None
        return list(keys(typed.decode(errors="ignore")))
