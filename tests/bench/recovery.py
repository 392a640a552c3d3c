"""How long it takes until all is as before: `just bench recovery`.

Three learners with steps of 50 ms, all settings at their defaults, on a Redis and a directory of this
machine. In each round a learner is killed and started again 5 s later, then the coordinator, then
Redis is emptied, then the coordinator is killed while a standby waits. Processes are started anew
with all their imports. At the end the books are checked.

A start is mostly the import of torch and its optimizers. So beside the seconds, which mean little on
a busy machine, stand the CPU seconds of the new process, and their ratio to those of a process that
imports torch and takes one step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from ddl.config import Settings
from ddl.embedded import EmbeddedRedis
from tests.bench.report import Figure, Options, options, report
from tests.chaos.books import check_books
from tests.chaos.forked import ChaosFleet
from tests.processes import Process, kill
from tests.redis_servers import admin

BARE = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.zeros(1, 2)).sum().backward()
optimizer.step()
"""
"""What a start costs in any case."""

AWAY_S = 5.0
"""Between a death and the start of the successor."""

STEP_S = 0.05
SURVIVORS = ("one", "two")


def main() -> int:
    asked = options(__doc__ or "")
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis(Path(folder) / "redis") as redis,
        ChaosFleet(Path(folder), redis.url) as fleet,
    ):
        return report("recovery", measure(fleet, redis, asked), asked)


def measure(fleet: ChaosFleet, redis: EmbeddedRedis, asked: Options) -> dict[str, Figure]:
    settings = Settings()
    fleet.forks = False
    fleet.write_run(run={"name": fleet.run}, **{"task.args": {"step_s": STEP_S}})
    _keep_defaults(fleet.folder / "run.toml")
    coordinator = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    for name in SURVIVORS:
        fleet.learner(name)
    mortal = fleet.learner("mortal")
    fleet.until_merged("mortal")
    gaps, learner_s, coordinator_s, flush_s = [], [], [], []
    standby_s, standby_gaps = [], []
    learner_cpu_s, coordinator_cpu_s, bare_cpu_s = [], [], []
    for life in range(2, asked.rounds + 2):
        killed_at = time.monotonic()
        kill(mortal)
        _wait_until(killed_at + AWAY_S)
        gaps.append(max(_longest_gap(fleet, name, killed_at) for name in SURVIVORS))
        started_at = time.monotonic()
        mortal = fleet.learner("mortal")
        fleet.until(lambda life=life: _has_handed_in(fleet, "mortal", life), "it contributes")  # type: ignore[misc]
        learner_s.append(time.monotonic() - started_at)
        learner_cpu_s.append(_cpu_s(mortal))
        fleet.until_merged("mortal")

        kill(coordinator)
        _wait_until(time.monotonic() + AWAY_S)
        coordinator_s.append(_until_version(fleet, fleet.coordinator))
        coordinator = fleet.processes[-1]
        coordinator_cpu_s.append(_cpu_s(coordinator))
        bare_cpu_s.append(_bare_cpu_s())
        fleet.until_grown(4)

        flush_s.append(_until_version(fleet, lambda: _flush(redis)))
        fleet.until_grown(4)

        standby = fleet.coordinator("--standby")
        fleet.until(lambda: fleet.look().standbys, "a standby waits")
        killed_at = time.monotonic()
        standby_s.append(_until_version(fleet, partial(kill, coordinator)))
        standby_gaps.append(max(_longest_gap(fleet, name, killed_at) for name in SURVIVORS))
        coordinator = standby
        fleet.until_grown(4)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look(), killed=("mortal",))
    bare = median(bare_cpu_s)
    round_s = settings.round.every_steps * STEP_S
    return {
        "survivor_gap_s": Figure(median(gaps), "s", 0.08, at_most=True),
        "learner_contributes_s": Figure(median(learner_s), "s", 4.0, at_most=True),
        "learner_start_cpu_s": _against(bare, median(learner_cpu_s)),
        "coordinator_commits_s": Figure(median(coordinator_s), "s", 3.0, at_most=True),
        "coordinator_start_cpu_s": _against(bare, median(coordinator_cpu_s)),
        "flush_commits_s": Figure(
            median(flush_s), "s", 3 * settings.liveness.beat_s + round_s, at_most=True
        ),
        "standby_commits_s": Figure(
            median(standby_s), "s", 2 * settings.liveness.lease_s, at_most=True
        ),
        "standby_gap_s": Figure(median(standby_gaps), "s", 0.08, at_most=True),
    }


def _keep_defaults(file: Path) -> None:
    """Leave in `run.toml` only where things are."""
    tables = file.read_text().split("\n[")
    kept = [
        t for t in tables if t.lstrip("[").startswith(("run]", "redis]", "store]", "task.args]"))
    ]
    file.write_text("\n[".join(kept) + "\n")


def _wait_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.monotonic()))


def _longest_gap(fleet: ChaosFleet, learner: str, since: float) -> float:
    """Between two steps that ended after `since`."""
    ends = [at for _, _, at in fleet.trace(learner) if at >= since]
    return max(after - before for before, after in pairwise(ends))


def _has_handed_in(fleet: ChaosFleet, learner: str, incarnation: int) -> bool:
    view = fleet.look()
    fields = (*view.handins, *view.receipts)
    return any(field.startswith(f"{learner}/{incarnation}/") for field in fields)


def _until_version(fleet: ChaosFleet, act: Callable[[], object]) -> float:
    """Seconds from `act` to the next commit, as the store has it."""
    commits = fleet.store / fleet.run / "commits"
    before = len(list(commits.iterdir()))
    started_at = time.monotonic()
    act()
    fleet.until(lambda: len(list(commits.iterdir())) > before, "the next commit")
    return time.monotonic() - started_at


def _against(bare_s: float, seconds: float) -> Figure:
    return Figure(seconds, "s", ratio=seconds / bare_s, of="a step of bare torch")


def _cpu_s(process: Process) -> float:
    """CPU seconds that a living process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _bare_cpu_s() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", BARE], check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def _flush(redis: EmbeddedRedis) -> None:
    with admin(redis.url) as client:
        client.flushall()


if __name__ == "__main__":
    sys.exit(main())
