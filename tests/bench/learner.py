"""What ddl costs the loop it is put around.

    just bench learner [--json] [--rounds N]

Everything runs on this machine: coordinator, Redis, a directory as store, and the loops. A round of a
case is the loops with ddl (a run made for it), then the same loops without, each in processes of
their own; `steps_ratio` is the median over the rounds of with / without.

* `gpu`: one loop whose step waits 50 ms without the GIL, as for a GPU, and does a small real update;
  with a sound store, one that answers the learner 10 times slower, and one that is away. `stall_ratio`
  is the share of the time that the loop spends in `Learner.step`.
* `link_100mbit`: the same with a model of 2.4M parameters in fp32 and both directions of the learner's
  link capped; `ddl plan` says that this link keeps up, and how much of it the run needs.
* `cpu_bound`: three loops that compute all the time, on the same cores as all the rest. The batch is
  chosen so that a step takes 26 ms alone, whatever machine this is; `cpu_bound.step_ms` is what it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ddl.config import Settings
from ddl.embedded import EmbeddedRedis
from ddl.plan import Situation, plan
from tests.bench import loops
from tests.bench.report import Figure, Options, options, report
from tests.processes import Fleet

GPU = ("--wait-s", "0.05", "--batch", "32")
LINK_WIDTH = 890
LINK = (*GPU, "--width", str(LINK_WIDTH))
LINK_MBIT = 100.0
FRAGMENTS = 4
CPU_STEP_S = 0.026
CPU_BATCH = 640
"""Samples a step, where the search for such a step begins."""


class Measured(NamedTuple):
    """Loops that ran side by side.

    Attributes:
        steps_per_s: of all together, while all were training.
        stall_ratio: share of their time in `Learner.step`.
        cpu_per_step_s: CPU time of a loop's process beside the training thread's, per step.
    """

    steps_per_s: float
    stall_ratio: float
    cpu_per_step_s: float


def side_by_side(commands: Sequence[Sequence[str]]) -> Measured:
    """Run the loops at the same time, each in a process of its own."""
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryDirectory())
        processes = [stack.enter_context(_process(command, spool)) for command in commands]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise SystemExit("a loop did not get ready; what it said is above")
        for process in processes:
            _tell(process)
        found = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
        for process in processes:
            _tell(process)
        for process in processes:
            process.wait(60)
    return _summary(found)


def _summary(found: Sequence[dict[str, Any]]) -> Measured:
    begin = max(row["ends"][0] for row in found)
    end = min(row["ends"][-1] for row in found)
    steps = sum(sum(begin < at <= end for at in row["ends"]) for row in found)
    all_steps = sum(len(row["ends"]) - 1 for row in found)
    trained_s = sum(row["ends"][-1] - row["ends"][0] for row in found)
    return Measured(
        steps / (end - begin),
        sum(row["stall_s"] for row in found) / trained_s,
        sum(row["cpu_s"] - row["training_cpu_s"] for row in found) / all_steps,
    )


@contextmanager
def _process(arguments: Sequence[str], spool: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, loops.__file__, *arguments],
        env=os.environ | {"DDL_SPOOL": spool},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def run_of(num_learners: int, width: int = loops.WIDTH) -> Iterator[str]:
    """A coordinator, its Redis and its directory; gives the address to join."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            EmbeddedRedis(folder / "redis", persist=False) as server,
            Fleet(folder, server.url, run="bench") as fleet,
        ):
            sections: dict[str, dict[str, object]] = {
                "task": {"file": loops.__file__},
                "task.args": {"width": width},
                "fragments": {"num": FRAGMENTS},
                "round": {"every_steps": 24, "overlap_steps": 2, "quorum": num_learners},
                "outer": {"preset": "fixed"},  # one pace: that of a run after its early versions
                "liveness": {"beat_s": 1.0, "suspect_s": 5.0, "gone_s": 15.0, "lease_s": 10.0},
            }
            fleet.write_run(**sections)
            fleet.coordinator()
            fleet.until(fleet.snapshot, "the run in Redis")
            yield fleet.address
            fleet.until_version(1, within_s=1.0)  # that work was merged at all


