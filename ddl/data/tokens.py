"""A file of tokens as a map-style dataset: windows of a memory-mapped array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddl.errors import ConfigError


class TokenFile:
    """Windows of `context` + 1 tokens: inputs and, one token further on, targets.

    A window begins where the last input of the one before ended, so each token is an input once;
    what does not fill a window at the end is left out. Nothing is read before it is asked for, and
    a worker process maps the file itself.

    Args:
        path: tokens one after the other, without a header.
        context: inputs of a window.
        dtype: of a token in the file, a numpy integer type.
    Attributes:
        fingerprint: equal on two machines only if their files have the same number of tokens.
    Raises: ConfigError if the file holds no window.
    """

    def __init__(self, path: str | Path, *, context: int, dtype: str = "uint16") -> None:
        self._path = Path(path)
        self._context = context
        self._dtype = np.dtype(dtype)
        self._tokens: NDArray[Any] | None = None
        num_bytes = self._path.stat().st_size
        if num_bytes % self._dtype.itemsize:
            raise ConfigError(
                f"{path} has {num_bytes} bytes, which are no whole number of {dtype} tokens",
                hint="Give the dtype that the file was written with",
            )
        num_tokens = num_bytes // self._dtype.itemsize
        self._num_windows = max(0, num_tokens - 1) // context
        if not self._num_windows:
            raise ConfigError(f"{path} has {num_tokens} tokens, no window of {context} + 1")
        self.fingerprint = f"{num_tokens} {self._dtype.name} tokens by {context}"

    def __len__(self) -> int:
        return self._num_windows

    def __getitem__(self, index: int) -> Tensor:
        """Window `index`: (context + 1,) int64."""
        if not 0 <= index < self._num_windows:
            raise IndexError(index)
        if self._tokens is None:
            self._tokens = np.memmap(self._path, dtype=self._dtype, mode="r")
        first = index * self._context
        return torch.from_numpy(self._tokens[first : first + self._context + 1].astype(np.int64))

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: without the map, which would travel as a copy of the file."""
        return {**self.__dict__, "_tokens": None}
