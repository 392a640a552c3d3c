"""The work of `text` as a task file: who is called `NAME-N` draws the batches of learner N - 1."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import ddl
from ddl_cli.data.stdlib_gpt import task as gpt

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.quality import text


def build(ctx: ddl.TaskContext) -> ddl.Task:
    """The example's own, but for the batches."""
    task = gpt.build(ctx)
    if ctx.purpose != "train":
        return task
    assert ctx.learner is not None
    number = int(ctx.learner.rpartition("-")[2]) - 1
    return dataclasses.replace(task, batches=text.batches(ctx.seed, number))
