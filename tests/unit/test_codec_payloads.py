"""Contributions, published fragments and outer state as payloads in the store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from torch import Tensor

from ddl.codec.codecs import CODECS, INT4, Codec
from ddl.codec.contribution import contribution_bytes, decode_contribution, encode_contribution
from ddl.codec.digest import sha256, sha256_file
from ddl.codec.dtypes import torch_dtype
from ddl.codec.fragment import (
    PublishDtype,
    decode_fragment,
    decode_outer,
    encode_fragment,
    encode_outer,
)
from ddl.errors import IntegrityError, TaskError
from ddl.protocol.records import Rule, TensorKind, TensorSpec

META = b'{"learner":"a"}'


def spec(name: str, shape: tuple[int, ...], dtype: str, kind: TensorKind, rule: Rule) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, kind=kind, rule=rule, fragment=0)


SPECS = [
    spec("w", (5, 70), "bfloat16", "parameter", "rda"),
    spec("b", (), "float32", "parameter", "mean"),
    spec("empty", (0, 4), "float32", "parameter", "rda"),
    spec("mean", (3,), "float64", "buffer", "mean"),
    spec("steps", (), "int64", "buffer", "max"),
    spec("mask", (2, 2), "bool", "buffer", "heaviest"),
]


def deltas() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {s.name: torch.randn(s.shape) for s in SPECS if s.kind == "parameter"}


def buffers() -> dict[str, Tensor]:
    return {
        "mean": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        "steps": torch.tensor(2**60 + 1),
        "mask": torch.tensor([[True, False], [False, True]]),
    }


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_a_contribution_comes_back_as_the_learner_was_told_it_would(codec: Codec) -> None:
    """Size and digest as announced, decoded deltas bit for bit those the anchor is moved by."""
    encoded = encode_contribution(SPECS, deltas(), buffers(), codec, META)
    assert len(encoded.buffer) == contribution_bytes(SPECS, codec, META)
    assert encoded.sha256 == hashlib.sha256(encoded.buffer).hexdigest()
    read = decode_contribution(encoded.buffer, SPECS, codec.tag)
    assert read.metadata == META
    for name, coded in encoded.decoded.items():
        assert torch.equal(read.deltas[name].whole(), coded.whole())
        assert read.deltas[name].whole().shape == deltas()[name].shape
    for name, value in buffers().items():
        assert torch.equal(read.buffers[name], value)
        assert read.buffers[name].dtype == value.dtype
    assert set(safetensors.torch.load(bytes(encoded.buffer))) >= {"mean", "steps", "mask"}


def test_memory_is_used_again_and_old_contents_never_leak() -> None:
    """A larger buffer is written from its start; the payload's bytes do not depend on it."""
    fresh = encode_contribution(SPECS, deltas(), buffers(), INT4, META)
    memory = bytearray(b"\xff" * (len(fresh.buffer) + 100))
    again = encode_contribution(SPECS, deltas(), buffers(), INT4, META, memory)
    assert again.buffer == fresh.buffer
    assert memory[: len(fresh.buffer)] == fresh.buffer
    assert memory.endswith(b"\xff" * 100)
    grown = encode_contribution(SPECS, deltas(), buffers(), INT4, META, bytearray(3))
    assert grown.buffer == fresh.buffer


def test_a_payload_does_not_follow_what_the_learner_does_next() -> None:
    """Tensors changed after encoding leave the payload as it was."""
    mine = deltas()
    encoded = encode_contribution(SPECS, mine, buffers(), CODECS["fp32"], META)
    before = bytes(encoded.buffer)
    for value in mine.values():
        value.zero_()
    assert encoded.buffer == before


def test_a_delta_that_is_not_contiguous_is_encoded_by_value() -> None:
    """A transposed view gives the same bytes as its copy."""
    turned = deltas() | {"w": torch.randn(70, 5).T}
    copied = turned | {"w": turned["w"].clone(memory_format=torch.contiguous_format)}
    one, two = (encode_contribution(SPECS, d, buffers(), INT4, META) for d in (turned, copied))
    assert one.sha256 == two.sha256


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_values_that_are_not_finite_are_refused_by_the_tensors_name(codec: Codec) -> None:
    """A diverged learner hands in nothing; the message names the tensor and the cure."""
    bad = deltas()
    bad["w"][1, 3] = torch.nan
    with pytest.raises(TaskError, match=r"of 350 values of 'w' are not finite.*learning rate"):
        encode_contribution(SPECS, bad, buffers(), codec, META)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": torch.zeros(70, 5)}, r"'w' is torch.float32 \(70, 5\), expected torch.float32"),
        ({"w": torch.zeros(5, 70).double()}, "'w' is torch.float64"),
        ({"b": torch.zeros(1)}, r"'b' is torch.float32 \(1,\)"),
    ],
)
def test_a_value_of_another_shape_or_type_is_never_broadcast(
    change: dict[str, Tensor], message: str
) -> None:
    """Writers check before they copy."""
    with pytest.raises(ValueError, match=message):
        encode_contribution(SPECS, deltas() | change, buffers(), INT4, META)


