"""The outer optimizer: SGD with Nesterov momentum on the fp32 master of one tensor.

    buf   := mu * buf + g            (the first time: g)
    Theta := Theta - eta * (g + mu * buf)

Bit for bit what `torch.optim.SGD(momentum=mu, nesterov=True)` does on the CPU, which uses the same
three operations in the same order.

Source: arXiv 2604.21428, 1.3; DiLoCo 2311.08105, Algorithm 1.
"""

from __future__ import annotations

from torch import Tensor


def nesterov(
    master: Tensor, gradient: Tensor, momentum: Tensor | None, *, lr: float, mu: float
) -> tuple[Tensor, Tensor]:
    """One step; returns the new master and the new momentum and changes no argument.

    Args:
        master: Theta, fp32.
        gradient: g, fp32 in the same shape: points from where learners went to where they began.
        momentum: buf, fp32; None before the first step.
        lr: eta.
        mu: momentum factor, 0 to 1.
    """
    buffer = gradient.clone() if momentum is None else momentum.mul(mu).add_(gradient)
    step = gradient.add(buffer, alpha=mu)
    return master.add(step, alpha=-lr), buffer
