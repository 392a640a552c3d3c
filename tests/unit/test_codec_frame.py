"""Frames: valid safetensors, stable bytes, no copy, and no byte taken on trust."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddl.codec.dtypes import CODES, torch_dtype
from ddl.codec.frame import ALIGN, TensorPlan, plan_frame, read_frame
from ddl.errors import IntegrityError, ProtocolError

SHAPES = [(), (0,), (0, 4), (1,), (7,), (3, 3, 5, 7), (64, 2)]


def sample(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    raw = torch.randint(0, 100, shape)
    return (raw > 50) if dtype is torch.bool else raw.to(dtype)


def write(tensors: dict[str, Tensor], metadata: bytes = b'{"a":1}') -> bytearray:
    plan = plan_frame(
        [TensorPlan(n, t.dtype, tuple(t.shape)) for n, t in tensors.items()], metadata
    )
    buffer = bytearray(plan.num_bytes)
    for name, view in plan.lay_out(buffer).items():
        view.copy_(tensors[name])
    return buffer


def raw_frame(header: object, data: bytes = b"") -> bytearray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(struct.pack("<Q", len(text)) + text + data)


def one(dtype: str, shape: list[int], offsets: list[int]) -> dict[str, object]:
    return {
        "__metadata__": {"ddl": "{}"},
        "x": {"dtype": dtype, "shape": shape, "data_offsets": offsets},
    }


def test_every_type_and_shape_is_read_alike_by_us_and_by_the_safetensors_library() -> None:
    """0-d, empty, odd and large tensors of all storable types survive, in both readers."""
    tensors = {
        f"{code}.{i}": sample(d, s) for d, code in CODES.items() for i, s in enumerate(SHAPES)
    }
    buffer = write(tensors)
    ours, theirs = read_frame(buffer), safetensors.torch.load(bytes(buffer))
    assert ours.metadata == b'{"a":1}'
    assert set(ours.tensors) == set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        for read in (ours.tensors[name], theirs[name]):
            assert read.dtype == tensor.dtype
            assert read.shape == tensor.shape
            assert torch.equal(read, tensor)


def test_a_frame_of_the_safetensors_library_is_read() -> None:
    """What the library writes with our one metadata key is a frame."""
    tensors = {"w": torch.randn(3, 5), "n": torch.tensor(7)}
    frame = read_frame(bytearray(safetensors.torch.save(tensors, {"ddl": "{}"})))
    assert frame.metadata == b"{}"
    assert all(torch.equal(frame.tensors[name], tensors[name]) for name in tensors)


def test_equal_tensors_give_equal_bytes_and_the_size_known_beforehand() -> None:
    """Bytes depend on names, types, shapes, values and metadata alone; data starts aligned."""
    tensors = {"b": torch.randn(5).half(), "a": torch.randn(3, 2)}
    buffer = write(tensors)
    assert buffer == write(tensors)
    (length,) = struct.unpack("<Q", buffer[:8])
    assert (8 + length) % ALIGN == 0
    assert len(buffer) == 8 + length + 3 * 2 * 4 + 5 * 2


def test_reading_and_writing_share_the_memory_of_the_buffer() -> None:
    """A view is the buffer: a byte changed in the one shows in the other."""
    buffer = write({"x": torch.zeros(4, dtype=torch.uint8)})
    view = read_frame(buffer).tensors["x"]
    buffer[-1] = 9
    assert view.tolist() == [0, 0, 0, 9]


def test_a_read_only_buffer_is_read_from_a_copy() -> None:
    """Immutable bytes are accepted without touching them."""
    frozen = bytes(write({"x": torch.arange(3)}))
    read_frame(frozen).tensors["x"].zero_()
    assert read_frame(frozen).tensors["x"].tolist() == [0, 1, 2]


def test_a_buffer_that_is_too_small_is_refused_before_anything_is_written() -> None:
    """`lay_out` names both sizes and leaves the buffer as it was."""
    plan = plan_frame([TensorPlan("x", torch.float32, (4,))], b"{}")
    buffer = bytearray(plan.num_bytes - 1)
    with pytest.raises(ValueError, match=f"needs {plan.num_bytes} bytes, buffer has"):
        plan.lay_out(buffer)
    assert not any(buffer)


def test_two_tensors_of_one_name_cannot_be_planned() -> None:
    """A second tensor of a name would hide the first in the header."""
    with pytest.raises(ValueError, match="two tensors called 'x'"):
        plan_frame([TensorPlan("x", torch.float32, ())] * 2, b"{}")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (bytearray(), "has no header"),
        (bytearray(b"\x01\x02"), "has no header"),
        (bytearray(b"<!DOCTYPE html><html>"), "not a safetensors file"),
        (bytearray(struct.pack("<Q", 2**63) + b"{}"), "not a safetensors file"),
        (raw_frame(b"{not json"), "cannot be read"),
        (raw_frame(b'{"\xff\xfe": 1}'), "cannot be read"),
        (raw_frame([1, 2]), "cannot be read"),
        (raw_frame(b"[" * 100_000), "cannot be read"),
        (raw_frame({"x": 1, "__metadata__": {"ddl": "{}"}}), "cannot be read"),
        (raw_frame(one("F32", [-1], [0, 4]), b"1234"), "cannot be read"),
        (raw_frame({}), r"metadata keys \[\]"),
        (raw_frame({"__metadata__": {"ddl": "", "format": "pt"}}), "metadata keys"),
        (raw_frame(one("F33", [1], [0, 4]), b"1234"), "unknown element type 'F33'"),
        (raw_frame(one("F32", [2], [0, 4]), b"1234"), "cannot fill bytes 0 to 4"),
        (raw_frame(one("F32", [2**62, 4], [0, 0])), "cannot fill"),
        (raw_frame(one("F32", [2**40, 2**40, 0], [0, 0])), "impossible shape"),
        (raw_frame(one("F32", [1], [4, 0]), b"1234"), "cannot fill"),
        (raw_frame(one("F32", [1], [4, 8]), b"12345678"), "leaves a gap"),
        (raw_frame(one("F32", [1], [0, 4]), b"123"), "cut short"),
        (raw_frame(one("F32", [1], [0, 4]), b"12345"), "1 bytes after its last tensor"),
        (raw_frame(one("BOOL", [2], [0, 2]), b"\x01\x02"), "other than 0 and 1"),
        (
            raw_frame(
                one("U8", [2], [0, 2])
                | {"y": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}},
                b"123",
            ),
            "'y' starts at byte 1 and overlaps",
        ),
    ],
)
def test_a_malformed_frame_is_refused_with_a_sentence(frame: bytearray, message: str) -> None:
    """Cut, foreign, hostile or inconsistent bytes raise IntegrityError and nothing else."""
    with pytest.raises(IntegrityError, match=message):
        read_frame(frame)


FRAME = write({"w": torch.arange(6.0).view(2, 3), "flag": torch.tensor([True, False])})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_never_escapes_as_another_error(data: st.DataObject) -> None:
    """Whatever bytes are flipped or cut, reading succeeds or raises IntegrityError."""
    damaged = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    with contextlib.suppress(IntegrityError):
        frame = read_frame(damaged)
        assert sum(t.numel() * t.itemsize for t in frame.tensors.values()) <= len(damaged)


def test_a_type_that_cannot_be_stored_is_named() -> None:
    """An unknown element type lists the known ones."""
    assert torch_dtype("bfloat16", of="x") is torch.bfloat16
    with pytest.raises(ProtocolError, match=r"'phase' has .* complex64, which .* float32"):
        torch_dtype("complex64", of="phase")
