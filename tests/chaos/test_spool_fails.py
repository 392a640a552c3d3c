"""The local disk of a learner is full or gone: training goes on, people see why, SIGTERM ends it."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, call, check_call

import pytest

from tests.chaos.books import check_books
from tests.chaos.forked import ChaosFleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

WIDE = {"task.args": {"width": 4000}}
"""Contributions of more than 100 kB."""

DRAIN_S = 4.0


def test_asked_to_leave_with_a_full_spool(fleet: ChaosFleet) -> None:
    """It says so in its log once and in Redis for as long, and ends within `drain_s` with 75."""
    with _small_disk(fleet.spool):
        fleet.begin(liveness={"drain_s": DRAIN_S}, round={"staleness_max": 30}, **WIDE)
        cramped = fleet.learner("cramped")
        fleet.until_merged("cramped")
        rest = fleet.spool / "rest"

        def is_full() -> bool:
            _fill(rest)  # also what was freed since the last look
            return "No space left on device" in fleet.record("cramped").error

        fleet.until(is_full, "it says so")
        rest.unlink()
        fleet.until(lambda: not fleet.record("cramped").error, "it says that all is well")
        fleet.until_merged("cramped")
        fleet.until(is_full, "it says so again")
        fleet.until_steps("cramped")
        asked_at = time.monotonic()
        cramped.send_signal(signal.SIGTERM)
        assert cramped.wait(timeout=60) == 75
        assert time.monotonic() - asked_at < DRAIN_S + 5.0  # seconds for a loaded machine
        log = fleet.log_of(cramped)
        assert 1 <= log.count("spool_writes.failed") <= 2  # not for each contribution, nor each try
        assert ": SIGTERM" in log.splitlines()[-1]
        assert fleet.record("cramped").error == ""
        rest.unlink()
        fleet.finish()
        check_books(fleet.store, fleet.run, fleet.look())


def test_a_spool_that_was_tidied_away(fleet: ChaosFleet) -> None:
    """The folder is made anew; where a file stands in its place, the learner still can leave."""
    fleet.begin(liveness={"drain_s": DRAIN_S}, round={"staleness_max": 30})
    fleet.until_merged("steady")
    fleet.spool.rename(fleet.folder / "tidied")  # at once, whatever is being written there
    fleet.until(fleet.spool.exists, "a contribution is spooled again")
    fleet.until_merged("steady")
    steady = fleet.processes[1]
    assert fleet.record("steady").error == ""
    fleet.spool.rename(fleet.folder / "elsewhere")
    fleet.spool.touch()
    fleet.until(lambda: "cannot be spooled" in fleet.record("steady").error, "it says so")
    fleet.until_steps("steady")
    asked_at = time.monotonic()
    steady.send_signal(signal.SIGTERM)
    assert steady.wait(timeout=60) == 75
    assert time.monotonic() - asked_at < DRAIN_S + 5.0
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A disk of 2 MB in this place; skips the test where this may not be made."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or call(command, stderr=DEVNULL):
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield
    finally:
        check_call(["umount", "--lazy", str(folder)])


def _fill(file: Path) -> None:
    """Take all the room that is left on the disk."""
    with file.open("ab", buffering=0) as out, suppress(OSError):
        while True:
            out.write(bytes(4096))
