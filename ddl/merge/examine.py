"""What the gate must know of a contribution's values before anything touches the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ddl.merge.tiles import TILE, Flat, Total, tiles


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


def examine(deltas: Mapping[str, Flat], buffers: Mapping[str, Tensor]) -> Examination:
    """Look at every value once, tile by tile, decoding on the way."""
    norms = {name: _norm(values) for name, values in deltas.items()}
    bad = {name: _count_bad(deltas[name]) for name, norm in norms.items() if math.isnan(norm)}
    for name, buffer in buffers.items():
        if buffer.is_floating_point() and (count := int((~buffer.isfinite()).sum())):
            bad[name] = count
    return Examination(norms=norms, bad=tuple(bad.items()))


def _norm(values: Flat) -> float:
    total, scratch = Total(), torch.empty(TILE)
    for start, stop in tiles(values.numel):
        part = values.read(start, stop, scratch)
        total.add(part, part)
    # squares of fp32 cannot overflow fp64: the sum is finite exactly if all values are
    return math.sqrt(total.value)


def _count_bad(values: Flat) -> int:
    scratch = torch.empty(TILE)
    return sum(
        int((~values.read(start, stop, scratch).isfinite()).sum())
        for start, stop in tiles(values.numel)
    )
