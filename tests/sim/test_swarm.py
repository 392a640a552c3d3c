"""Hundreds of runs under attack, each from one seed, and none of them breaks what must hold."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from ddl.sim.swarm import Report, swarm

SEEDS = 300

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.timeout(900)
def test_no_seed_breaks_what_must_hold() -> None:
    """Everything that `ddl.sim.judge` and `ddl.core.invariants` say holds all through 300 runs, and
    each of them comes to rest. On average they are long and rough enough to count."""
    report = swarm(range(SEEDS))
    assert report.violations == (), [f"just sim {v.seed}: {v.text}" for v in report.violations]
    assert report.seeds == SEEDS
    assert report.mean("events") >= 1000
    assert report.mean("commits") >= 20
    assert report.mean("faults") >= 3


def run(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddl.sim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT | {"PYTHONHASHSEED": hash_seed},
    )


def test_one_seed_is_one_history() -> None:
    """Its trace is the same to the last character in every process, whatever hashes they use."""
    first, second = run("replay", "7", hash_seed="1"), run("replay", "7", hash_seed="2")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert run("replay", "8").stdout != first.stdout


def test_a_history_needs_no_torch() -> None:
    """A seed is replayed as soon as it is asked for: to import torch would take longer than a history."""
    code = "import sys, ddl.sim.world; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0
    )


def test_a_trace_explains_itself() -> None:
    """A legend first, then a line an event in columns, faults among them; the verdict last."""
    lines = run("replay", "7").stdout.splitlines()
    assert lines[0].startswith("      at  virtual seconds")
    events = [line for line in lines if line[:8].strip().replace(".", "").isdigit()]
    assert len(events) > 100
    assert any(line[10:12] == "! " for line in events)
    assert any(line[10:13] == "log" for line in events)
    assert lines[-1].startswith("seed 7: ")
    assert lines[-1].endswith("; all held")


def test_a_swarm_reports_to_people_and_programs() -> None:
    """`--json` prints one record; without it the means are printed."""
    done = run("swarm", "--seeds", "2", "--first", "7", "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    assert (report.seeds, report.violations) == (2, ())
    plain = run("swarm", "--seeds", "2", "--first", "7", "--processes", "1")
    assert plain.stdout.startswith("2 seeds in ")
    assert f"{report.mean('events'):,.1f} events" in plain.stdout
