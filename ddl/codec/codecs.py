"""How one fp32 tensor becomes stored parts, and back.

| codec | tag                    | parts                                  | bits/element | relative L2 error |
|-------|------------------------|----------------------------------------|--------------|-------------------|
| fp32  | `fp32/1`               | NAME                                   | 32           | 0                 |
| bf16  | `bf16/1`               | NAME                                   | 16           | 0.0017            |
| int8  | `int8-b64-absmax/1`    | NAME|q int8 (n, 64), NAME|s bf16 (n,)  | 8.25         | 0.0059            |
| int4  | `int4-b64-absmax/1`    | NAME|q uint8 (n, 32), NAME|s bf16 (n,) | 4.25         | 0.095             |

(errors on normally distributed values; int4 is 0.133 of fp32.) The block codecs cut the flattened
tensor into n blocks of 64, the last one filled up with zeros, and scale each by its own extreme:

* the element of largest magnitude becomes -2^(bits-1), the one level without a counterpart. The
  scale so gets the sign opposite to that element's, and the error is 12 % below that of the usual
  symmetric grid for the same bytes;
* scales are bf16: 8 significant bits times at most 8 of q make `scale * q` exact in fp32, so any
  machine and any kernel decodes the same bits;
* a block whose extreme is below 2^-100 becomes zero. What a codec leaves out stays in the
  learner's movement and goes into the next contribution (design 3.1).

Four-bit values lie in halves: byte j of a block holds element j in its low and element j + 32 in
its high nibble, two's complement, so that both halves unpack into contiguous runs.

Blocks are encoded and decoded by the loops of `ddl.fused` where they can be had: to the bit the same
as in plain torch, and several times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from ddl.codec.frame import TensorPlan
from ddl.errors import ProtocolError
from ddl.fused.choice import loops
from ddl.fused.shares import in_shares
from ddl.fused.sizes import BLOCK, TILE
from ddl.fused.stored import Stored

_SMALLEST_EXTREME: Final = 2.0**-100

Parts = Mapping[str, Tensor]
"""The stored tensors of one value, by suffix: "" for a plain one, "|q" and "|s" for blocks."""


class Codec(Protocol):
    """A stored form of fp32 tensors of any shape."""

    @property
    def tag(self) -> str:
        """Names the form and its version in announcements and headers."""
        ...

    def plan(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorPlan]:
        """The parts that a tensor of this name and shape takes, by suffix."""
        ...

    def encode(self, value: Tensor, parts: Parts) -> None:
        """Write `value`, fp32 (numel,) contiguous, into its parts.

        Values that are not finite MUST show in `num_bad` of the parts.
        """
        ...

    def decode(self, parts: Parts, start: int, stop: int, out: Tensor) -> Tensor:
        """Elements `start` to `stop` of the flattened tensor as fp32 (stop - start,).

        `start` is a multiple of 64. The result is `out` (fp32, as long or longer) filled from its
        beginning, or a view of the parts where they hold fp32 anyway: not to be written to.
        """
        ...

    def num_bad(self, parts: Parts) -> int:
        """How many stored elements decode to NaN or infinity (block codecs: whole blocks)."""
        ...

    def stored(self, parts: Parts) -> Stored:
        """The parts as the fused loops take them."""
        ...


@dataclass(frozen=True, slots=True)
class CastCodec:
    """Values as they are, or rounded to a shorter float; the stored tensor keeps its shape."""

    tag: str
    dtype: torch.dtype

    def plan(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorPlan]:
        return {"": TensorPlan(name, self.dtype, shape)}

    def encode(self, value: Tensor, parts: Parts) -> None:
        parts[""].view(-1).copy_(value)

    def decode(self, parts: Parts, start: int, stop: int, out: Tensor) -> Tensor:
        stored = parts[""].view(-1)[start:stop]
        return stored if self.dtype is torch.float32 else out[: stop - start].copy_(stored)

    def num_bad(self, parts: Parts) -> int:
        stored = parts[""]
        # one quick pass: min and max are finite exactly if all elements are
        if not stored.numel() or all(bound.isfinite() for bound in stored.aminmax()):
            return 0
        return int((~stored.isfinite()).sum())

    def stored(self, parts: Parts) -> Stored:
        return Stored("fp32" if self.dtype is torch.float32 else "bf16", parts[""])


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """Signed integers of `bits` bits with one bf16 scale per block of 64."""

    tag: str
    bits: Literal[4, 8]

    def plan(self, name: str, shape: tuple[int, ...]) -> dict[str, TensorPlan]:
        blocks = -(-math.prod(shape) // BLOCK)
        dtype = torch.int8 if self.bits == 8 else torch.uint8
        return {
            "|q": TensorPlan(f"{name}|q", dtype, (blocks, BLOCK * self.bits // 8)),
            "|s": TensorPlan(f"{name}|s", torch.bfloat16, (blocks,)),
        }

    def encode(self, value: Tensor, parts: Parts) -> None:
        fused = loops()
        if fused is None:
            self._encode(value, parts)
            return
        stored = self.stored(parts)
        source = value.numpy()
        # any bytes will do: numpy has no bf16, and q is int8 or uint8
        levels = stored.values.view(torch.uint8).view(-1).numpy()
        scales = parts["|s"].view(torch.uint16).numpy()

        def work(start: int, stop: int) -> None:
            fused.encode(stored.code, source, start, stop, levels, scales)

        in_shares(value.numel(), work)

    def decode(self, parts: Parts, start: int, stop: int, out: Tensor) -> Tensor:
        fused = loops()
        if fused is None:
            return self._decode(parts, start, stop, out)
        stored, result = self.stored(parts), out[: stop - start]
        fused.decode(stored.code, stored.values_at, stored.scales_at, start, stop, result.numpy())
        return result

    def num_bad(self, parts: Parts) -> int:
        # the largest value that a block can hold, which is finite only if the scale is
        extreme = parts["|s"].float() * 2 ** (self.bits - 1)
        return int((~extreme.isfinite()).sum()) * BLOCK

    def stored(self, parts: Parts) -> Stored:
        return Stored("int8" if self.bits == 8 else "int4", parts["|q"], parts["|s"])

    def _encode(self, value: Tensor, parts: Parts) -> None:
        """`encode` in plain torch."""
        for start, stop in _tiles(value.numel()):
            blocks = _in_blocks(value[start:stop])
            rows = slice(start // BLOCK, start // BLOCK + len(blocks))
            scale = self._scales(blocks)
            inverse = torch.where(scale == 0, 0.0, 1 / scale.float())
            levels = (blocks * inverse[:, None]).round_()
            levels.clamp_(-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)
            parts["|s"][rows] = scale
            parts["|q"][rows] = _pack(levels) if self.bits == 4 else levels

    def _decode(self, parts: Parts, start: int, stop: int, out: Tensor) -> Tensor:
        """`decode` in plain torch."""
        rows = slice(start // BLOCK, -(-stop // BLOCK))
        stored, scale = parts["|q"][rows], parts["|s"][rows].float()
        levels = _unpack(stored) if self.bits == 4 else stored
        result = out[: stop - start]
        if (stop - start) % BLOCK:  # the filled-up end of the last block has no place in `out`
            result.copy_((levels * scale[:, None]).view(-1)[: stop - start])
        else:
            torch.mul(levels, scale[:, None], out=result.view(-1, BLOCK))
        return result

    def _scales(self, blocks: Tensor) -> Tensor:
        """bf16 (n,) for fp32 (n, 64); NaN or infinite where the block is not finite."""
        high, low = blocks.amax(1), blocks.amin(1)
        extreme = torch.where(high > -low, high, low).bfloat16()  # a NaN is in both, and so here
        vanishing = extreme.abs() < _SMALLEST_EXTREME
        return extreme.div_(-(2 ** (self.bits - 1))).masked_fill_(vanishing, 0.0)


FP32: Final = CastCodec("fp32/1", torch.float32)
BF16: Final = CastCodec("bf16/1", torch.bfloat16)
INT8: Final = BlockCodec("int8-b64-absmax/1", 8)
INT4: Final = BlockCodec("int4-b64-absmax/1", 4)

CODECS: Final[Mapping[str, Codec]] = {"fp32": FP32, "bf16": BF16, "int8": INT8, "int4": INT4}
"""By the name in `codec.up` of the settings."""


def codec_by_tag(tag: str) -> Codec:
    """The codec that wrote `tag`. Raises: ProtocolError."""
    for codec in CODECS.values():
        if codec.tag == tag:
            return codec
    raise ProtocolError(
        f"codec {tag!r} is not known to this ddl", hint="Install the ddl version that the run uses"
    )


@dataclass(frozen=True, slots=True)
class Coded:
    """One fp32 tensor in its stored form, decoded part by part as it is read."""

    codec: Codec
    shape: tuple[int, ...]
    parts: Parts

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stored(self) -> Stored:
        """As the fused loops take it."""
        return self.codec.stored(self.parts)

    def read(self, start: int, stop: int, out: Tensor) -> Tensor:
        """Elements `start` (a multiple of 64) to `stop`: see `Codec.decode`."""
        return self.codec.decode(self.parts, start, stop, out)

    def whole(self) -> Tensor:
        """All of it, fp32 in its shape; a view of the stored bytes where they are fp32."""
        if self.codec == FP32:
            return self.parts[""]
        out = torch.empty(self.numel, dtype=torch.float32)
        return self.codec.decode(self.parts, 0, self.numel, out).view(self.shape)


def _tiles(numel: int) -> Iterator[tuple[int, int]]:
    for start in range(0, numel, TILE):
        yield start, min(start + TILE, numel)


def _in_blocks(flat: Tensor) -> Tensor:
    """fp32 (n, 64) of fp32 (numel,), the last block filled up with zeros."""
    missing = -flat.numel() % BLOCK
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, BLOCK)


def _pack(levels: Tensor) -> Tensor:
    """uint8 (n, 32) of whole numbers -8..7 as fp32 (n, 64)."""
    nibbles = levels.to(torch.int8).view(torch.uint8).bitwise_and_(0x0F)
    return nibbles[:, : BLOCK // 2] | (nibbles[:, BLOCK // 2 :] << 4)


def _unpack(packed: Tensor) -> Tensor:
    """int8 (n, 64), each -8..7, of uint8 (n, 32): two's complement by a shift up and down."""
    signed = packed.view(torch.int8)
    return torch.cat(((signed << 4) >> 4, signed >> 4), dim=1)
