"""Two spirals to tell apart: a model, and points drawn without end.

Shapes: B points; x [B, 2] float32, y [B] int64, the spiral that each point lies on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

TURNS = 1.5


class Spirals(nn.Module):
    """Logits of the two spirals, [B, 2]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def points(num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw points of both spirals, with some noise."""
    y = torch.randint(2, (num,), generator=generator)
    radius = torch.rand(num, generator=generator).sqrt()
    angle = 2 * math.pi * TURNS * radius + math.pi * y
    x = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return x + 0.02 * torch.randn(x.shape, generator=generator), y


def batches(num: int, size: int = 2048) -> Iterator[tuple[Tensor, Tensor]]:
    """Points of this process's own: every machine is to see others."""
    generator = torch.Generator()
    generator.seed()
    for _ in range(num):
        yield points(size, generator)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Share of 4,096 fixed points that are told right."""
    x, y = points(4096, torch.Generator().manual_seed(0))
    return float((model(x).argmax(dim=1) == y).float().mean())
