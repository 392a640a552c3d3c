"""Data for tests, in a module that worker processes can import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor


class Numbers:
    """Row i is the number i."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


def read_lines(path: Path) -> Iterator[int]:
    """A file's lines, numbers."""
    with path.open() as lines:
        yield from map(int, lines)
