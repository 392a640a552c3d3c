"""The reference kernel, in plain torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from ddl.fused.sizes import TILE
from ddl.merge.kernel import Dots, Outer
from ddl.merge.tiles import Flat, Total, dot, tiles


class TorchKernel:
    """See `Kernel`. Works tile by tile, but for the outer step."""

    name: Final = "torch/1"

    def norm(self, values: Flat) -> float:
        total, scratch = Total(), torch.empty(TILE)
        for start, stop in tiles(values.numel):
            part = values.read(start, stop, scratch)
            total.add(part, part)
        # squares of fp32 cannot overflow fp64: the sum is finite exactly if all values are
        return math.sqrt(total.value)

    def add_up(self, values: Sequence[Flat], factors: Sequence[float], out: Tensor) -> float:
        flat = out.view(-1)
        scratch = torch.empty(TILE, dtype=torch.float32)
        term = torch.empty(TILE, dtype=torch.float64)
        total = torch.empty(TILE, dtype=torch.float64)
        squares = Total()
        for start, stop in tiles(flat.numel()):
            size = stop - start
            sums = total[:size].fill_(-0.0)  # the zero that leaves the sign of what is added to it
            for value, factor in zip(values, factors, strict=True):
                sums += term[:size].copy_(value.read(start, stop, scratch)).mul_(factor)
            flat[start:stop] = sums
            squares.add(sums, sums)
        return math.sqrt(squares.value)

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
        gradient = total * scale
        if momentum is None:
            buffer, dots = into.momentum.copy_(gradient), Dots(0.0, 0.0)
        else:
            buffer = torch.mul(momentum, mu, out=into.momentum).add_(gradient)
            dots = Dots(dot(gradient, momentum), dot(momentum, momentum))
        torch.add(master, gradient.add_(buffer, alpha=mu), alpha=-lr, out=into.master)
        return dots


TORCH: Final = TorchKernel()
