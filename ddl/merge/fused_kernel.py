"""The fast kernel: the loops of `ddl.fused` on all threads, straight from the stored forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddl.fused.shares import in_shares
from ddl.fused.sizes import TILE
from ddl.merge.kernel import Dots, Outer
from ddl.merge.tiles import Flat

_NONE: Final = torch.empty(0)


class FusedKernel:
    """See `Kernel`. `loops` is `ddl.fused.loops`."""

    def __init__(self, loops: ModuleType) -> None:
        self._loops = loops

    @property
    def name(self) -> str:
        return str(self._loops.NAME)

    def norm(self, values: Flat) -> float:
        stored = values.stored
        sums = _sums(values.numel)

        def work(start: int, stop: int) -> None:
            self._loops.square(
                stored.code, stored.values_at, stored.scales_at, start, stop, sums[:, 0]
            )

        in_shares(values.numel, work)
        return math.sqrt(_exact(sums[:, 0]))

    def add_up(self, values: Sequence[Flat], factors: Sequence[float], out: Tensor) -> float:
        stored = [value.stored for value in values]  # held until the loops are done
        codes = np.array([row.code for row in stored], np.int64)
        values_at = np.array([row.values_at for row in stored], np.uint64)
        scales_at = np.array([row.scales_at for row in stored], np.uint64)
        weights = np.array(factors, np.float64)
        flat, squares = out.view(-1).numpy(), _sums(out.numel())

        def work(start: int, stop: int) -> None:
            self._loops.add_up(
                codes, values_at, scales_at, weights, start, stop, flat, squares[:, 0]
            )

        in_shares(out.numel(), work)
        return math.sqrt(_exact(squares[:, 0]))

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
        source, old = _flat(total), _flat(master)
        before = _flat(_NONE if momentum is None else momentum)
        new, after = into.master.view(-1).numpy(), into.momentum.view(-1).numpy()
        dots = _sums(total.numel(), 2)

        def work(start: int, stop: int) -> None:
            self._loops.nesterov(source, scale, old, before, lr, mu, start, stop, new, after, dots)

        in_shares(total.numel(), work)
        return Dots(_exact(dots[:, 0]), _exact(dots[:, 1]))


def _sums(numel: int, columns: int = 1) -> NDArray[np.float64]:
    """A place for the sums of each tile."""
    return np.zeros((-(-numel // TILE), columns))


def _exact(sums: NDArray[np.float64]) -> float:
    """The sum of the tiles' sums, rounded once; NaN if one is not finite."""
    return math.fsum(sums) if np.isfinite(sums).all() else math.nan


def _flat(tensor: Tensor) -> NDArray[np.float32]:
    return np.asarray(tensor.contiguous().view(-1).numpy())
