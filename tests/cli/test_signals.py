"""Ctrl-C and SIGTERM in the first second, while a command is still being imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SLOW_START = """
import sys, threading

class Slow:
    '''Stands for everything that takes long to import; it does so until it is interrupted.'''
    def find_spec(self, name, path=None, target=None):
        if name == "ddl_cli.app":
            print("importing", flush=True)
            try:
                while True:
                    threading.Event().wait(1.0)
            except KeyboardInterrupt as error:
                raise ImportError("cannot load the library") from error

sys.meta_path.insert(0, Slow())
from ddl_cli.entry import main
main()
"""

JOIN = ("learner", "join", "redis://127.0.0.1:1/0?run=demo", "--task", "task.py")


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (("status", "demo"), signal.SIGINT, 130),
        (JOIN, signal.SIGINT, 130),
        (("coordinator", "start", "run.toml"), signal.SIGINT, 130),
        (JOIN, signal.SIGTERM, 75),
        (("--debug", *JOIN), signal.SIGTERM, 75),
        (("coordinator", "start", "run.toml"), signal.SIGTERM, 0),
        (("status", "demo"), signal.SIGTERM, -signal.SIGTERM),
    ],
)
def test_a_signal_while_a_command_is_imported(
    words: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    """The code is the one of later on, and no traceback is shown, whatever an interrupted library
    makes of it: a supervisor that stops a learner early is told that nothing is wrong."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_START, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == ""


def test_an_interrupt_that_is_ignored_stays_so() -> None:
    """As `nohup` and a shell's `&` ask for: the command ends in its own time."""
    with subprocess.Popen(
        [sys.executable, "-m", "ddl_cli", "--version"],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509 - no threads
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("words", [("config", "show"), ("doctor", "--no-torch"), ("--help",)])
def test_whoever_reads_the_output_may_stop(words: tuple[str, ...]) -> None:
    """As `ddl ... | head` does: no failure, whether the rest is written at once or bit by bit."""
    with subprocess.Popen(
        [sys.executable, "-m", "ddl_cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, told = process.communicate(timeout=60)
        assert (process.returncode, told) == (0, b"")
