"""The payload that contributions and published fragments share: coded parameters, plain buffers.

One payload holds the tensors of one fragment: each parameter as the parts of its codec, each buffer
under its own name in its own type. Writer and reader are given the fragment's specs, so a payload
describes nothing of itself but what a reader needs to check it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddl.codec.codecs import Codec, Coded
from ddl.codec.digest import sha256
from ddl.codec.dtypes import CODES, torch_dtype
from ddl.codec.frame import Buffer, Frame, FramePlan, TensorPlan, plan_frame, read_frame
from ddl.errors import IntegrityError, TaskError
from ddl.protocol.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Encoded:
    """A written payload.

    Attributes:
        buffer: its bytes, as long as the payload; valid until the memory is used again.
        sha256: their digest.
        decoded: what a reader will get of each parameter. It reads from `buffer` and costs no
            memory; error feedback subtracts it from the anchor.
    """

    buffer: memoryview
    sha256: str
    decoded: Mapping[str, Coded]


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload as it was read: parameters still in stored form, buffers as views of the bytes."""

    values: Mapping[str, Coded]
    buffers: Mapping[str, Tensor]
    metadata: bytes


def split(specs: Iterable[TensorSpec]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Parameters and buffers among `specs`, each in the order given."""
    rows = list(specs)
    parameters = [spec for spec in rows if spec.kind == "parameter"]
    return parameters, [spec for spec in rows if spec.kind == "buffer"]


def plan_payload(specs: Sequence[TensorSpec], codec: Codec, metadata: bytes) -> FramePlan:
    """The frame of a payload; its `num_bytes` is known before anything is encoded."""
    return plan_frame(_tensors(specs, codec), metadata)


def encode_payload(
    specs: Sequence[TensorSpec],
    values: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    codec: Codec,
    metadata: bytes,
    out: bytearray | memoryview | None = None,
) -> Encoded:
    """Write a payload and take its digest; arguments and errors are those of `write_payload`."""
    written, decoded = write_payload(specs, values, buffers, codec, metadata, out)
    return Encoded(buffer=written, sha256=sha256(written), decoded=decoded)


def write_payload(
    specs: Sequence[TensorSpec],
    values: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    codec: Codec,
    metadata: bytes,
    out: bytearray | memoryview | None = None,
) -> tuple[memoryview, dict[str, Coded]]:
    """Write a payload.

    Args:
        specs: the fragment's tensors.
        values: fp32 on the CPU for every parameter in specs.
        buffers: on the CPU in its own type for every buffer in specs.
        metadata: canonical JSON for the header.
        out: memory to write into. One that is too small, or None, is replaced by a new one.
    Returns:
        `buffer` and `decoded` of an `Encoded`.
    Raises:
        TaskError: a parameter holds values that are not finite once encoded; it is named.
        ValueError: a tensor is missing, or has another shape or type than its spec.
    """
    frame = plan_payload(specs, codec, metadata)
    memory = out if out is not None and len(out) >= frame.num_bytes else bytearray(frame.num_bytes)
    tensors = frame.lay_out(memory)
    parameters, others = split(specs)
    decoded = {}
    for spec in parameters:
        value = _given(values, spec, torch.float32)
        coded = _coded(spec, codec, tensors)
        codec.encode(value.contiguous().view(-1), coded.parts)
        if num_bad := codec.num_bad(coded.parts):
            raise TaskError(
                f"{min(num_bad, spec.numel)} of {spec.numel} values of {spec.name!r} are not finite",
                hint="Training has diverged: lower the learning rate or clip gradients",
            )
        decoded[spec.name] = coded
    for spec in others:
        tensors[spec.name].copy_(_given(buffers, spec, torch_dtype(spec.dtype, of=spec.name)))
    return memoryview(memory)[: frame.num_bytes], decoded


def decode_payload(
    buffer: Buffer, specs: Sequence[TensorSpec], codec: Codec, *, what: str
) -> Payload:
    """Read a payload and check it against the fragment's specs; nothing is decoded yet.

    Raises: IntegrityError: a damaged frame, or other names, shapes or types than the specs say.
    """
    frame = read_frame(buffer)
    _check_frame(frame, _tensors(specs, codec), what=f"{what} in {codec.tag}")
    parameters, buffers = split(specs)
    return Payload(
        values={spec.name: _coded(spec, codec, frame.tensors) for spec in parameters},
        buffers={spec.name: frame.tensors[spec.name] for spec in buffers},
        metadata=frame.metadata,
    )


def _check_frame(frame: Frame, expected: Iterable[TensorPlan], *, what: str) -> None:
    """Compare the tensors of a frame, by name, type and shape, with those it must hold.

    Raises: IntegrityError: names the first tensor that differs and says how; `what` is the frame.
    """
    plans = {plan.name: plan for plan in expected}
    missing, unknown = plans.keys() - frame.tensors.keys(), frame.tensors.keys() - plans.keys()
    if missing:
        raise IntegrityError(
            f"{what} lacks tensor {min(missing)!r} ({len(missing)} missing in all)"
        )
    if unknown:
        raise IntegrityError(
            f"{what} has tensor {min(unknown)!r}, which does not belong there "
            f"({len(unknown)} such in all)"
        )
    for name, plan in plans.items():
        found = frame.tensors[name]
        if found.dtype != plan.dtype or tuple(found.shape) != plan.shape:
            raise IntegrityError(
                f"{what}: tensor {name!r} is {CODES[found.dtype]} {tuple(found.shape)}, "
                f"expected {CODES[plan.dtype]} {plan.shape}"
            )


def _tensors(specs: Sequence[TensorSpec], codec: Codec) -> list[TensorPlan]:
    parameters, buffers = split(specs)
    plans = [plan for spec in parameters for plan in codec.plan(spec.name, spec.shape).values()]
    return plans + [TensorPlan(s.name, torch_dtype(s.dtype, of=s.name), s.shape) for s in buffers]


def _coded(spec: TensorSpec, codec: Codec, tensors: Mapping[str, Tensor]) -> Coded:
    plans = codec.plan(spec.name, spec.shape)
    parts = {suffix: tensors[plan.name] for suffix, plan in plans.items()}
    return Coded(codec=codec, shape=spec.shape, parts=parts)


def _given(tensors: Mapping[str, Tensor], spec: TensorSpec, dtype: torch.dtype) -> Tensor:
    value = tensors.get(spec.name)
    if value is None:
        raise ValueError(f"{spec.kind} {spec.name!r} is missing")
    if tuple(value.shape) != spec.shape or value.dtype != dtype:
        raise ValueError(
            f"{spec.kind} {spec.name!r} is {value.dtype} {tuple(value.shape)}, "
            f"expected {dtype} {spec.shape}"
        )
    return value
