"""The arithmetic of a merge on one tensor, by itself: what `combine` and `merge_fragment` build on.

Two kernels do the same: plain torch, the reference, and fused loops, several times as fast. Within
one kernel a result depends on nothing but its arguments. Between the two, sums over elements differ
in their last bits and results by at most 2 ulp, so each record names its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ddl.merge.tiles import Flat


class Outer(NamedTuple):
    """Outer state of one tensor, fp32 in its shape."""

    master: Tensor
    momentum: Tensor


class Dots(NamedTuple):
    """Sums over the elements of one tensor, of its outer gradient g and the momentum b before."""

    g_b: float
    b_b: float


class Kernel(Protocol):
    """Contract: arguments are changed only where they are called `out` or `into`."""

    @property
    def name(self) -> str:
        """Stands in every record; raised when a result changes by a bit."""
        ...

    def norm(self, values: Flat) -> float:
        """The L2 norm, summed in fp64; NaN where a value is not finite."""
        ...

    def add_up(self, values: Sequence[Flat], factors: Sequence[float], out: Tensor) -> float:
        """Write sum_i factors[i] * values[i] into `out`; in fp64, rounded once.

        Args:
            values: at least one, all of one shape.
            out: fp32 in the shape of the values.
        Returns:
            The L2 norm of the sum, before it is rounded.
        """
        ...

    def step(
        self,
        total: Tensor,
        scale: float,
        master: Tensor,
        momentum: Tensor | None,
        into: Outer,
        *,
        lr: float,
        mu: float,
    ) -> Dots:
        """The outer step with the gradient g = scale * total, in fp32: SGD with Nesterov momentum.

            momentum := mu * momentum + g            (the first time: g)
            master   := master - lr * (g + mu * momentum)

        Bit for bit what `torch.optim.SGD(momentum=mu, nesterov=True)` does on the CPU.

        Args:
            total: fp32; may be the master of `into`.
            master: fp32.
            momentum: fp32; None before the first step.
            into: receives the new state.
        Source: arXiv 2604.21428, 1.3; DiLoCo 2311.08105, Algorithm 1.
        """
        ...
