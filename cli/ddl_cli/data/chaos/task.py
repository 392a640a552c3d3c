"""The GPT of `ddl demo`, on a simulated accelerator: a step is a small real one, and then a wait until
`step_s` are over, with the GIL released. So two cores carry eight learners.

Arguments, beside those of the GPT:

    step_s    seconds that each step takes
    steps     file that each step is written to when it is taken, a line "INSTANT LIFE LOSS"
"""

from __future__ import annotations

import os
import time
from typing import Any

import ddl
from ddl_cli.data.stdlib_gpt import task as gpt


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """The GPT's task, with a step of its own where it is to train."""
    own = ("step_s", "steps")
    step_s, steps = float(ctx.args["step_s"]), str(ctx.args.get("steps", os.devnull))
    args = {name: value for name, value in ctx.args.items() if name not in own}
    task = gpt.build(ddl.TaskContext(**{**vars(ctx), "args": args}))
    if ctx.purpose != "train":
        return task
    optimizer, count = task.optimizer, task.tokens
    assert optimizer is not None
    assert count is not None
    log = os.open(steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def step(batch: Any, _: ddl.Progress) -> ddl.StepResult:
        over = time.monotonic() + step_s
        optimizer.zero_grad()
        loss = task.mean_loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        value = loss.item()
        time.sleep(max(0.0, over - time.monotonic()))
        # one write at a time, straight to the kernel: a SIGKILL takes nothing of it away
        os.write(log, f"{time.time():.3f} {ctx.incarnation} {value:.4f}\n".encode())
        return ddl.StepResult(loss=value, tokens=count(batch))

    return ddl.Task(
        model=task.model,
        optimizer=optimizer,
        batches=task.batches,
        step=step,
        lr_factor=task.lr_factor,
        evaluate=task.evaluate,
    )
