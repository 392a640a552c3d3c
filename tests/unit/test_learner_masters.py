"""T41: a model in bf16 whose optimizer keeps fp32 master copies, through hand-in and adoption."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ddl.learner.port import ModelPort
from ddl.merge.inspect import describe_model
from ddl.merge.layout import plan_layout
from ddl.merge.movement import Movement


class MasterSGD:
    """Plain SGD on fp32 copies, which it makes at its first step and casts back after each."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self._parameters = list(model.parameters())
        self._lr = lr
        self._copies: dict[Tensor, Tensor] = {}

    def master(self, parameter: Tensor) -> Tensor | None:
        return self._copies.get(parameter)

    @torch.no_grad()
    def step(self, gradient: float) -> None:
        for parameter in self._parameters:
            copy = self._copies.setdefault(parameter, parameter.detach().float())
            copy -= self._lr * gradient
            parameter.copy_(copy)


class Side:
    def __init__(self, num_fragments: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).bfloat16()
        layout = plan_layout(
            describe_model(self.model).infos, num=num_fragments, method="mean", every_steps=8
        )
        self.fragments = range(layout.num_fragments)
        self.optimizer = MasterSGD(self.model, lr=1e-4)
        self.port = ModelPort(self.model, layout, self.optimizer.master)
        self.movements = [Movement(specs) for specs in layout.by_fragment]

    def adopt(self, published: dict[str, Tensor], *, first: bool = False) -> None:
        for p, movement in enumerate(self.movements):
            mine = {name: published[name] for name in self.port.current(p)}
            mastered = self.port.mastered(p)
            values = (
                movement.realign(mine, mastered=mastered)
                if first
                else movement.adopt(self.port.current(p), mine, mode="carry", mastered=mastered)
            )
            self.port.assign(values)

    def deltas(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for p, movement in enumerate(self.movements):
            found |= movement.hand_in(self.port.read(p).parameters)
        return found


@pytest.mark.parametrize("num_fragments", [1, 2])
def test_master_copies_are_what_moves(num_fragments: int) -> None:
    """A step too small for bf16 is handed in whole. After adoption parameter and master agree with
    the published version plus what was not handed in, and the next step goes on from there."""
    side = Side(num_fragments)
    start = {name: p.detach().float() for name, p in side.model.named_parameters()}
    side.adopt(start, first=True)
    assert all(side.port.mastered(p) == frozenset() for p in side.fragments)
    before = {name: p.detach().clone() for name, p in side.model.named_parameters()}
    side.optimizer.step(gradient=1.0)
    large = [n for n, p in before.items() if p.equal(side.model.get_parameter(n))]
    assert large, "of some parameters bf16 shows nothing of so small a step"
    for delta in side.deltas().values():
        # 1e-4 to within a rounding of a weight of about 0.5 in fp32
        torch.testing.assert_close(delta, torch.full_like(delta, 1e-4), rtol=0, atol=6e-8)
    third = {name: value + 1 / 3 for name, value in start.items()}  # no bf16 number
    side.adopt(third)
    for name, parameter in side.model.named_parameters():
        master = side.optimizer.master(parameter)
        assert master is not None
        torch.testing.assert_close(master, third[name] - 1e-4, rtol=0, atol=1e-6)
        assert master.bfloat16().equal(parameter.detach())
    side.adopt(third, first=True)
    for name, parameter in side.model.named_parameters():
        master = side.optimizer.master(parameter)
        assert master is not None
        assert master.equal(third[name]), "a re-aligned master is the very version"
        assert master.bfloat16().equal(parameter.detach())
    assert not any(delta.any() for delta in side.deltas().values())
    side.optimizer.step(gradient=-1.0)
    for delta in side.deltas().values():
        torch.testing.assert_close(delta, torch.full_like(delta, -1e-4), rtol=0, atol=1.2e-7)


def test_without_master_copies_what_bf16_cannot_hold_is_not_handed_in() -> None:
    """The rounding at an adoption is nobody's work (design 3.1)."""
    side = Side(1)
    third = {name: p.detach().float() + 1 / 3 for name, p in side.model.named_parameters()}
    side.adopt(third, first=True)
    assert not any(delta.any() for delta in side.deltas().values())
    side.adopt({name: value + 1 / 7 for name, value in third.items()})
    assert not any(delta.any() for delta in side.deltas().values())
