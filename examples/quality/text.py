"""What all methods train: the byte-level GPT of `examples/stdlib_gpt`, on the same batches.

Shapes: B windows of T + 1 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ddl_cli.data.stdlib_gpt import task as gpt

ARGS: dict[str, Any] = gpt.settings_of({})


@cache
def texts() -> tuple[Tensor, Tensor]:
    """Training text (bytes,) and held-out windows (N, T + 1)."""
    train, held_out = gpt.read_text("")
    return train, gpt.held_out_windows(held_out, ARGS["context"])


def tokens_per_step() -> int:
    return int(ARGS["batch"] * ARGS["context"])


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return gpt.ByteGPT(width=ARGS["width"], depth=ARGS["depth"], context=ARGS["context"])


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return gpt.make_optimizer(model, ARGS["lr"])


def batches(seed: int, learner: int) -> Iterator[Tensor]:
    """The stream of one learner: (B, T + 1), windows drawn with a generator of its own."""
    train, _ = texts()
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + learner)
    reach = torch.arange(ARGS["context"] + 1)
    while True:
        starts = torch.randint(
            len(train) - ARGS["context"] - 1, (ARGS["batch"],), generator=generator
        )
        yield train[starts[:, None] + reach].long()


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Tensor,
    *,
    local_steps: int,
    fraction: float,
) -> None:
    """One step of AdamW, at the learning rate of where the run stands (as in the example)."""
    warmed = min(1.0, (local_steps + 1) / ARGS["warmup"])
    for group in optimizer.param_groups:
        group["lr"] = ARGS["lr"] * warmed * (1.0 - 0.9 * fraction)
    optimizer.zero_grad(set_to_none=True)
    gpt.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def heldout_loss(model: nn.Module) -> float:
    _, windows = texts()
    return torch.stack([gpt.loss(model, part) for part in windows.chunk(8)]).mean().item()


def accuracy(_model: nn.Module) -> float | None:
    """There is no such thing."""
    return None
