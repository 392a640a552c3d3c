"""What the benchmarks of codec, gate and merge work on: a fragment of 32M elements, M = 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ddl.codec.codecs import Codec
from ddl.codec.contribution import Contribution, decode_contribution
from ddl.codec.payload import write_payload
from ddl.fused.shares import in_shares
from ddl.merge.layout import TensorInfo, plan_layout
from ddl.protocol.records import TensorSpec

LEARNERS: Final = 8
SHAPES: Final = [(4096, 2048)] * 4
"""Matrices too large for the caches, as a fragment of a large model has them."""
METADATA: Final = b"{}"


def specs() -> Sequence[TensorSpec]:
    """The fragment; its matrices are merged by RDA, the default."""
    infos = [
        TensorInfo(name=f"layer{i}", shape=shape, dtype="float32", kind="parameter")
        for i, shape in enumerate(SHAPES)
    ]
    return plan_layout(infos, num=1, method="rda", every_steps=24).tensors


def values(seed: int) -> dict[str, Tensor]:
    """Deltas as a learner has them: normal, in fp32, about as small as real ones."""
    generator = torch.Generator().manual_seed(seed)
    return {s.name: torch.randn(s.shape, generator=generator).mul_(1e-3) for s in specs()}


def contributions(codec: Codec, num: int) -> list[Contribution]:
    """Payloads of `num` learners, as they were fetched: still in stored form."""
    base = values(0)

    def made(i: int) -> Contribution:
        # other values for each learner, without drawing 32M anew
        mine = {name: value.roll(i * 4099) for name, value in base.items()}
        payload, _ = write_payload(specs(), mine, {}, codec, METADATA)
        return decode_contribution(payload, specs(), codec.tag)

    return [made(i) for i in range(num)]


class Memcpy:
    """Copies `num_bytes` between two buffers that exist already, with as many threads as we use."""

    def __init__(self, num_bytes: int) -> None:
        self._from = np.ones(num_bytes // 4, np.float32)
        self._to = np.zeros_like(self._from)

    def __call__(self) -> None:
        def work(start: int, stop: int) -> None:
            np.copyto(self._to[start:stop], self._from[start:stop])

        in_shares(len(self._from), work)
