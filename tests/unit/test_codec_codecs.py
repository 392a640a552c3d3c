"""Codecs: bounded error, any shape, exact zeros, the same decoded bits everywhere."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddl.codec.codecs import CODECS, INT4, INT8, BlockCodec, Codec, Coded, codec_by_tag
from ddl.config import CodecSettings
from ddl.errors import ProtocolError
from ddl.fused.sizes import BLOCK

ALL = list(CODECS.values())
BLOCKS = [INT8, INT4]
SHAPES = [(), (0,), (0, 8), (1,), (7,), (63,), (64,), (65,), (3, 3, 5, 7), (1_000_003,)]


def encode(codec: Codec, value: Tensor) -> Coded:
    shape = tuple(value.shape)
    plans = codec.plan("x", shape)
    parts = {key: torch.full(p.shape, 77, dtype=p.dtype) for key, p in plans.items()}
    codec.encode(value.contiguous().view(-1), parts)
    return Coded(codec, shape, parts)


def bits(value: Tensor) -> list[int]:
    return value.reshape(-1).view(torch.int32).tolist()


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.tag)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_comes_back_within_the_error_of_its_codec(
    codec: Codec, shape: tuple[int, ...]
) -> None:
    """Shape is kept; each element is off by at most what the grid allows for its block."""
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    back = encode(codec, value).whole()
    assert back.shape == value.shape
    assert back.dtype == torch.float32
    if codec is CODECS["fp32"]:
        assert bits(back) == bits(value)
    elif codec is CODECS["bf16"]:
        assert bits(back) == bits(value.bfloat16().float())
    else:
        assert isinstance(codec, BlockCodec)
        padded = torch.nn.functional.pad(value.reshape(-1), (0, -value.numel() % BLOCK))
        error = torch.nn.functional.pad((back - value).reshape(-1), (0, -value.numel() % BLOCK))
        extreme = padded.view(-1, BLOCK).abs().amax(1, keepdim=True)
        # a whole step, since what lies beyond the last positive level is cut to it, and what the
        # scale lost when it was rounded to 8 bits
        bound = extreme * (2.0 ** -(codec.bits - 1) + 2**-8)
        assert bool((error.view(-1, BLOCK).abs() <= bound).all())


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.tag)
def test_error_and_size_are_those_that_the_table_states(codec: Codec) -> None:
    """Relative L2 error on a normal sample, and bytes of 2^20 elements, match the module's table."""
    value = torch.randn(1 << 20, generator=torch.Generator().manual_seed(2))
    coded = encode(codec, value)
    error = float((coded.whole() - value).norm() / value.norm())
    size = sum(plan.num_bytes for plan in codec.plan("x", (1 << 20,)).values())
    stated = {
        "fp32": (0.0, 32),
        "bf16": (0.0017, 16),
        "int8": (0.0059, 8.25),
        "int4": (0.095, 4.25),
    }
    name = next(name for name, known in CODECS.items() if known is codec)
    assert error == pytest.approx(stated[name][0], rel=0.03)
    assert size * 8 / (1 << 20) == stated[name][1]
    assert size <= 0.14 * value.numel() * 4 or name != "int4"


def test_int4_by_hand() -> None:
    """The arithmetic of one block, written out.

    Extreme -0.8 (largest magnitude), so scale = -0.8 / -8 = 0.1, as bf16 0.10009765625.
    0.8 itself is missing on the positive side: 0.78 / 0.1001 = 7.79 is cut to 7 -> 0.70068359375.
    0.26 / 0.1001 = 2.597 -> 3 -> 0.30029296875;  -0.04 / 0.1001 = -0.3996 -> 0.
    """
    value = torch.zeros(3 * 2)
    value[:4] = torch.tensor([-0.8, 0.78, 0.26, -0.04])
    coded = encode(INT4, value)
    assert coded.parts["|s"].tolist() == [0.10009765625]
    assert coded.whole().tolist() == [-0.80078125, 0.70068359375, 0.30029296875, 0.0, 0.0, 0.0]
    # -8 = 0b1000, 7, 3, 0: low nibbles of bytes 0..3, for the high ones hold elements 32..35
    assert coded.parts["|q"][0, :4].tolist() == [8, 7, 3, 0]


@pytest.mark.parametrize("codec", BLOCKS, ids=lambda codec: codec.tag)
def test_a_positive_extreme_is_met_by_a_negative_scale(codec: BlockCodec) -> None:
    """The level without a counterpart serves the element of largest magnitude, whatever its sign."""
    coded = encode(codec, torch.tensor([1.0, -0.5]))
    assert coded.parts["|s"].item() == -(2.0 ** -(codec.bits - 1))
    assert coded.whole().tolist() == [1.0, -0.5]


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.tag)
def test_zero_is_exact_beside_anything(codec: Codec) -> None:
    """A block of zeros decodes to zeros, also next to a block of large values."""
    value = torch.zeros(4 * BLOCK)
    value[BLOCK : 2 * BLOCK] = 1e30
    back = encode(codec, value).whole()
    assert torch.count_nonzero(back[:BLOCK]) == torch.count_nonzero(back[2 * BLOCK :]) == 0


