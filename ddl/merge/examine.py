"""What the gate must know of a contribution's values before anything touches the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ddl.fused.sizes import TILE
from ddl.merge.choice import chosen_kernel
from ddl.merge.kernel import Kernel
from ddl.merge.tiles import Flat, tiles


@dataclass(frozen=True, slots=True)
class Examination:
    """Norms of the decoded deltas, and where values are not finite.

    Attributes:
        norms: L2 norm of each delta, summed in fp64 and the same for any number of threads; NaN
            where a value is not finite.
        bad: (tensor, count) for each delta or buffer with NaN or infinite values, in their order.
    """

    norms: Mapping[str, float]
    bad: tuple[tuple[str, int], ...]

    @property
    def norm(self) -> float:
        """L2 norm of all deltas together."""
        return math.sqrt(math.fsum(norm * norm for norm in self.norms.values()))


def examine(
    deltas: Mapping[str, Flat], buffers: Mapping[str, Tensor], kernel: Kernel | None = None
) -> Examination:
    """Look at every value once, decoding on the way.

    Args:
        kernel: that of the record when it is replayed; else the one for the fragment's size.
    """
    kernel = kernel or chosen_kernel(sum(values.numel for values in deltas.values()))
    norms = {name: kernel.norm(values) for name, values in deltas.items()}
    bad = {name: _count_bad(deltas[name]) for name, norm in norms.items() if math.isnan(norm)}
    for name, buffer in buffers.items():
        if buffer.is_floating_point() and (count := int((~buffer.isfinite()).sum())):
            bad[name] = count
    return Examination(norms=norms, bad=tuple(bad.items()))


def _count_bad(values: Flat) -> int:
    scratch = torch.empty(TILE)
    return sum(
        int((~values.read(start, stop, scratch).isfinite()).sum())
        for start, stop in tiles(values.numel)
    )
