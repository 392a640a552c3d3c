"""The outer step of each kernel equals torch's SGD bit for bit, and a table worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddl.fused.sizes import TILE
from ddl.merge.kernel import Kernel, Outer


def nesterov(
    kernel: Kernel, theta: Tensor, gradient: Tensor, buf: Tensor | None, *, lr: float, mu: float
) -> Outer:
    into = Outer(torch.empty_like(theta), torch.empty_like(theta))
    kernel.step(gradient, 1.0, theta, buf, into, lr=lr, mu=mu)
    return into


def test_three_rounds_by_hand(kernel: Kernel) -> None:
    """Theta = 1, eta = 0.5, mu = 0.5; the last round has a zero gradient: only momentum moves.

    g = 0.4: buf = 0.4;                     Theta = 1   - 0.5 * (0.4 + 0.5 * 0.4)   = 0.7
    g = 0.2: buf = 0.5 * 0.4 + 0.2 = 0.4;   Theta = 0.7 - 0.5 * (0.2 + 0.5 * 0.4)   = 0.5
    g = 0:   buf = 0.5 * 0.4 + 0   = 0.2;   Theta = 0.5 - 0.5 * (0   + 0.5 * 0.2)   = 0.45
    """
    theta, buf = torch.tensor([1.0]), None
    for g, expected_theta, expected_buf in ((0.4, 0.7, 0.4), (0.2, 0.5, 0.4), (0.0, 0.45, 0.2)):
        theta, buf = nesterov(kernel, theta, torch.tensor([g]), buf, lr=0.5, mu=0.5)
        assert theta.item() == pytest.approx(expected_theta, abs=1e-6)
        assert buf.item() == pytest.approx(expected_buf, abs=1e-6)


@pytest.mark.parametrize("size", [1, 7, 1000, 9 * TILE + 13])
@pytest.mark.parametrize(("lr", "mu"), [(0.6, 0.3), (0.7, 0.9), (1.0, 0.0)])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_bit_equal_to_torch_sgd(
    kernel: Kernel, size: int, lr: float, mu: float, num_threads: int
) -> None:
    """Five steps from a first one without momentum; every bit of weights and momentum agrees."""
    generator = torch.Generator().manual_seed(size)
    start = torch.randn(size, generator=generator)
    parameter = torch.nn.Parameter(start.clone())
    # torch refuses nesterov with momentum 0, where both forms are plain SGD
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=mu, nesterov=mu > 0)
    theta, buf = start, None
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for step in range(5):
            gradient = torch.randn(size, generator=generator) * (step != 3)
            parameter.grad = gradient.clone()
            optimizer.step()
            theta, buf = nesterov(kernel, theta, gradient, buf, lr=lr, mu=mu)
            assert bits(theta) == bits(parameter.detach())
            if mu > 0:
                assert bits(buf) == bits(optimizer.state[parameter]["momentum_buffer"])
    finally:
        torch.set_num_threads(before)


def test_no_argument_is_changed(kernel: Kernel) -> None:
    """State goes in and comes out; a step can be taken again."""
    tensors = [torch.tensor([1.0]), torch.tensor([0.5]), torch.tensor([0.25])]
    once = nesterov(kernel, *tensors, lr=0.6, mu=0.3)
    assert [t.item() for t in tensors] == [1.0, 0.5, 0.25]
    again = nesterov(kernel, *tensors, lr=0.6, mu=0.3)
    assert [t.item() for t in once] == [t.item() for t in again]


def bits(value: Tensor) -> list[int]:
    return value.view(torch.int32).tolist()
