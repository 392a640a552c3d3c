"""A training loop to measure, with ddl around it or without: a process of the learner benchmark.

    python tests/bench/loops.py [--join ADDRESS --id ID] [--wait-s 0.05] [--batch 32] [--store slow]

It gets ready, says so on stdout, waits for a line on stdin, trains `--warm-s` seconds uncounted and
`--seconds` counted, and prints one JSON document: what it measured. As a task file it gives the
coordinator the same model.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import ddl
from ddl.errors import StoreUnavailableError
from ddl.learner import session
from ddl.store.base import Body, Mode, Progress, Store
from ddl.store.open_url import open_url
from tests.stores import HookedStore

T = TypeVar("T")

WIDTH = 362
"""Makes about 0.4M parameters."""


def make_model(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers)


def build(ctx: ddl.TaskContext) -> ddl.Task:
    torch.manual_seed(ctx.seed)
    return ddl.Task(model=make_model(int(ctx.args.get("width", WIDTH))))


class Step:
    """One step: what a GPU would take, as a wait without the GIL, and a real update.

    Args:
        wait_s: how long to wait; 0 for a step that is all computed here.
        batch, width: samples and layers of the real update.
    """

    def __init__(self, wait_s: float, batch: int, width: int) -> None:
        self.model = make_model(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.batch = batch
        self._wait_s = wait_s
        self._points = torch.randn(batch, width, generator=torch.Generator().manual_seed(1))
        self._device = threading.Event()

    def __call__(self) -> Tensor:
        if self._wait_s:
            self._device.wait(self._wait_s)
        loss: Tensor = (self.model(self._points) - self._points).square().mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss


class TroubledStore(HookedStore):
    """Once there is `trouble` it answers 10 times slower, or not at all."""

    def __init__(self, store: Store, kind: str, trouble: threading.Event) -> None:
        super().__init__(store)
        self._kind = kind
        self._trouble = trouble
        self._never = threading.Event()

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        def put() -> bool:
            return HookedStore.put(self, key, body, mode=mode, progress=progress)

        return self._call(put)

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        return self._call(lambda: HookedStore.get(self, key, progress=progress))

    def _call(self, action: Callable[[], T]) -> T:
        if not self._trouble.is_set():
            return action()
        if self._kind == "away":
            raise StoreUnavailableError("the store is away")
        started = time.perf_counter()
        result = action()
        self._never.wait(9 * (time.perf_counter() - started))
        return result


MERGED_S = 30.0
"""Longest wait for a first version; without one the benchmark ends with an error."""


def measure(
    step: Step,
    learner: ddl.Learner | None,
    trouble: threading.Event,
    *,
    warm_s: float,
    seconds: float,
) -> dict[str, Any]:
    """Train, and tell when each step ended (monotonic), and what it took. Counted is from `warm_s` on,
    and, for up to `MERGED_S` more, from when the learner has a version with its work; trouble begins then.
    """
    ends: list[float] = []
    inside_s = cpu_s = training_s = 0.0
    begin = time.monotonic() + warm_s
    end = float("inf")

    def is_warm(now: float) -> bool:
        has_merged = learner is None or learner.progress.global_version > 0
        return now >= begin and (has_merged or now >= begin + MERGED_S)

    while (now := time.monotonic()) < end:
        if end == float("inf") and is_warm(now):
            ends, inside_s, end = [now], 0.0, now + seconds
            trouble.set()
            cpu_s, training_s = -time.process_time(), -time.thread_time()
        loss = step()
        if learner is not None:
            entered = time.perf_counter()
            learner.step(tokens=step.batch, loss=loss)
            inside_s += time.perf_counter() - entered
        ends.append(time.monotonic())
    return {
        "ends": ends,
        "stall_s": inside_s,
        "cpu_s": cpu_s + time.process_time(),
        "training_cpu_s": training_s + time.thread_time(),
    }


def _through_link(mbit: float, *args: Any, **kwargs: Any) -> Store:
    return open_url(*args, **(kwargs | {"up_mbit": mbit, "down_mbit": mbit}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--join", default="")
    parser.add_argument("--id", default="a")
    parser.add_argument("--wait-s", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--store", choices=("sound", "slow", "away"), default="sound")
    parser.add_argument("--link-mbit", type=float, help="cap, up and down")
    parser.add_argument("--warm-s", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    trouble = threading.Event()
    if given.store != "sound":
        session.open_url = lambda *args, **kwargs: TroubledStore(  # type: ignore[attr-defined]
            open_url(*args, **kwargs), given.store, trouble
        )
    if given.link_mbit:
        session.open_url = partial(  # type: ignore[attr-defined]
            _through_link, given.link_mbit
        )
    step = Step(given.wait_s, given.batch, given.width)
    joined = (
        ddl.Learner.join(given.join, model=step.model, optimizer=step.optimizer, id=given.id)
        if given.join
        else nullcontext()
    )
    with joined as learner:
        print("ready", flush=True)
        sys.stdin.readline()
        result = measure(step, learner, trouble, warm_s=given.warm_s, seconds=given.seconds)
        print(json.dumps(result), flush=True)
        sys.stdin.readline()  # the others may be measuring still: leaving costs something too


if __name__ == "__main__":
    main()
