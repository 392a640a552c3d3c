"""A small regression with steps of `step_s`, which can get stuck where the argument `stuck` says.

It touches the file `mark` when it is stuck there. The steps taken stand in the file LEARNER.steps,
and each step is a line of LEARNER.trace: the run's clock, the learning rate in force, and when it
ended by the machine's monotonic clock.
"""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path
from typing import Any

import torch

import ddl
from ddl.store.local import LocalStore

FOREVER_S = 600
STUCK_AT_STEP = 12
TOKENS = 16
WARM_UP, END, FLOOR = 20 * TOKENS, 100 * TOKENS, 0.1


def factor(progress: ddl.Progress) -> float:
    """A schedule over the run's clock: warm-up, decay, and a floor from its end on."""
    if progress.tokens < WARM_UP:
        return (progress.tokens + TOKENS) / (WARM_UP + TOKENS)
    left = max(0.0, (END - progress.tokens) / (END - WARM_UP))
    return FLOOR + (1.0 - FLOOR) * left


def build(ctx: ddl.TaskContext) -> ddl.Task:
    stuck, mark = str(ctx.args.get("stuck", "")), Path(str(ctx.args.get("mark", "")))
    seconds = int(ctx.args.get("seconds", 0))

    def get_stuck() -> None:
        mark.touch()
        threading.Event().wait(FOREVER_S)

    if stuck == "build":
        get_stuck()
    if stuck in ("download", "upload"):
        _stick(stuck, get_stuck)
    torch.manual_seed(ctx.seed)
    width = int(ctx.args.get("width", 16))
    model = torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3 / width)
    clock = threading.Event()
    step_s = float(ctx.args.get("step_s", 0.02))
    taken, trace = Path(f"{ctx.learner}.steps"), Path(f"{ctx.learner}.trace")

    def step(batch: torch.Tensor, progress: ddl.Progress) -> ddl.StepResult:
        clock.wait(step_s)
        taken.write_text(str(progress.local_steps))
        with trace.open("a") as file:
            rate = optimizer.param_groups[0]["lr"]
            file.write(f"{progress.tokens} {rate!r} {time.monotonic()!r}\n")
        if progress.local_steps == STUCK_AT_STEP:
            match stuck:
                case "step":
                    get_stuck()
                case "step in C":
                    mark.touch()
                    ctypes.CDLL(None).sleep(FOREVER_S)
                case "step with the GIL":
                    mark.touch()
                    ctypes.PyDLL(None).sleep(seconds)
                case "raise":
                    raise ZeroDivisionError("the loss is no more")
        loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return ddl.StepResult(loss=loss, tokens=len(batch))

    return ddl.Task(
        model=model, optimizer=optimizer, batches=_Batches(), step=step, lr_factor=factor
    )


class _Batches:
    def __iter__(self) -> Any:
        while True:
            yield torch.randn(TOKENS, 8)


def _stick(what: str, get_stuck: Any) -> None:
    """Let the first transfer of that kind never end."""
    name, folder = ("get", "/fragments/") if what == "download" else ("put", "/contributions/")
    original = getattr(LocalStore, name)

    def transfer(self: LocalStore, key: str, *args: Any, **kwargs: Any) -> Any:
        if folder in key:
            get_stuck()
        return original(self, key, *args, **kwargs)

    setattr(LocalStore, name, transfer)
