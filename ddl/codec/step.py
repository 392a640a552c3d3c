"""Compressed publication: a version as a quantised step from the version before it.

With `codec.down = "int4-step"` the coordinator does not publish its master M but comes as near to it
as a step of 4.25 bits an element can. P is a published version, M the fp32 master after it:

    step    S = M_next - P        quantised;  P_next = P + decoded(S), then as `publish_dtype` says

A learner that holds P so needs no more than S to arrive at the very bytes of P_next, which the log's
digest proves: a decoded element is exact in fp32, and the sum is one fp32 rounding on any machine.
What the quantiser leaves out is still M - P, so it is part of the next step: the two never drift
apart by more than the rounding of one step, and the master itself is never rounded.

Values of buffers travel whole in the step object: they are no movement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from ddl.codec.codecs import INT4, Codec, Coded
from ddl.codec.fragment import PublishDtype, decode_fragment, encode_fragment
from ddl.codec.frame import Buffer
from ddl.codec.payload import Encoded, decode_payload, encode_payload
from ddl.protocol.records import TensorSpec

STEP_CODEC: Final[Codec] = INT4


def encode_step(
    specs: Sequence[TensorSpec],
    master: Mapping[str, Tensor],
    published: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    metadata: bytes,
) -> Encoded:
    """Write the step that leads from a published version as near as may be to `master`.

    Memory beyond the result: one fp32 tensor for each parameter.

    Args:
        master, published: fp32 on the CPU for every parameter in specs.
        buffers: those of the new version, in their own types.
        metadata: canonical JSON for the header.
    Raises: TaskError: a step that is not finite; the tensor is named.
    """
    steps = {name: value - published[name] for name, value in master.items()}
    return encode_payload(specs, steps, buffers, STEP_CODEC, metadata)


def take_step(published: Mapping[str, Tensor], step: Mapping[str, Coded]) -> dict[str, Tensor]:
    """The weights that a step leads to, fp32 and new; still to be rounded to `publish_dtype`."""
    # `whole` of a block codec is memory of its own
    return {name: coded.whole().add_(published[name]) for name, coded in step.items()}


def rebuild_version(
    base: Buffer,
    step: Buffer,
    specs: Sequence[TensorSpec],
    dtype: PublishDtype,
    metadata: bytes,
) -> Encoded:
    """The published bytes of a version, from those of the version before and the step between.

    Args:
        metadata: of the version that is to come out.
    Raises:
        IntegrityError: base or step is damaged, or of another model.
        TaskError: a damaged base that leads to values that are not finite.
    """
    before = decode_fragment(base, specs, dtype)
    found = decode_payload(step, specs, STEP_CODEC, what="step")
    weights = take_step(before.weights, found.values)
    return encode_fragment(specs, weights, found.buffers, dtype, metadata)
