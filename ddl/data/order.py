"""Orders that follow from a key alone, and are the same on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def shuffled(count: int, *key: Any) -> NDArray[np.int64]:
    """The numbers 0 to `count` - 1 in an order that follows from `key`.

    Neither `random.shuffle` nor `numpy.random.Generator` nor torch promise the same order in
    another release or on another machine; numpy does so for the raw numbers of a bit generator.
    """
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:16], "big")
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
