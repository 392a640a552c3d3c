"""The loops, compiled by numba when this module is imported (see `ddl.fused.choice`).

They know memory only: a flat fp32 tensor in one of four stored forms, given by the addresses of its
elements and scales. Addresses instead of arrays, because numba would compile anew for each number
of contributions otherwise; `ddl.fused.stored` makes them from tensors, which the caller keeps alive.

What a result is, to the bit, is written here and does not depend on the CPU or the thread count:

* elements are decoded in strips that stay in the first-level cache, to the fp32 value that torch
  gives; products and sums over contributions are fp64, one after the other, without fast-math;
* sums over elements run in 64 lanes (element j in lane j mod 64), lanes are added in order, and
  each tile of 65,536 elements gives a sum of its own;
* in the outer step `a + b * c` is one rounding (fma), as it is in torch's own kernels.

Whoever changes any of that gives the kernel a new name, since records name it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from ddl.fused.sizes import BF16, BLOCK, FP32, INT8, TILE

NAME: Final = "numba/1"

STRIP: Final = 1024
"""Elements decoded at once: with their fp64 sums they fill a third of a 32 KiB cache."""

_SIGN: Final = np.int32(-(2**31))
_INFINITY: Final = np.int32(0x7F800000)
_SMALLEST_EXTREME: Final = np.int32((127 - 100) << 7)  # 2^-100 as bf16
_MAGIC: Final = np.float32(1.5 * 2**23)
"""Adding it rounds a small fp32 to a whole number, ties to even, in its lowest bits."""
_MAGIC_BITS: Final = np.int32(0x4B400000)

_array: Any = numba.carray  # type: ignore[attr-defined]

Address = int
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])


def _compiled(signature: str) -> Callable[[F], F]:
    """Compile for these types now, without the GIL at run time, and keep the code on disk."""
    njit: Any = numba.njit  # its own types leave out what it gives for a signature

    def compile_(function: F) -> F:
        try:
            return cast("F", njit(signature, nogil=True, error_model="numpy", cache=True)(function))
        except (RuntimeError, OSError):  # no place to keep it: each process compiles for itself
            return cast("F", njit(signature, nogil=True, error_model="numpy")(function))

    return compile_


def _inlined(function: F) -> F:
    """Compile with the loops that call it, and into them."""
    return cast("F", numba.njit(nogil=True, error_model="numpy")(function))


def _make_pointer(_context: Any, _address: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate


def _make_fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


_pointer = cast("Callable[[Any], Any]", intrinsic(_make_pointer))
"""The address as a pointer, which `carray` makes an array of."""
_fma = cast("Callable[[Any, Any, Any], Any]", intrinsic(_make_fma))
"""a * b + c of fp32 with one rounding."""


# ---- decoding -----------------------------------------------------------------------------------


@_inlined
def _load(
    form: int,
    values: Address,
    scales: Address,
    start: int,
    size: int,
    strip: Float32,
    bits: NDArray[np.uint32],
) -> None:
    """Decode elements `start` (a multiple of 64) and on into `strip`, whose memory `bits` shares.

    At most STRIP; the last block of a block codec is decoded whole.
    """
    if form == FP32:
        whole = _array(_pointer(values + np.uint64(4 * start)), (size,), np.float32)
        for j in range(size):
            strip[j] = whole[j]
        return
    if form == BF16:
        halves = _array(_pointer(values + np.uint64(2 * start)), (size,), np.uint16)
        for j in range(size):
            bits[j] = np.uint32(halves[j]) << np.uint32(16)
        return
    blocks = (size + BLOCK - 1) // BLOCK
    width = BLOCK if form == INT8 else BLOCK // 2
    block = start // BLOCK
    stored = _array(_pointer(values + np.uint64(block * width)), (blocks * width,), np.int8)
    scale = _array(_pointer(scales + np.uint64(block * 2)), (blocks,), np.uint16)
    scale_bits = np.empty(1, np.uint32)
    factor = scale_bits.view(np.float32)
    for k in range(blocks):
        scale_bits[0] = np.uint32(scale[k]) << np.uint32(16)
        f = factor[0]
        q = stored[k * width : (k + 1) * width]
        out = strip[k * BLOCK : (k + 1) * BLOCK]
        if form == INT8:
            for j in range(BLOCK):
                out[j] = np.float32(q[j]) * f
        else:
            for j in range(BLOCK // 2):
                both = np.int32(q[j])
                out[j] = np.float32(np.int32(both << 28) >> 28) * f
                out[j + BLOCK // 2] = np.float32(both >> 4) * f


@_compiled("void(int64, uint64, uint64, int64, int64, float32[::1])")
def decode(
    form: int, values: Address, scales: Address, start: int, stop: int, out: Float32
) -> None:
    """Elements `start` (a multiple of 64) to `stop` as fp32 into `out`, from its beginning."""
    bits = np.empty(STRIP, np.uint32)
    strip = bits.view(np.float32)
    for at in range(start, stop, STRIP):
        size = min(STRIP, stop - at)
        _load(form, values, scales, at, size, strip, bits)
        to = out[at - start : at - start + size]
        for j in range(size):
            to[j] = strip[j]


# ---- encoding -----------------------------------------------------------------------------------


@_inlined
def _scale(high: Any, low: Any, shift: int) -> Any:
    """The bits of a block's scale in bf16: its extreme, of the other sign and over 2^shift.

    `high` and `low` are the bits of the largest magnitude, as fp32, among its positive and its
    negative elements.
    """
    extreme = np.int32(max(high, low))
    if extreme > _INFINITY:
        return np.int32(0x7FC0)  # a NaN
    short = np.int32((extreme + 0x7FFF + ((extreme >> 16) & 1)) >> 16)  # to bf16, ties to even
    if short < _SMALLEST_EXTREME:
        return np.int32(0)
    if short < (_INFINITY >> 16):
        short -= np.int32(shift << 7)
    return np.int32(short | 0x8000) if high > low else short


@_compiled("void(int64, float32[::1], int64, int64, uint8[::1], uint16[::1])")
def encode(
    form: int,
    value: Float32,
    start: int,
    stop: int,
    stored: NDArray[np.uint8],
    scales: NDArray[np.uint16],
) -> None:
    """Elements `start` (a multiple of 64) to `stop` into the blocks of INT8 or INT4.

    To the bit what `ddl.codec.codecs.BlockCodec` says, but for blocks that are not finite: their
    scale is NaN or infinite, and what their elements are is left open.
    """
    width = BLOCK if form == INT8 else BLOCK // 2
    shift = 7 if form == INT8 else 3
    top = np.int32((1 << shift) - 1)
    last = np.empty(BLOCK, np.float32)
    scale_bits = np.empty(1, np.uint32)
    scale = scale_bits.view(np.float32)
    moved = np.empty(BLOCK, np.float32)
    levels = moved.view(np.int32)
    for at in range(start, stop, BLOCK):
        if stop - at >= BLOCK:
            block = value[at : at + BLOCK]
        else:
            block = last
            block[: stop - at] = value[at:stop]
            block[stop - at :] = np.float32(0.0)
        # as integers, floats of one sign are in order, and NaN is above infinity
        bits = block.view(np.int32)
        high = np.int32(0)
        low = np.int32(0)
        for j in range(BLOCK):
            high = max(high, bits[j])
            low = max(low, np.int32(bits[j] ^ _SIGN))
        short = _scale(high, low, shift)
        scales[at // BLOCK] = np.uint16(short)
        scale_bits[0] = np.uint32(short) << np.uint32(16)
        inverse = np.float32(0.0)
        if short != 0:
            inverse = np.float32(1.0) / scale[0]
        for j in range(BLOCK):
            moved[j] = block[j] * inverse + _MAGIC
        q = stored[at // BLOCK * width : (at // BLOCK + 1) * width]
        if form == INT8:
            for j in range(BLOCK):
                q[j] = np.uint8(min(np.int32(levels[j] - _MAGIC_BITS), top) & 0xFF)
        else:
            for j in range(BLOCK // 2):
                first = min(np.int32(levels[j] - _MAGIC_BITS), top) & 0x0F
                second = min(np.int32(levels[j + BLOCK // 2] - _MAGIC_BITS), top) & 0x0F
                q[j] = np.uint8(first | (second << 4))


# ---- sums ---------------------------------------------------------------------------------------


@_inlined
def _add_products(left: Any, right: Any, lanes: Float64) -> None:
    """Add left * right to the lanes, in fp64; as long as a strip, or any multiple of 64."""
    for k in range(0, len(left), BLOCK):
        a, b = left[k : k + BLOCK], right[k : k + BLOCK]
        for j in range(BLOCK):
            lanes[j] += np.float64(a[j]) * np.float64(b[j])


@_inlined
def _in_order(lanes: Float64) -> float:
    """The sum of the lanes, which are set to zero."""
    total = 0.0
    for j in range(BLOCK):
        total += lanes[j]
        lanes[j] = 0.0
    return total


@_compiled("void(int64, uint64, uint64, int64, int64, float64[::1])")
def square(
    form: int, values: Address, scales: Address, start: int, stop: int, sums: Float64
) -> None:
    """The sum of squares of each tile between `start` and `stop`, into its place in `sums`."""
    bits = np.zeros(STRIP, np.uint32)
    strip = bits.view(np.float32)
    lanes = np.zeros(BLOCK, np.float64)
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        for at in range(tile, end, STRIP):
            size = min(STRIP, end - at)
            _load(form, values, scales, at, size, strip, bits)
            strip[size:] = np.float32(0.0)
            _add_products(strip, strip, lanes)
        sums[tile // TILE] = _in_order(lanes)


@_inlined
def _accumulate(
    form: int,
    values: Address,
    scales: Address,
    start: int,
    size: int,
    factor: float,
    total: Float64,
    strip: Float32,
    bits: NDArray[np.uint32],
) -> None:
    """Add factor times elements `start` and on to the total.

    What needs no unpacking is added as it comes from memory: reads and sums then overlap.
    """
    if form == FP32:
        whole = _array(_pointer(values + np.uint64(4 * start)), (size,), np.float32)
        for j in range(size):
            total[j] += factor * whole[j]
    elif form == BF16:
        halves = _array(_pointer(values + np.uint64(2 * start)), (size,), np.uint16)
        for j in range(size):
            total[j] += factor * np.uint32(np.uint32(halves[j]) << 16).view(np.float32)
    else:
        _load(form, values, scales, start, size, strip, bits)
        for j in range(size):
            total[j] += factor * strip[j]


@_compiled(
    "void(int64[::1], uint64[::1], uint64[::1], float64[::1], int64, int64, float32[::1],"
    " float64[::1])"
)
def add_up(
    forms: NDArray[np.int64],
    values: NDArray[np.uint64],
    scales: NDArray[np.uint64],
    factors: Float64,
    start: int,
    stop: int,
    out: Float32,
    squares: Float64,
) -> None:
    """The sum over contributions i of factors[i] * value_i, into `out`.

    Of each tile the sum of squares, before rounding to fp32, is put into its place in `squares`.
    `start` and `stop` are borders of tiles.
    """
    bits = np.empty(STRIP, np.uint32)
    strip = bits.view(np.float32)
    total = np.empty(STRIP, np.float64)
    lanes = np.zeros(BLOCK, np.float64)
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        for at in range(tile, end, STRIP):
            size = min(STRIP, end - at)
            for j in range(STRIP):
                total[j] = -0.0  # the zero that leaves the sign of what is added to it
            for i in range(len(factors)):
                _accumulate(
                    forms[i], values[i], scales[i], at, size, factors[i], total, strip, bits
                )
            to = out[at : at + size]
            for j in range(size):
                to[j] = total[j]
            _add_products(total, total, lanes)  # what is beyond `size` is zero
        squares[tile // TILE] = _in_order(lanes)


@_compiled(
    "void(float32[::1], float32, float32[::1], float32[::1], float32, float32, int64, int64,"
    " float32[::1], float32[::1], float64[:, ::1])"
)
def nesterov(
    total: Float32,
    scale: float,
    master: Float32,
    before: Float32,
    lr: float,
    mu: float,
    start: int,
    stop: int,
    new_master: Float32,
    new_momentum: Float32,
    dots: Float64,
) -> None:
    """The outer step with gradient g = scale * total; `new_master` may be `total` itself.

    `before` is the momentum, empty before the first step. Of each tile the sums of g * before and
    before * before are put into its place in `dots` (tiles, 2).
    """
    gradient = np.zeros(STRIP, np.float32)
    old = np.zeros(STRIP, np.float32)
    both = np.zeros(BLOCK, np.float64)
    alone = np.zeros(BLOCK, np.float64)
    for tile in range(start, stop, TILE):
        end = min(tile + TILE, stop)
        for at in range(tile, end, STRIP):
            size = min(STRIP, end - at)
            source = total[at : at + size]
            for j in range(size):
                gradient[j] = source[j] * scale
            new = new_momentum[at : at + size]
            if len(before) == 0:
                for j in range(size):
                    new[j] = gradient[j]
            else:
                source = before[at : at + size]
                for j in range(size):
                    old[j] = source[j]
                for j in range(size):
                    new[j] = old[j] * mu + gradient[j]
                old[size:] = np.float32(0.0)
                _add_products(gradient, old, both)
                _add_products(old, old, alone)
            for j in range(size):
                gradient[j] = _fma(new[j], mu, gradient[j])
            source, to = master[at : at + size], new_master[at : at + size]
            for j in range(size):
                to[j] = _fma(gradient[j], -lr, source[j])
        dots[tile // TILE, 0] = _in_order(both)
        dots[tile // TILE, 1] = _in_order(alone)