def test_a_missing_value_is_named() -> None:
    """A fragment is handed in whole or not at all."""
    with pytest.raises(ValueError, match="buffer 'mask' is missing"):
        encode_contribution(
            SPECS, deltas(), {k: buffers()[k] for k in ("mean", "steps")}, INT4, META
        )


@pytest.mark.parametrize(
    ("specs", "tag", "message"),
    [
        (SPECS[1:], "fp32/1", "has tensor 'w', which does not belong"),
        ([*SPECS, spec("x", (2,), "float32", "buffer", "mean")], "fp32/1", "lacks tensor 'x'"),
        (
            [msgspec.structs.replace(SPECS[0], shape=(70, 5)), *SPECS[1:]],
            "fp32/1",
            r"'w' is F32 \(5, 70\), expected F32 \(70, 5\)",
        ),
        (SPECS, "bf16/1", r"'w' is F32 \(5, 70\), expected BF16"),
        (SPECS, "int4-b64-absmax/1", r"lacks tensor 'b\|q'"),
    ],
)
def test_a_contribution_for_another_model_or_codec_is_told_apart(
    specs: list[TensorSpec], tag: str, message: str
) -> None:
    """Names, shapes, types and codec are checked exactly; the error names the first difference."""
    encoded = encode_contribution(SPECS, deltas(), buffers(), CODECS["fp32"], META)
    with pytest.raises(IntegrityError, match=message):
        decode_contribution(encoded.buffer, specs, tag)


def test_a_cut_contribution_is_refused() -> None:
    """70 % of the bytes are not a contribution."""
    encoded = encode_contribution(SPECS, deltas(), buffers(), INT4, META)
    with pytest.raises(IntegrityError, match="cut short"):
        decode_contribution(encoded.buffer[: len(encoded.buffer) * 7 // 10], SPECS, INT4.tag)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_published_fragment_is_what_every_learner_sees(dtype: PublishDtype) -> None:
    """fp32 is published bit for bit; bf16 rounded, and the writer is told the rounded weights."""
    weights = deltas()
    encoded = encode_fragment(SPECS, weights, buffers(), dtype, META)
    read = decode_fragment(encoded.buffer, SPECS, dtype)
    for name, value in weights.items():
        expected = value if dtype == "float32" else value.bfloat16().float()
        assert torch.equal(read.weights[name], expected)
        assert read.stored[name].dtype == torch_dtype(dtype, of=name)
        assert torch.equal(read.stored[name].float(), expected)
        assert torch.equal(encoded.decoded[name].whole(), expected)
    assert all(torch.equal(read.buffers[name], value) for name, value in buffers().items())
    assert read.metadata == META


@pytest.mark.parametrize("with_master", [False, True])
def test_outer_state_comes_back_bit_for_bit(with_master: bool) -> None:
    """Momentum and, where it was stored, the fp32 master; its absence is checked like its presence."""
    momentum, master = deltas(), {name: value + 1 for name, value in deltas().items()}
    encoded = encode_outer(SPECS, momentum, master if with_master else None, META)
    read = decode_outer(encoded.buffer, SPECS, master=with_master)
    assert all(torch.equal(read.momentum[name], momentum[name]) for name in momentum)
    if with_master:
        assert read.master is not None
        assert all(torch.equal(read.master[name], master[name]) for name in master)
    else:
        assert read.master is None
    with pytest.raises(IntegrityError, match="master"):
        decode_outer(encoded.buffer, SPECS, master=not with_master)


def test_files_and_buffers_have_the_same_digest(tmp_path: Path) -> None:
    """A spooled payload is recognised by the digest of the encoded one."""
    data = bytes(range(256)) * 5000
    (tmp_path / "x").write_bytes(data)
    assert (
        sha256(memoryview(data)) == sha256_file(tmp_path / "x") == hashlib.sha256(data).hexdigest()
    )
