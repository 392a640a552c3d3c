"""`ddl demo` with real processes: it succeeds, it fails when it must, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SMALL = "task.args={width = 32, depth = 1, warmup = 5}"
"""A model of a few thousand parameters: the demo's course is the question, not its loss."""

PATIENCE_S = 90.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The demo's folder; every process that mentions it is gone after the test."""
    yield tmp_path / "demo"
    left = processes_of(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ddl_cli", "demo", "--dir", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> dict[int, str]:
    """Living processes with the folder in their command or environment: pid -> command."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if str(folder).encode() in command + (entry / "environ").read_bytes():
                found[int(entry.name)] = command.replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended while we looked
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for: {what}"
        time.sleep(0.1)


def plays(folder: Path, words: str) -> bool:
    return any(words in command for command in processes_of(folder).values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_demo_with_a_death_and_a_late_joiner(folder: Path) -> None:
    """One JSON document on stdout; the loss fell, the ledger balances, the model lies there."""
    demo = start(folder, "--commits", "200", "--json")
    out, err = demo.communicate(timeout=PATIENCE_S * 3)
    assert demo.returncode == 0, err
    (line,) = out.splitlines()
    report = json.loads(line)
    assert report["problems"] == []
    assert report["commits"] == 200
    assert (report["killed"], report["joined_late"]) == (["learner-3"], ["learner-4"])
    assert report["loss"]["last"] < 2.6 < 5.0 < report["loss"]["first"]
    tokens = report["tokens"]
    settled = sum(tokens[name] for name in ("merged", "refused", "expired", "lost", "rolled_back"))
    assert tokens["handed_in"] == pytest.approx(settled + tokens["outstanding"])
    states = {row["id"]: row["state"] for row in report["learners"]}
    assert states["learner-1"] == states["learner-2"] == states["learner-4"] == "left"
    assert Path(report["export"]).stat().st_size > 0
    assert "learner-3 is killed" in err
    assert "outer.lr = " not in err, "what the preset chooses would drown it"
    assert not processes_of(folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_merges_that_do_nothing_fail_the_demo(folder: Path) -> None:
    """An outer step of practically nothing: the learners' own losses fall all the same, but the
    exported model has not learned, and the demo says so."""
    demo = start(
        folder,
        *("--commits", "40", "--loss-below", "5.2", "--set", SMALL),
        *("--set", "outer.preset=fixed", "--set", "outer.lr=1e-9"),
    )
    _, err = demo.communicate(timeout=PATIENCE_S * 3)
    assert demo.returncode == 1
    assert "FAILED: held-out loss" in err
    assert "is not clearly below" in err


@linux_only
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_nothing_is_left_whatever_ends_the_demo(
    folder: Path, number: signal.Signals, code: int
) -> None:
    """Ctrl-C, SIGTERM, and even SIGKILL: Redis, coordinator, learners and their watchdogs go."""
    demo = start(folder, "--set", SMALL)
    try:
        until(lambda: plays(folder, "--id learner-3"), "all learners are started")
        demo.send_signal(number)
        demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == code
    until(lambda: not processes_of(folder), "no process is left")


@linux_only
@pytest.mark.chaos
def test_a_process_that_dies_by_itself_is_named(folder: Path) -> None:
    """Which one, with its exit code and the last lines of its log; the rest is ended."""
    demo = start(folder, "--set", SMALL)
    try:
        until(lambda: plays(folder, "--id learner-1"), "the learners are started")
        until(lambda: coordinator_pid(folder) is not None, "the coordinator is found")
        pid = coordinator_pid(folder)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        _, err = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
    assert demo.returncode == 1
    assert "coordinator ended unexpectedly, with exit code 137" in err
    assert "run.created" in err or "run.entered" in err
    assert "Traceback" not in err


def coordinator_pid(folder: Path) -> int | None:
    """The coordinator itself, not its watchdog."""
    for pid, command in processes_of(folder).items():
        if "coordinator start" in command and "watchdog" not in command:
            return pid
    return None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--learners", "1"], "at least 2 learners"),
        (["--set", "quorum"], "KEY=VALUE"),
        (["--set", "round.qorum=2"], "Did you mean 'round.quorum'?"),
        (["--commits", "24"], "use 40 or more"),
    ],
)
def test_what_cannot_be_played_is_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    """A usage error, before anything is made or started."""
    demo = start(tmp_path / "demo", *arguments)
    _, err = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 2
    assert words in " ".join(err.replace("│", " ").split())
    assert not (tmp_path / "demo").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """Nobody's files are mixed with the demo's."""
    (tmp_path / "mine").touch()
    demo = start(tmp_path)
    _, err = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 2
    assert "is not empty" in err
