"""SIGTERM at a process with a training loop of its own: it leaves in good order, and in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import ddl
from ddl.task import load_task
from tests.contexts import context
from tests.coordinating import RUN, options, running, write_run
from tests.processes import Fleet, Process

LOOP = """
import signal, sys, threading
from pathlib import Path
import ddl
from ddl.task import load_task
from tests.contexts import context

address, name = sys.argv[1:]
model = load_task(Path("task.py"), context(purpose="evaluate", learner=None)).model
clock = threading.Event()
with ddl.Learner.join(address, model=model, id=name) as learner:
    while not learner.should_stop:
        clock.wait(0.01)
        learner.step(tokens=10)
        while name == "stuck" and learner.progress.local_steps >= 3:
            clock.wait(1.0)
print("and goes on", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_it_leaves_by_its_next_step_or_is_ended(tmp_path: Path, redis_url: str) -> None:
    """All that was trained is handed in, and the program goes on behind its loop; one that takes no step
    any more is ended within `drain_s`. Both say goodbye: nobody waits for them."""
    toml = write_run(tmp_path, redis_url=redis_url, liveness={"beat_s": 0.1, "drain_s": 4.0})
    with running(options(toml)), Fleet(tmp_path, redis_url, run=RUN) as fleet:
        brisk, stuck = _start(fleet, "brisk"), _start(fleet, "stuck")
        for name, process in (("brisk", brisk), ("stuck", stuck)):
            fleet.until(partial(_has_stepped, fleet, name), f"{name} trains")
            process.send_signal(signal.SIGTERM)
        assert (brisk.wait(60), stuck.wait(60)) == (0, 75)
        left = [fleet.view("brisk"), fleet.view("stuck")]
    assert [one.state for one in left if one is not None] == ["left", "left"]
    *_, ended, last = (tmp_path / "brisk.log").read_text().splitlines()
    assert ended.endswith(": SIGTERM"), "all is handed in"
    assert last == "and goes on True"
    told = (tmp_path / "stuck.log").read_text()
    assert "SIGTERM, and no time is left to hand in" in told
    assert "and goes on" not in told


def _start(fleet: Fleet, name: str) -> Process:
    env = {"DDL_SPOOL": str(fleet.folder / "spool"), "PYTHONPATH": os.pathsep.join(sys.path)}
    with (fleet.folder / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LOOP, fleet.address, name],
            cwd=fleet.folder,
            stdout=output,
            stderr=output,
            env=os.environ | env,
        )
    fleet.processes.append(process)
    return process


def _has_stepped(fleet: Fleet, name: str) -> bool:
    view = fleet.view(name)
    return view is not None and view.step >= 3


def test_it_is_taken_over_where_nobody_minds_it(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that was there stays, and so does one that came meanwhile."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))
    toml = write_run(tmp_path, redis_url=redis_url)
    model = load_task(tmp_path / "task.py", context(purpose="evaluate", learner=None)).model
    address = f"{redis_url}?run={RUN}"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    try:
        with running(options(toml)):
            with ddl.Learner.join(address, model=model, id="a") as learner:
                signal.raise_signal(signal.SIGTERM)
                learner.step(tokens=1)
                assert learner.should_stop
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.set_wakeup_fd(-1) == -1

            with ddl.Learner.join(address, model=model, id="a"):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

            with ddl.Learner.join(address, model=model, id="a"):
                assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
