"""Runs a command for as long as another process lives: `python watchdog.py OWNER_PID COMMAND...`.

Started by `start` as a script of its own, so it imports nothing but the standard library.
The owner holds the other end of this process's standard input. When that closes, or the owner is no
longer our parent, the owner has ended, in whatever way (SIGKILL included): the command is asked to
end, then killed. Its pid is all that we write to standard output (what it prints itself goes to
standard error); its exit code becomes ours.

Linux alone could do with a parent-death signal, but that fires when the *thread* that started the
child ends. Here it covers the one case left: somebody kills this process itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO

PATIENCE_S = 5.0
"""From asking the command to end until it is killed."""

PARENT_CHECK_S = 1.0
"""How often the parent is looked at: a forked child of the owner may hold our input open."""

PR_SET_PDEATHSIG = 1


def start(
    command: Sequence[str],
    *,
    output: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start `command` with a watchdog as its parent, in a session of its own.

    Returns the watchdog, which ends with the command, and the pid of the command, 0 if it could not
    be started. To end it in good order close the watchdog's stdin. It is out of reach of the
    terminal's Ctrl-C. `output` takes all it prints; by default that is our standard error.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=output,
        env=env,
        start_new_session=True,
    )
    assert watchdog.stdout is not None
    # blocks until the watchdog has started the command, or has ended
    return watchdog, int(watchdog.stdout.readline() or 0)


def main(owner: int, command: list[str]) -> int:
    """Run `command` until it ends or `owner` does; return its exit code, as a shell gives it."""
    # the terminal's Ctrl-C is for the owner, which then decides when we end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        # safe here: no other thread has been started yet
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
    )
    for asked in (signal.SIGTERM, signal.SIGHUP):  # to end: the child ends, and then we do
        signal.signal(asked, lambda *_: child.terminate())
    os.write(1, b"%d\n" % child.pid)
    threading.Thread(target=_follow, args=(owner, child), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _follow(owner: int, child: subprocess.Popen[bytes]) -> None:
    while os.getppid() == owner:
        readable, _, _ = select.select([0], [], [], PARENT_CHECK_S)
        if readable and not os.read(0, 1):
            break
    child.terminate()
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def _die_with_parent() -> None:
    """In the command before it starts. Our main thread started it, and lives as long as we do."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
