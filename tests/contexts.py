"""What a task file's `build` is given, where a test builds a task itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ddl.task import TaskContext


def context(**changes: Any) -> TaskContext:
    """Of a learner's first life, on the CPU, without arguments."""
    plain = TaskContext(
        run="r",
        seed=7,
        purpose="train",
        learner="a",
        incarnation=1,
        data_seed=1,
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        args={},
    )
    return dataclasses.replace(plain, **changes)
