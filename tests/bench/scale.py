"""What a coordinator needs for many learners.

    just bench scale [--json] [--rounds N]

8, 64 and 512 simulated learners (`crowd.py`, a process of its own) over a real Redis: a round every
2 s that waits for all of them, a beat a second, fragments of 1,000 elements. After a warm-up 4 N
rounds are measured with the most learners (so `--rounds 250` looks at memory over 1,000, in 35
minutes), and no more than 28 with fewer. CPU and memory are those of the coordinator's process;
commands are all that Redis has carried out, those within scripts too, for each learner and round.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddl.embedded import EmbeddedRedis
from tests.bench import crowd
from tests.bench.report import Figure, Options, options, report
from tests.processes import Fleet
from tests.redis_servers import admin

SIZES = (8, 64, 512)
WARM_ROUNDS = 5
FEWER_LEARNERS_ROUNDS = 28
COMMANDS_MAX = 200.0
"""Commands of Redis for each learner and round, however many learners there are."""
GROWTH_MAX_MB = 16.0
ROUND_S_MAX = 2.5


class Sample(NamedTuple):
    """State of things at one moment; `commands` are those of Redis so far, `merged` contributions."""

    at: float
    version: int
    cpu_s: float
    rss_mb: float
    commands: int
    merged: float

    @classmethod
    def take(cls, fleet: Fleet, pid: int) -> Sample:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        with admin(fleet.redis_url) as client:
            stats = client.info("stats")
        assert isinstance(stats, dict)
        shown = fleet.snapshot()
        assert shown is not None
        return cls(
            at=time.monotonic(),
            version=shown.run.global_version,
            cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
            rss_mb=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            commands=int(stats["total_commands_processed"]),
            merged=crowd.FRAGMENTS * shown.ledger.merged / crowd.TOKENS,  # in equal shares
        )


def measure(num: int, asked: Options) -> dict[str, Figure]:
    """Figures of one size."""
    is_limit = num == max(SIZES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            EmbeddedRedis(folder / "redis", persist=False) as server,
            Fleet(folder, server.url, run=crowd.RUN) as fleet,
        ):
            fleet.write_run(
                task={"file": crowd.__file__},
                fragments={"num": crowd.FRAGMENTS},
                round={"every_steps": 32, "overlap_steps": 2, "quorum": num},
                liveness={"beat_s": 1.0, "suspect_s": 20.0, "gone_s": 60.0, "lease_s": 10.0},
            )
            coordinator = fleet.coordinator()
            fleet.until(fleet.snapshot, "the run in Redis")
            with _crowd(server.url, folder / "store", num):
                rounds = 4 * asked.rounds
                if not is_limit:
                    rounds = min(rounds, FEWER_LEARNERS_ROUNDS)
                patience_s = 60.0 + 20.0 * rounds
                fleet.until_version(WARM_ROUNDS, within_s=patience_s)
                first = Sample.take(fleet, coordinator.pid)
                fleet.until_version(WARM_ROUNDS + rounds, within_s=patience_s)
                last = Sample.take(fleet, coordinator.pid)
    took_s, done = last.at - first.at, last.version - first.version
    cores = (last.cpu_s - first.cpu_s) / took_s
    commands = (last.commands - first.commands) / num / done
    merged = last.merged - first.merged
    key = f"learners_{num}"
    return {
        f"{key}.cpu_cores": Figure(cores, "cores", 1.0 if is_limit else None, at_most=True),
        f"{key}.cpu_ms_per_contribution": Figure(1e3 * cores * took_s / merged, "ms"),
        f"{key}.redis_commands_per_learner_round": Figure(commands, "", COMMANDS_MAX, at_most=True),
        # else the machine was too busy for the crowd to live as fast as it should
        f"{key}.round_every_s": Figure(took_s / done, "s", ROUND_S_MAX, at_most=True),
        f"{key}.rss_mb": Figure(last.rss_mb, "MB"),
        f"{key}.rss_growth_mb": Figure(
            last.rss_mb - first.rss_mb, "MB", GROWTH_MAX_MB, at_most=True
        ),
    }


@contextmanager
def _crowd(redis_url: str, store: Path, num: int) -> Iterator[None]:
    arguments = ["--redis", redis_url, "--store", str(store), "--learners", str(num)]
    process = subprocess.Popen(
        [sys.executable, crowd.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the learners did not get ready; what they said is above")
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    asked = options(__doc__ or "")
    figures: dict[str, Figure] = {}
    for num in SIZES:
        figures |= measure(num, asked)
    growth = max(f.value for key, f in figures.items() if key.endswith("rss_growth_mb"))
    figures["rss_growth_mb"] = Figure(growth, "MB", GROWTH_MAX_MB, at_most=True)
    return report("scale", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
