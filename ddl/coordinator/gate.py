"""The gate's look at a payload, before anything of it touches the model (design 5.1).

What the announcement alone tells (lineage, seq, alignment, amounts) and what needs the round's peers
(the norm) is judged by the core. Here it is the bytes: are they what was announced, and do they hold
exactly the fragment's tensors, all finite? A contribution passes whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ddl.codec.codecs import codec_by_tag
from ddl.codec.contribution import Contribution, contribution_bytes, decode_contribution
from ddl.codec.digest import sha256
from ddl.errors import IntegrityError, ProtocolError
from ddl.merge.examine import Examination, examine
from ddl.merge.kernel import Kernel
from ddl.protocol.records import Handin, TensorSpec


class Rejected(NamedTuple):
    """Why a payload does not pass. "damaged": the learner may put the right bytes again."""

    outcome: Literal["damaged", "refused"]
    reason: str


class Passed(NamedTuple):
    """A payload that may be merged, and the norms of its decoded movement."""

    contribution: Contribution
    seen: Examination


def check_announced_size(handin: Handin, specs: Sequence[TensorSpec]) -> Rejected | None:
    """Refuse a payload that cannot be right by its announced size, before it is fetched."""
    try:
        expected = contribution_bytes(specs, codec_by_tag(handin.codec), handin.header)
    except ProtocolError as error:
        return Rejected("refused", str(error))
    if handin.payload.bytes != expected:
        return Rejected(
            "refused", f"payload of {handin.payload.bytes} bytes where {expected} are expected"
        )
    return None


def check_payload(
    handin: Handin, data: bytearray, specs: Sequence[TensorSpec], kernel: Kernel | None = None
) -> Passed | Rejected:
    """Judge the fetched bytes of an announcement for a fragment of these `specs`.

    Args:
        kernel: that of the record when its merge is replayed; else the one for the fragment's size.
    """
    found = sha256(data)
    if (len(data), found) != (handin.payload.bytes, handin.payload.sha256):
        return Rejected(
            "damaged",
            f"{handin.payload.key} has {len(data)} bytes with SHA-256 {found[:16]}..., announced "
            f"were {handin.payload.bytes} bytes with {handin.payload.sha256[:16]}...",
        )
    try:
        contribution = decode_contribution(data, specs, handin.codec)
    except (IntegrityError, ProtocolError) as error:
        return Rejected("refused", str(error))
    if contribution.metadata != handin.header:
        return Rejected("refused", "the payload's header is not its announcement")
    seen = examine(contribution.deltas, contribution.buffers, kernel)
    if seen.bad:
        name, count = seen.bad[0]
        more = f", and {len(seen.bad) - 1} more tensors hold such" if len(seen.bad) > 1 else ""
        return Rejected("refused", f"tensor {name!r} holds {count} values not finite{more}")
    return Passed(contribution, seen)
