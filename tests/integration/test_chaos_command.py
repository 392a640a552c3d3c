"""`ddl chaos` with real processes: faults are done, the run comes through them, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
