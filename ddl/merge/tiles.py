"""Reading and summing tensors tile by tile, with results that no thread count can change.

torch splits a large reduction among its threads, and floating sums then depend on how many there
are. Here every sum is cut into rows of fixed length; torch sums each row within one thread, in fp64,
and the rows' sums are added exactly (`math.fsum`). Elementwise work needs no such care, as long as a
product and a sum stay two operations: fused or not, torch may treat the ends of a thread's share
differently from its middle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from ddl.fused.sizes import TILE
from ddl.fused.stored import Stored

_ROW: Final = 1024


class Flat(Protocol):
    """A tensor in whatever form, read as flat fp32 in parts. `ddl.codec.Coded` is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def numel(self) -> int: ...

    def read(self, start: int, stop: int, out: Tensor) -> Tensor:
        """Elements `start` to `stop` as fp32 (stop - start,), `start` a multiple of 64.

        The result is `out` filled from its beginning, or a view of the source: read it, never
        write to it, and not beyond the next call with the same `out`.
        """
        ...

    @property
    def stored(self) -> Stored:
        """The same elements as the fused loops take them."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A `Flat` over a tensor of any floating type."""

    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def numel(self) -> int:
        return self.tensor.numel()

    def read(self, start: int, stop: int, out: Tensor) -> Tensor:
        part = self.tensor.reshape(-1)[start:stop]
        return part if part.dtype is torch.float32 else out[: stop - start].copy_(part)

    @property
    def stored(self) -> Stored:
        flat = self.tensor.contiguous()
        if flat.dtype is torch.bfloat16:
            return Stored("bf16", flat)
        return Stored("fp32", flat.float())


def tiles(numel: int) -> Iterator[tuple[int, int]]:
    """Bounds of the tiles that cover `numel` elements; the last may be shorter."""
    for start in range(0, numel, TILE):
        yield start, min(start + TILE, numel)


class Total:
    """A sum of products in fp64 that tiles are added to one by one."""

    def __init__(self) -> None:
        self._rows: list[float] = []
        self._product = torch.empty(TILE, dtype=torch.float64)
        self._factor = torch.empty(TILE, dtype=torch.float64)

    def add(self, left: Tensor, right: Tensor) -> None:
        """Take in sum(left * right) of two tiles (n,), n at most TILE, of any floating type."""
        size = left.numel()
        product = self._product[: -(-size // _ROW) * _ROW]
        product[size:] = 0.0  # the last row is filled up
        product[:size] = left
        product[:size] *= product[:size] if left is right else self._factor[:size].copy_(right)
        self._rows += product.view(-1, _ROW).sum(1).tolist()

    @property
    def value(self) -> float:
        """The sum so far; NaN if any product was not finite."""
        return math.fsum(self._rows) if all(map(math.isfinite, self._rows)) else math.nan


def dot(left: Tensor, right: Tensor) -> float:
    """sum(left * right) in fp64 of two tensors of one shape."""
    total = Total()
    a = left.reshape(-1)
    b = a if right is left else right.reshape(-1)
    for start, stop in tiles(a.numel()):
        part = a[start:stop]
        total.add(part, part if b is a else b[start:stop])
    return total.value
