"""The store is away, full, or damages what is in it; training goes on, and nothing is lost."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.books import check_books
from tests.chaos.forked import ChaosFleet
from tests.processes import Process

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

FILE_BYTES_MAX = 64 * 1024
WIDE = {"task.args": {"width": 4000}}
"""Fragments and contributions larger than FILE_BYTES_MAX."""


def test_the_store_is_away_for_one_learner(fleet: ChaosFleet) -> None:
    """It trains on and says so; no round waits for it. Back again, it hands in."""
    fleet.begin(round={"staleness_max": 30, "deadline_s": 60.0})
    mount = fleet.folder / "mount"
    mount.symlink_to(fleet.store)
    far = fleet.learner("far", "--store", mount.as_uri())
    fleet.until_merged("far")
    mount.unlink()
    fleet.until(lambda: fleet.record("far").store_down_s > 0, "it says that the store is away")
    assert str(mount) in fleet.record("far").error
    fleet.until_grown(3)
    fleet.until_steps("far")
    assert all("far" not in round_.awaited for round_ in fleet.look().rounds)
    mount.symlink_to(fleet.store)
    fleet.until(lambda: fleet.record("far").store_down_s == 0, "it has the store again")
    fleet.until_merged("far")
    assert far.poll() is None
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_a_full_disk_at_a_learner(fleet: ChaosFleet) -> None:
    """What cannot be spooled or stored waits, training does not; people see why nothing comes."""
    fleet.begin(round={"staleness_max": 30}, **WIDE)
    cramped = fleet.learner("cramped")
    fleet.until_merged("cramped")
    with _disk_full(cramped):
        fleet.until(lambda: "File too large" in fleet.record("cramped").error, "it says so")
        fleet.until_steps("cramped")
        fleet.until_grown(3)
    fleet.until(lambda: not fleet.record("cramped").error, "it says that all is well")
    fleet.until_merged("cramped")
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_a_full_disk_under_the_store(fleet: ChaosFleet) -> None:
    """The coordinator publishes nothing half, and goes on once there is room."""
    steady = fleet.begin(**WIDE)
    coordinator = fleet.processes[0]
    with _disk_full(coordinator):
        fleet.until(lambda: "store_requests.failed" in fleet.log_of(coordinator), "it says so")
        standing = fleet.version()
        fleet.until_steps("steady")
        assert fleet.version() == standing
    fleet.until_grown(3)
    assert "File too large" in fleet.log_of(coordinator)
    assert steady.poll() is None
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


@pytest.mark.parametrize("damage", ["cut short", "bit flipped", "empty", "another text"])
def test_a_contribution_that_arrives_damaged(fleet: ChaosFleet, damage: str) -> None:
    """T02: found before the merge, asked for again, put again from the spool, and merged."""
    fleet.begin(round={"staleness_max": 30})
    failpoint = fleet.fail("put", signal.SIGSTOP, nth=1)
    sender = fleet.learner("sender")
    fleet.until(lambda: failpoint.reached, "its first contribution is stored, not yet announced")
    (payload,) = fleet.store.glob(f"{fleet.run}/contributions/sender/*/*.safetensors")
    payload.write_bytes(_damaged(payload.read_bytes(), damage))
    sender.send_signal(signal.SIGCONT)
    fleet.until_merged("sender")
    asked = [fact for fact in fleet.look().facts if fact.name == "contribution.asked_again"]
    assert asked, "it was found to be damaged"
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_a_version_that_is_damaged_in_the_store(fleet: ChaosFleet) -> None:
    """T02, T46: learners go on with what they have, say what is wrong, and take the next version."""
    fleet.begin()
    fleet.processes[0].send_signal(signal.SIGTERM)
    assert fleet.processes[0].wait(timeout=60) == 0
    before = _fragments(fleet)
    failpoint = fleet.fail("published", signal.SIGSTOP, nth=1)
    coordinator = fleet.coordinator()
    fleet.until(lambda: failpoint.reached, "a version is stored, its record not yet")
    (version,) = _fragments(fleet) - before
    whole = version.read_bytes()
    version.write_bytes(_damaged(whole, "bit flipped"))
    coordinator.send_signal(signal.SIGCONT)
    steady = fleet.processes[1]
    fleet.until(
        lambda: f"{version.name}: {len(whole)} bytes with digest" in fleet.log_of(steady),
        "the learner finds it damaged",
    )
    fleet.until_grown(4)
    fleet.until(lambda: not fleet.record("steady").error, "the next version has replaced it")
    assert steady.poll() is None
    version.write_bytes(whole)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


@contextmanager
def _disk_full(process: Process) -> Iterator[None]:
    """Larger files than FILE_BYTES_MAX cannot be written by this process."""
    limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, limits[1]))
    yield
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


def _damaged(data: bytes, damage: str) -> bytes:
    match damage:
        case "cut short":
            return data[: len(data) * 7 // 10]
        case "bit flipped":
            return data[:-1] + bytes([data[-1] ^ 1])
        case "empty":
            return b""
    return b"<html>Bad Gateway</html>"


def _fragments(fleet: ChaosFleet) -> set[Path]:
    return set(fleet.store.glob(f"{fleet.run}/fragments/*/*.safetensors"))
