"""How long a contribution takes from its snapshot to the adoption of the version it made, in parts.

    just bench round [--json] [--rounds N]

One learner with steps of 50 ms and four fragments of 2.1M elements (int4 both ways), so that each
round closes with its hand-in; coordinator, Redis and a directory store are processes of this
machine. The reference is what the store alone takes for the same bytes: contribution, step, fragment,
outer state and record, put and (but the outer state and the fragment) read. N rounds count.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import torch
from torch import nn

import ddl
from ddl.coordinator.history import History
from ddl.core.learner import Plan, Staged
from ddl.embedded import EmbeddedRedis
from ddl.learner.up import Taken
from ddl.protocol.records import LogRecord
from ddl.store.local import LocalStore
from tests.bench.report import Figure, options, report
from tests.processes import Fleet

WIDTH = 1448
STEP_S = 0.05
LIMIT_S = 1.0
"""Two steps of half a second, tau steps of a model that is worth a GPU."""

RECORD_BYTES = 2_000


def make_model() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))


def build(ctx: ddl.TaskContext) -> ddl.Task:
    torch.manual_seed(ctx.seed)
    return ddl.Task(model=make_model())


class Watch:
    """Notes when things happen to a learner; seconds since the epoch, as Redis counts on this machine.

    Attributes:
        snapshots, announced: by (fragment, seq).
        staged, adopted: by (fragment, version).
    """

    def __init__(self, learner: ddl.Learner) -> None:
        self.snapshots: dict[tuple[int, int], float] = {}
        self.announced: dict[tuple[int, int], float] = {}
        self.staged: dict[tuple[int, int], float] = {}
        self.adopted: dict[tuple[int, int], float] = {}
        machine, up = learner._shared.machine, learner._up
        take, announce = up.take, machine.on_announced
        stage, begin = machine.on_staged, machine.begin

        def on_take(taken: Taken) -> None:
            self.snapshots[taken.snapshot.fragment, taken.snapshot.seq] = time.time()
            take(taken)

        def on_announced(fragment: int) -> None:
            self.announced[fragment, machine.tracks[fragment].seq] = time.time()
            announce(fragment)

        def on_staged(fragment: int, staged: Staged) -> None:
            self.staged[fragment, staged.version] = time.time()
            stage(fragment, staged)

        def on_begin(plan: Plan) -> None:
            for adoption in plan.adoptions:
                self.adopted[adoption.fragment, adoption.version] = time.time()
            begin(plan)

        up.take = on_take  # type: ignore[method-assign]
        machine.on_announced = on_announced  # type: ignore[method-assign]
        machine.on_staged = on_staged  # type: ignore[method-assign]
        machine.begin = on_begin  # type: ignore[method-assign]

    def parts(self, record: LogRecord) -> dict[str, float] | None:
        """Seconds of each part of one round; None if not all of it was seen."""
        (step,), (receipt,) = record.fragments, record.receipts
        handin, version = (step.fragment, receipt.seq), (step.fragment, step.version_after)
        if not (handin in self.snapshots and version in self.adopted):
            return None
        waits = record.waits
        snapshot, announced = self.snapshots[handin], self.announced[handin]
        merged_s = waits.fetch_s + waits.merge_s + waits.publish_s
        return {
            "upload_s": announced - snapshot,
            "fetch_s": waits.fetch_s,
            "merge_s": waits.merge_s,
            "publish_s": waits.publish_s,
            # waits for wake-ups and for the writer; the record is dated when it is begun
            "coordinator_rest_s": record.written_at - announced - merged_s,
            "record_and_download_s": self.staged[version] - record.written_at,
            "boundary_s": self.adopted[version] - self.staged[version],
            "handin_to_adopted_s": self.adopted[version] - snapshot,
        }


def train(address: str, num_rounds: int) -> Watch:
    """Train until so many rounds have been adopted."""
    model, gpu = make_model(), threading.Event()
    with ddl.Learner.join(address, model=model, id="a") as learner:
        watch = Watch(learner)
        while len(watch.adopted) < num_rounds and not learner.should_stop:
            gpu.wait(STEP_S)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1e-4)
            learner.step(tokens=100)
    return watch


def bare_store_s(store: LocalStore, record: LogRecord) -> float:
    """The bytes of one round through the store, and nothing else."""
    (step,) = record.fragments
    assert step.step is not None
    assert step.outer is not None
    small = os.urandom(step.step.bytes)  # a contribution has as many
    started = time.perf_counter()
    for number in range(2):
        store.put(f"bench/small-{number}", small)
        store.get(f"bench/small-{number}")
    for ref in (step.published, step.outer):
        store.put(f"bench/{ref.bytes}", bytes(ref.bytes))
    store.put("bench/record", bytes(RECORD_BYTES))
    return time.perf_counter() - started


def main() -> int:
    asked = options(__doc__ or "")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DDL_SPOOL"] = str(folder / "spool")
        with (
            EmbeddedRedis(folder / "redis", persist=False) as server,
            Fleet(folder, server.url, run="bench") as fleet,
        ):
            fleet.write_run(
                task={"file": __file__},
                fragments={"num": 4},
                codec={"up": "int4", "down": "int4-step"},
                round={"every_steps": 24, "overlap_steps": 2},
                liveness={"beat_s": 1.0, "suspect_s": 5.0, "gone_s": 15.0, "lease_s": 10.0},
                gate={"calm_rounds": 1_000_000},
            )
            fleet.coordinator()
            fleet.until(fleet.snapshot, "the run in Redis")
            watch = train(fleet.address, 4 * asked.rounds + 4)
        store = LocalStore(folder / "store")
        history = History(store, "bench")
        parts: dict[str, list[float]] = defaultdict(list)
        references: list[float] = []
        seq = 1
        while (entry := history.read(seq)) is not None:
            seq += 1
            found = watch.parts(entry.record) if entry.record.kind == "step" else None
            for key, seconds in (found or {}).items():
                parts[key].append(seconds)
            if found and len(references) < asked.rounds:
                references.append(bare_store_s(store, entry.record))
    reference = median(references)
    figures = {key: Figure(median(seconds), "s") for key, seconds in parts.items()}
    total = median(parts["handin_to_adopted_s"])
    figures["handin_to_adopted_s"] = Figure(
        total, "s", LIMIT_S, total / reference, "the bare store", at_most=True
    )
    figures["rounds"] = Figure(len(parts["upload_s"]), "")
    return report("round", figures, asked)


if __name__ == "__main__":
    raise SystemExit(main())
