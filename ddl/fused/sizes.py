"""What the loops and their callers share. All of it is part of formats and results: see `NAME`."""

from __future__ import annotations

from typing import Final

BLOCK: Final = 64
"""Elements under one scale of a block codec."""

TILE: Final = 65536
"""Elements whose sums are kept apart, so that no number of threads can change a result."""

# codes of the stored forms
FP32: Final = 0
BF16: Final = 1
INT8: Final = 2
INT4: Final = 3
