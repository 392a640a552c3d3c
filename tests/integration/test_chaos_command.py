"""`ddl chaos` with real processes: faults are done, the run comes through them, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddl_cli.chaos.gang import drill
from ddl_cli.chaos.schedule import parse_fault, tape_of

FAULTS = ("2:kill:1:1", "3:stop:2:1", "4:kill-coordinator:0.5", "11:flush-redis", "12:corrupt:3")


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_small_chaos(tmp_path: Path) -> None:
    """Three learners: one is killed and steps again, one is stopped, the coordinator is killed, Redis
    is emptied, an upload is damaged. No version is lost, and the books balance."""
    command = [sys.executable, "-m", "ddl_cli", "chaos", "--learners", "3", "--json"]
    command += ["--seconds", "30", "--free-seconds", "5", "--dir", str(tmp_path / "chaos")]
    for fault in FAULTS:
        command += ["--fault", fault]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    ddl = document["ddl"]
    assert ddl["problems"] == []
    assert ddl["versions_lost"] == 0
    assert ddl["versions"] > 4
    assert [(row["kind"], row["target"]) for row in ddl["faults"]] == [
        ("kill", "learner-1"),
        ("stop", "learner-2"),
        ("kill-coordinator", "coordinator"),
        ("flush-redis", "redis"),
        ("corrupt", "learner-3"),
    ]
    killed, stopped, *services, damaged = ddl["faults"]
    assert all(row["pid"] > 0 for row in ddl["faults"])
    assert killed["recovery_s"] > 0.5 > stopped["recovery_s"]
    assert all(row["recovery_s"] is not None for row in (*services, damaged))
    assert 0.3 < ddl["goodput_ratio"] < 1.3
    assert ddl["ledger"]["merged"] > 0
    assert len(document["tape"]["faults"]) == len(FAULTS)
    assert (tmp_path / "chaos" / "index.html").stat().st_size > 10_000
    assert "is killed (SIGKILL)" in done.stderr
    assert not left_of(tmp_path)


def left_of(folder: Path) -> list[str]:
    """Processes that mention the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has just ended
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(500)
def test_the_baseline_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Two ranks under torchrun; one is killed. All start again, and go on not before the checkpoint
    that was the last and not from the beginning."""
    kill = parse_fault("4:kill:2:1")
    args = {"width": 32, "depth": 1, "context": 16, "batch": 2, "step_s": 0.05}
    told: list[str] = []
    run = drill(
        tmp_path / "ddp",
        tape_of([kill], learners=2, horizon_s=60.0),
        args=args,
        checkpoint_every=10,
        say=told.append,
    )
    assert len(run.deaths) == len(told) == 1
    assert "rank 1" in told[0]
    (restart_s,) = run.restarts_s
    assert 0.5 < restart_s < 56.0
    before = max(tick.step for tick in run.steps if tick.at <= run.deaths[0])
    after = next(tick for tick in run.steps if tick.life > 0)
    assert after.step % 10 == 1
    assert before - 10 < after.step <= before + 2
    assert run.useful_steps > before
    assert run.checkpoint_s > 0
    assert not left_of(tmp_path)
