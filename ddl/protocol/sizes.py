"""Sizes that are known before anything is encoded, and the number of fragments that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FULL_FRAGMENT_BYTES: Final = 8 * 1024 * 1024
"""From this size on a fragment's transfer costs more than its round trips."""
SMALL_FRAGMENT_BYTES: Final = 64 * 1024
"""Models of less than four full fragments are cut into pieces of this size, four at most."""

CODEC_BITS: Final[Mapping[str, float]] = {"fp32": 32.0, "bf16": 16.0, "int8": 8.25, "int4": 4.25}
"""Bits an element takes, by the name in `codec.up`: large tensors, headers aside."""


def default_num_fragments(num_bytes: int, num_parameters: int, every_steps: int) -> int:
    """How many fragments suit a model whose parameters take `num_bytes` in fp32.

    As many as can hold 8 MiB each. If that is fewer than four, one per 64 KiB up to four: small
    models have no use for large transfers, but staggered rounds serve them as well. Never more than
    there are parameters, nor than H, so that a fragment has at least one step on it.
    """
    num = num_bytes // FULL_FRAGMENT_BYTES
    if num < 4:
        num = min(4, num_bytes // SMALL_FRAGMENT_BYTES)
    return max(1, min(num, num_parameters, every_steps))
