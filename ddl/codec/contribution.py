"""What a learner hands in for one fragment: coded deltas and plain buffers.

The metadata repeats the announcement, so that a coordinator whose Redis is empty finds all about a
contribution in its object (design 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ddl.codec.codecs import Codec, Coded, codec_by_tag
from ddl.codec.frame import Buffer
from ddl.codec.payload import Encoded, decode_payload, encode_payload, plan_payload
from ddl.protocol.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Contribution:
    """A contribution as it was fetched.

    Attributes:
        deltas: anchor minus weights of each parameter, still in stored form.
        buffers: values of each buffer, views of what was fetched.
        metadata: canonical JSON as the learner wrote it.
    """

    deltas: Mapping[str, Coded]
    buffers: Mapping[str, Tensor]
    metadata: bytes


def encode_contribution(
    specs: Sequence[TensorSpec],
    deltas: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    codec: Codec,
    metadata: bytes,
    out: bytearray | memoryview | None = None,
) -> Encoded:
    """Write a contribution; arguments and errors are those of `encode_payload`.

    `decoded` of the result is what `Movement.handed_in` takes.
    """
    return encode_payload(specs, deltas, buffers, codec, metadata, out)


def contribution_bytes(specs: Sequence[TensorSpec], codec: Codec, metadata: bytes) -> int:
    """Size of the contribution that `encode_contribution` would write."""
    return plan_payload(specs, codec, metadata).num_bytes


def decode_contribution(buffer: Buffer, specs: Sequence[TensorSpec], tag: str) -> Contribution:
    """Read a contribution and check it against the fragment's specs; nothing is decoded yet.

    Raises:
        IntegrityError: a damaged frame, or other names, shapes or types than the specs say.
        ProtocolError: an unknown codec tag.
    """
    payload = decode_payload(buffer, specs, codec_by_tag(tag), what="contribution")
    return Contribution(deltas=payload.values, buffers=payload.buffers, metadata=payload.metadata)
