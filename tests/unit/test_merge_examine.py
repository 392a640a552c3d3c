"""What the gate learns of a contribution: norms, and every value that is not finite."""

from __future__ import annotations

import math

import pytest
import torch

from ddl.codec.codecs import CODECS, Codec, Coded
from ddl.fused.sizes import TILE
from ddl.merge.examine import examine
from ddl.merge.kernel import Kernel
from ddl.merge.tiles import Plain


def test_norms_by_hand(kernel: Kernel) -> None:
    """|(3, 4)| = 5 and |12| = 12 make |(3, 4, 12)| = 13."""
    result = examine(
        {"w": Plain(torch.tensor([[3.0, 4.0]])), "b": Plain(torch.tensor(12.0))}, {}, kernel
    )
    assert result.norms == {"w": 5.0, "b": 12.0}
    assert result.norm == 13.0
    assert result.bad == ()


def test_norms_neither_overflow_nor_vanish(kernel: Kernel) -> None:
    """The largest and smallest fp32 values have the norms that fp64 gives them."""
    for value in (torch.finfo(torch.float32).max, 2.0**-149):
        result = examine({"w": Plain(torch.full((4,), value))}, {}, kernel)
        assert result.norms["w"] == pytest.approx(2 * value)


def test_every_bad_value_is_counted_by_tensor(kernel: Kernel) -> None:
    """NaN and both infinities, across tiles, in deltas and in floating buffers of any width."""
    big = torch.zeros(TILE + 10)
    big[[0, TILE - 1, TILE, TILE + 9]] = torch.tensor([math.nan, math.inf, -math.inf, math.nan])
    result = examine(
        {"fine": Plain(torch.ones(3)), "big": Plain(big)},
        {
            "mean": torch.tensor([1.0, math.nan], dtype=torch.float64),
            "steps": torch.tensor(2**60),
            "mask": torch.tensor([True]),
        },
        kernel,
    )
    assert result.bad == (("big", 4), ("mean", 1))
    assert math.isnan(result.norms["big"])
    assert result.norms["fine"] == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_a_damaged_payload_is_found_in_every_codec(kernel: Kernel, codec: Codec) -> None:
    """A stored value or scale that decodes to NaN shows, whatever the form."""
    parts = {k: torch.zeros(p.shape, dtype=p.dtype) for k, p in codec.plan("w", (130,)).items()}
    stored = parts.get("|s", parts.get(""))
    assert stored is not None
    stored.view(-1)[1] = math.nan
    result = examine({"w": Coded(codec, (130,), parts)}, {}, kernel)
    assert result.bad == (("w", 64 if "|s" in parts else 1),)