def compare(
    asked: Options,
    step: Sequence[str],
    *,
    num: int = 1,
    width: int = loops.WIDTH,
    through: Sequence[str] = (),
) -> tuple[float, Measured, Measured]:
    """With / without ddl: the median ratio of steps per second; the medians of both sides."""
    pairs = []
    for _ in range(asked.rounds):
        with run_of(num, width) as address:
            joined = ("--join", address, *through)
            ours = side_by_side([(*step, *joined, "--id", f"l{i}") for i in range(num)])
        pairs.append((ours, side_by_side([step] * num)))
    ratio = median(ours.steps_per_s / plain.steps_per_s for ours, plain in pairs)
    with_, without = (
        Measured(*map(median, zip(*side, strict=True))) for side in zip(*pairs, strict=True)
    )
    return ratio, with_, without


def cpu_step() -> tuple[Sequence[str], float]:
    """A step that computes for about `CPU_STEP_S` when it has a core of its own, and what it takes."""

    def step(batch: int) -> Sequence[str]:
        return "--wait-s", "0", "--batch", str(batch)

    def alone_s(batch: int) -> float:
        loop = (*step(batch), "--warm-s", "1", "--seconds", "4")
        return 1 / side_by_side([loop]).steps_per_s

    batch = round(CPU_BATCH * CPU_STEP_S / alone_s(CPU_BATCH))
    return step(batch), alone_s(batch)


def planned_link() -> tuple[float, bool]:
    """What `ddl plan` says of the shaped link: the share of it that is used, and whether that is enough."""
    link = LINK_MBIT * 1e6 / 8
    settings = Settings()  # H = 24, tau = 2, fp32
    numel = sum(p.numel() for p in loops.make_model(LINK_WIDTH).parameters())
    situation = Situation(
        fragments=(numel // FRAGMENTS,) * FRAGMENTS,
        learners=1,
        step_s=0.06,
        up_bytes_per_s=link,
        down_bytes_per_s=link,
        coordinator_bytes_per_s=1e10,
        settings=settings,
    )
    found = plan(situation)
    return found.traffic.up_bytes / found.round_every_s / link, found.hand_in.keeps_up


def main() -> int:
    asked = options(__doc__ or "")
    figures: dict[str, Figure] = {}
    for key, store in (("", "sound"), ("slow_store.", "slow"), ("store_away.", "away")):
        ratio, ours, plain = compare(asked, GPU, through=("--store", store))
        figures[f"{key}steps_ratio"] = Figure(ratio, "ratio", 0.98)
        figures[f"{key}stall_ratio"] = Figure(ours.stall_ratio, "ratio", 0.01, at_most=True)
        figures[f"{key}background_ms_per_step"] = Figure(1e3 * ours.cpu_per_step_s, "ms")
    needs, keeps_up = planned_link()
    through = ("--link-mbit", str(LINK_MBIT))
    ratio, ours, plain = compare(asked, LINK, width=LINK_WIDTH, through=through)
    figures["link_100mbit.needs"] = Figure(needs, "ratio")
    figures["link_100mbit.keeps_up"] = Figure(float(keeps_up), "", 1.0)
    figures["link_100mbit.steps_ratio"] = Figure(ratio, "ratio", 0.98)
    figures["link_100mbit.stall_ratio"] = Figure(ours.stall_ratio, "ratio", 0.01, at_most=True)
    step, step_s = cpu_step()
    ratio, ours, plain = compare(asked, step, num=3)
    figures["cpu_bound.step_ms"] = Figure(1e3 * step_s, "ms")
    figures["cpu_bound.steps_ratio"] = Figure(ratio, "ratio", 0.92)
    figures["cpu_bound.plain_steps_per_s"] = Figure(plain.steps_per_s, "1/s")
    figures["cpu_bound.background_ms_per_step"] = Figure(1e3 * ours.cpu_per_step_s, "ms")
    return report("learner", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
