"""What every method needs to know of what it trains; the modules `text` and `digits` are such."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn


class Workload(Protocol):
    def tokens_per_step(self) -> int:
        """Tokens, or images, in one step of one learner."""
        ...

    def make_model(self, seed: int) -> nn.Module:
        """The start weights follow from the seed alone."""
        ...

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def batches(self, seed: int, learner: int) -> Iterator[Tensor]:
        """The stream of one learner; its first dimension can be joined with those of others."""
        ...

    def train_step(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Tensor,
        *,
        local_steps: int,
        fraction: float,
    ) -> None:
        """One inner step; `fraction`: how much of the run is over, 0 to 1."""
        ...

    def heldout_loss(self, model: nn.Module) -> float: ...

    def accuracy(self, model: nn.Module) -> float | None:
        """Percent of right answers on held-out data; None where there is no such thing."""
        ...
