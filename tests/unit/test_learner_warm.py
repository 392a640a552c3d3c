from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddl.errors import DdlError
from ddl.learner.warm import WarmState


class Counted:
    """Batches with a position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.position += 1
            yield self.position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def parts(lr: float = 0.1) -> tuple[nn.Module, torch.optim.Optimizer, Counted]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=lr, amsgrad=True), Counted()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        loss = model(torch.full((4, 3), 1.0 + step)).square().sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def warm(
    path: Path, optimizer: torch.optim.Optimizer, batches: Counted, lineage: str = "x"
) -> WarmState:
    return WarmState(path, lineage=lineage, optimizer=optimizer, batches=batches)


def test_the_next_life_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Five steps, a restart, five more: equal to ten without a restart, bit for bit."""
    model, optimizer, batches = parts()
    train(model, optimizer, 5)
    batches.position = 17
    state = warm(tmp_path / "w", optimizer, batches)
    state.write(state.copy())
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, optimizer, 5)

    again, fresh, place = parts()
    again.load_state_dict(weights)
    assert "resumes" in warm(tmp_path / "w", fresh, place).restore()
    train(again, fresh, 5)
    assert place.position == 17
    for name, value in model.state_dict().items():
        assert value.equal(again.state_dict()[name])


def test_the_code_s_learning_rate_is_in_force(tmp_path: Path) -> None:
    """A restart with another learning rate must not bring the old one back."""
    _, optimizer, batches = parts(lr=0.1)
    state = warm(tmp_path / "w", optimizer, batches)
    state.write(state.copy())
    _, slower, place = parts(lr=0.01)
    warm(tmp_path / "w", slower, place).restore()
    assert slower.param_groups[0]["lr"] == 0.01


def test_nothing_left_is_nothing_said(tmp_path: Path) -> None:
    """A first life starts cold without a word."""
    _, optimizer, batches = parts()
    assert warm(tmp_path / "w", optimizer, batches).restore() == ""


def test_what_does_not_fit_is_left_alone(tmp_path: Path) -> None:
    """Another run, another optimizer, other parameters, a damaged file: cold, with the reason."""
    model, optimizer, batches = parts()
    train(model, optimizer, 1)
    path = tmp_path / "w"
    state = warm(path, optimizer, batches)
    state.write(state.copy())
    assert "another run" in warm(path, optimizer, batches, lineage="y").restore()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "is of AdamW, the optimizer is SGD" in warm(path, sgd, batches).restore()
    other = torch.optim.AdamW(nn.Linear(4, 2).parameters())
    assert "other parameters" in warm(path, other, batches).restore()
    path.write_bytes(path.read_bytes()[:-3])
    assert "starts cold" in warm(path, optimizer, batches).restore()


def test_a_state_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing is pickled: the learner then starts cold, and says why."""
    _, optimizer, batches = parts()
    batches.position = object()  # type: ignore[assignment]
    with pytest.raises(DdlError, match="cannot be kept as JSON"):
        warm(tmp_path / "w", optimizer, batches).copy()


def test_saving_costs_little_of_the_training_thread() -> None:
    """At least 30 s apart, and 200 times what a copy took: a copy of 2 s waits 400 s."""
    _, optimizer, batches = parts()
    state = warm(Path("unused"), optimizer, batches)
    assert not state.is_due(0.0)
    assert not state.is_due(29.0)
    assert state.is_due(30.0)
    state.took(100.0, 2.0)
    assert not state.is_due(499.0)
    assert state.is_due(500.0)
