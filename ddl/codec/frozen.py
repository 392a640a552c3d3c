"""What no round moves, as one object of a run: parameters that are not trained, and `local` tensors.

An export needs it to be whole, and a learner to train on top of the very same values as the others:
adapters on another base would merge without any error into nonsense.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from ddl.codec.frame import FramePlan, TensorPlan, plan_frame
from ddl.protocol.wire import SCHEMA, canonical


def encode_frozen(tensors: Mapping[str, Tensor]) -> bytearray:
    """The object; equal tensors give equal bytes, whatever the run."""
    plan = _plan(tensors)
    data = bytearray(plan.num_bytes)
    for name, place in plan.lay_out(data).items():
        place.copy_(tensors[name])
    return data


def frozen_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of what `encode_frozen` would give, in the memory of one tensor at a time."""
    plan = _plan(tensors)
    found = hashlib.sha256(plan.header)
    for name, _ in sorted(plan.offsets.items(), key=lambda item: item[1][1]):
        values = tensors[name].detach().cpu().contiguous().flatten()
        if values.numel():  # an empty tensor has no memory to look at
            found.update(values.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _plan(tensors: Mapping[str, Tensor]) -> FramePlan:
    return plan_frame(
        [TensorPlan(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()],
        canonical({"schema": SCHEMA, "kind": "frozen"}),
    )