@pytest.mark.parametrize("codec", BLOCKS, ids=lambda codec: codec.tag)
def test_an_outlier_spoils_only_its_own_block(codec: BlockCodec) -> None:
    """Blocks without the outlier decode to the very same bits as if it were not there."""
    value = torch.randn(4 * BLOCK, generator=torch.Generator().manual_seed(3))
    calm = encode(codec, value).whole()
    value[BLOCK] = 1e6
    spoilt = encode(codec, value).whole()
    assert torch.equal(calm[:BLOCK], spoilt[:BLOCK])
    assert torch.equal(calm[2 * BLOCK :], spoilt[2 * BLOCK :])


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.tag)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 77, 129])
def test_a_value_that_is_not_finite_is_counted(codec: Codec, bad: float, place: int) -> None:
    """One NaN or infinity shows in `num_bad`; without it the count is zero."""
    value = torch.randn(130, generator=torch.Generator().manual_seed(4))
    assert codec.num_bad(encode(codec, value).parts) == 0
    value[place] = bad
    assert codec.num_bad(encode(codec, value).parts) == (BLOCK if codec in BLOCKS else 1)


@pytest.mark.parametrize("codec", ALL[1:], ids=lambda codec: codec.tag)
def test_a_value_too_large_for_the_codec_is_counted(codec: Codec) -> None:
    """The largest fp32 rounds to infinity in bf16, as a value or as a scale."""
    assert codec.num_bad(encode(codec, torch.tensor([torch.finfo(torch.float32).max])).parts) > 0


@pytest.mark.parametrize("codec", BLOCKS, ids=lambda codec: codec.tag)
def test_vanishing_blocks_become_zero_instead_of_nan(codec: BlockCodec) -> None:
    """Extremes down to the smallest subnormal neither divide by zero nor decode to NaN."""
    for value in (2.0**-149, 2.0**-126, 2.0**-101):
        assert encode(codec, torch.tensor([value, -value / 2])).whole().tolist() == [0.0, 0.0]
    kept = 2.0**-100
    assert encode(codec, torch.tensor([kept, -kept / 2])).whole().tolist() == [kept, -kept / 2]


@settings(max_examples=60, deadline=None)
@given(
    numel=st.integers(0, 400),
    name=st.sampled_from(list(CODECS)),
    scale=st.sampled_from([1e-30, 1e-4, 1.0, 1e30]),
    seed=st.integers(0, 99),
)
def test_reading_in_parts_equals_reading_whole(
    numel: int, name: str, scale: float, seed: int
) -> None:
    """Any part that starts at a block decodes to the same bits as the whole does."""
    value = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * scale
    coded = encode(CODECS[name], value)
    whole = coded.whole()
    out = torch.full((256,), math.nan)
    for start in range(0, numel, BLOCK):
        stop = min(start + 2 * BLOCK, numel)
        assert bits(coded.read(start, stop, out)) == bits(whole[start:stop])


@pytest.mark.parametrize("codec", BLOCKS, ids=lambda codec: codec.tag)
def test_decoding_is_exact_in_fp32(codec: BlockCodec) -> None:
    """scale * q needs no rounding, so the product in fp64 is the same number."""
    coded = encode(codec, torch.randn(10 * BLOCK, generator=torch.Generator().manual_seed(5)))
    scale = coded.parts["|s"]
    unit = Coded(codec, coded.shape, {"|q": coded.parts["|q"], "|s": torch.ones_like(scale)})
    exact = (unit.whole().view(-1, BLOCK).double() * scale.double()[:, None]).view(-1)
    assert torch.equal(coded.whole().double(), exact)


@pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.tag)
def test_encoding_does_not_depend_on_the_number_of_threads(codec: Codec) -> None:
    """The stored bytes are the same with one thread and with two."""
    value = torch.randn(200_001, generator=torch.Generator().manual_seed(6))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = encode(codec, value)
        torch.set_num_threads(2)
        double = encode(codec, value)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(single.parts[key], double.parts[key]) for key in single.parts)


def test_codecs_are_found_by_setting_and_by_tag() -> None:
    """Every value that `codec.up` may take has a codec, and tags are unique."""
    assert set(get_args(get_type_hints(CodecSettings)["up"])) == set(CODECS)
    for codec in ALL:
        assert codec_by_tag(codec.tag) is codec
    with pytest.raises(ProtocolError, match="'int3/9' is not known"):
        codec_by_tag("int3/9")
