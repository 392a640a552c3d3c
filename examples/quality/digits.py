"""The net with BatchNorm of `examples/digits`: do statistics survive the merge?

Shapes: a batch is (B, 65), 64 pixels and the digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn

from examples.digits import task
from examples.quality import methods
from examples.quality.cells import Cell, Outcome

ARGS = task.settings_of({})


def train(cell: Cell) -> Outcome:
    """A cell, in whatever process."""
    from examples.quality import digits

    return methods.train(cell, digits)


@cache
def images() -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Rows to train on (N, 65), and what is held out."""
    rows, held_out = task.read_images(turned=False)
    return torch.stack([torch.cat([x, y[None].float()]) for x, y in rows]), held_out


def tokens_per_step() -> int:
    return int(ARGS["batch"])


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return task.make_model(ARGS)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=ARGS["lr"], weight_decay=0.05)


def batches(seed: int, learner: int) -> Iterator[Tensor]:
    """Rows drawn with a generator of the learner's own."""
    train, _ = images()
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + learner)
    while True:
        yield train[torch.randint(len(train), (ARGS["batch"],), generator=generator)]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    *,
    local_steps: int,  # noqa: ARG001 - no warm-up is needed
    fraction: float,
) -> None:
    """One step of AdamW, at the learning rate of where the run stands (as in the example)."""
    for group in optimizer.param_groups:
        group["lr"] = ARGS["lr"] * (1.0 - 0.95 * fraction)
    optimizer.zero_grad(set_to_none=True)
    task.loss(model, (batch[:, :-1], batch[:, -1].long())).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def heldout_loss(model: nn.Module) -> float:
    _, held_out = images()
    return task.measure(model, held_out)["loss"]


def accuracy(model: nn.Module) -> float | None:
    _, held_out = images()
    return task.measure(model, held_out)["accuracy"]
