"""What numeric learners train: weights by name that change in place, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from ddl.merge.inspect import describe_model
from ddl.merge.layout import dtype_of
from ddl.protocol.records import Layout


class NumericTask(Protocol):
    """`tensors`: the weights by canonical name; `step` moves them in place."""

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...

    def step(self) -> int:
        """Take one step; return its tokens."""
        ...


class ConstantGradient:
    """Every step takes `lr * gradient` off every weight; lr 0 is the null learner."""

    def __init__(
        self, layout: Layout, *, gradient: float = 1.0, lr: float = 0.0, tokens: int = 100
    ) -> None:
        self.tensors = {s.name: torch.zeros(s.shape, dtype=dtype_of(s)) for s in layout.tensors}
        self._parameters = [s.name for s in layout.tensors if s.kind == "parameter"]
        self.gradient = gradient
        self.lr = lr
        self.tokens = tokens

    def step(self) -> int:
        for name in self._parameters:
            self.tensors[name] -= self.lr * self.gradient
        return self.tokens


class Regression:
    """A small network that learns a fixed function from its own stream of random points."""

    def __init__(self, *, seed: int, lr: float = 0.05, batch: int = 16) -> None:
        self.model = make_regression_model()
        self.tensors = describe_model(self.model).tensors
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self._points = torch.Generator().manual_seed(seed)
        self._batch = batch

    def step(self) -> int:
        x = torch.randn(self._batch, 4, generator=self._points)
        self._optimizer.zero_grad()
        loss = regression_loss(self.model, x)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return self._batch


def make_regression_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def regression_loss(model: nn.Module, x: Tensor) -> Tensor:
    target = torch.sin(x.sum(dim=1, keepdim=True))
    loss: Tensor = ((model(x) - target) ** 2).mean()
    return loss
