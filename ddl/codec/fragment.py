"""What the coordinator stores of one fragment's version: published weights and outer state.

The published weights are what learners adopt. The outer state is the coordinator's own: momentum,
and the fp32 master whenever the published weights differ from it (rounded, or reached by a quantised
step, `ddl.codec.step`). A version without outer state has momentum zero and the published weights as
master.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from torch import Tensor

from ddl.codec.codecs import BF16, FP32, Codec
from ddl.codec.frame import Buffer
from ddl.codec.payload import Encoded, decode_payload, encode_payload, split
from ddl.protocol.records import TensorSpec
from ddl.protocol.wire import SCHEMA, canonical

PublishDtype = Literal["float32", "bfloat16"]
"""`fragments.publish_dtype` of the settings."""

_CODECS: Final[Mapping[PublishDtype, Codec]] = {"float32": FP32, "bfloat16": BF16}


@dataclass(frozen=True, slots=True)
class Fragment:
    """A published version.

    Attributes:
        weights: fp32 of each parameter, as every learner sees it.
        stored: the same in the type they are published in, views of what was read.
        buffers: values of each buffer in its own type.
        metadata: canonical JSON as the coordinator wrote it.
    """

    weights: Mapping[str, Tensor]
    stored: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    metadata: bytes


@dataclass(frozen=True, slots=True)
class OuterState:
    """fp32 momentum of each parameter, and the fp32 master where it was stored."""

    momentum: Mapping[str, Tensor]
    master: Mapping[str, Tensor] | None
    metadata: bytes


def version_metadata(
    kind: Literal["fragment", "outer", "step"], run: str, fragment: int, version: int
) -> bytes:
    """The header of an object that belongs to one version. It is part of the bytes that the log
    knows by their digest, so a learner that rebuilds an object has to write the very same."""
    return canonical(
        {"schema": SCHEMA, "kind": kind, "run": run, "fragment": fragment, "version": version}
    )


def encode_fragment(
    specs: Sequence[TensorSpec],
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    dtype: PublishDtype,
    metadata: bytes,
    out: bytearray | memoryview | None = None,
) -> Encoded:
    """Write a version; arguments and errors are those of `encode_payload`.

    `decoded` of the result gives the weights as learners will see them.
    """
    return encode_payload(specs, weights, buffers, _CODECS[dtype], metadata, out)


def decode_fragment(buffer: Buffer, specs: Sequence[TensorSpec], dtype: PublishDtype) -> Fragment:
    """Read a version. With dtype float32 the weights are views of `buffer`: not to be written to.

    Raises: IntegrityError: see `decode_payload`.
    """
    payload = decode_payload(buffer, specs, _CODECS[dtype], what="fragment")
    return Fragment(
        weights={name: coded.whole() for name, coded in payload.values.items()},
        stored={name: coded.parts[""] for name, coded in payload.values.items()},
        buffers=payload.buffers,
        metadata=payload.metadata,
    )


def encode_outer(
    specs: Sequence[TensorSpec],
    momentum: Mapping[str, Tensor],
    master: Mapping[str, Tensor] | None,
    metadata: bytes,
    out: bytearray | memoryview | None = None,
) -> Encoded:
    """Write outer state; `master` is None when the published weights equal it.

    Args and Raises: as in `encode_payload`; `decoded` has `NAME|momentum` and `NAME|master`.
    """
    values = {_key(name, "momentum"): value for name, value in momentum.items()}
    if master is not None:
        values |= {_key(name, "master"): value for name, value in master.items()}
    rows = _rows(specs, master is not None)
    return encode_payload(rows, values, {}, FP32, metadata, out)


def decode_outer(buffer: Buffer, specs: Sequence[TensorSpec], *, master: bool) -> OuterState:
    """Read outer state; its tensors are views of `buffer`, not to be written to.

    Args:
        master: whether the master must be in it, which the run's settings decide.
    Raises:
        IntegrityError: a damaged frame, or other tensors than expected.
    """
    payload = decode_payload(buffer, _rows(specs, master), FP32, what="outer state")
    parameters, _ = split(specs)

    def of(part: str) -> dict[str, Tensor]:
        return {s.name: payload.values[_key(s.name, part)].whole() for s in parameters}

    return OuterState(
        momentum=of("momentum"),
        master=of("master") if master else None,
        metadata=payload.metadata,
    )


def _rows(specs: Sequence[TensorSpec], master: bool) -> list[TensorSpec]:
    """What outer state holds, described as parameters of names like `NAME|momentum`."""
    parts = ("momentum", "master") if master else ("momentum",)
    parameters, _ = split(specs)
    return [
        msgspec.structs.replace(spec, name=_key(spec.name, part))
        for part in parts
        for spec in parameters
    ]


def _key(name: str, part: str) -> str:
    return f"{name}|{part}"
