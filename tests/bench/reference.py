"""The pinned slow reference of `just bench merge`: what plain torch does with 4-bit contributions.

Written before the fused kernels and not to be touched afterwards: figures called `vs_torch` are
ratios to it, taken in the same run on the same inputs. It knows nothing of ddl but the layout of
`int4-b64-absmax/1`, and it does what one writes first: unpack by mask and shift, to fp32, times
scale, add; then the Nesterov step, in place. Contributions are worked on in pieces of 2^18 elements,
the fastest of 2^16, 2^18, 2^20, 2^22 and whole tensors. (ddl's own torch kernel, which moves the
sign by shifts in int8, does better than this; `just bench merge` shows it beside.)

It computes the weighted mean. RDA, which ddl does by default, takes more work than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 64
PIECE = 1 << 18
"""Elements of a contribution unpacked at once."""


def merge_int4(
    contributions: Sequence[tuple[Tensor, Tensor]],
    weights: Sequence[float],
    master: Tensor,
    momentum: Tensor,
    *,
    lr: float,
    mu: float,
) -> None:
    """Weighted mean of 4-bit contributions, then one Nesterov step on `master` and `momentum`.

    Args:
        contributions: for each learner q uint8 (n, 32) and scale bf16 (n,); byte j of a block holds
            element j in its low and element j + 32 in its high nibble, two's complement.
        weights: one for each contribution.
        master, momentum: fp32 (n * 64,), changed in place.
    """
    total = sum(weights)
    gradient = torch.zeros_like(master)
    blocks = gradient.view(-1, BLOCK)
    rows = PIECE // BLOCK
    for (packed, scale), weight in zip(contributions, weights, strict=True):
        for start in range(0, len(packed), rows):
            part = slice(start, start + rows)
            low = (packed[part] & 0x0F).to(torch.float32)
            high = (packed[part] >> 4).to(torch.float32)
            values = torch.cat((low, high), dim=1)
            values -= 16.0 * (values > 7.0)  # two's complement
            values *= scale[part].to(torch.float32)[:, None]
            blocks[part].add_(values, alpha=weight / total)
    momentum.mul_(mu).add_(gradient)
    master.add_(gradient.add_(momentum, alpha=mu), alpha=-lr)
