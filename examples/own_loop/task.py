"""What the coordinator needs of a run whose learners have their own loop: the model.

`evaluate` is for `ddl evaluate` and may be left out.
"""

from __future__ import annotations

import torch
from spirals import Spirals, accuracy

import ddl


def build(ctx: ddl.TaskContext) -> ddl.Task:
    torch.manual_seed(ctx.seed)
    return ddl.Task(
        model=Spirals().to(ctx.device),
        evaluate=lambda model: {"accuracy": accuracy(model)},
    )
