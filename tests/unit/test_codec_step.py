"""Published versions as quantised steps: the bytes arrive, and nothing drifts."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from torch import Tensor

from ddl.codec.codecs import FP32
from ddl.codec.fragment import PublishDtype, decode_fragment, encode_fragment, version_metadata
from ddl.codec.payload import Encoded, plan_payload
from ddl.codec.step import STEP_CODEC, encode_step, rebuild_version, take_step
from ddl.errors import IntegrityError, TaskError
from ddl.fused.sizes import BLOCK
from ddl.protocol.records import TensorSpec

SPECS = [
    TensorSpec(name="w", shape=(5, 70), dtype="float32", kind="parameter", rule="rda", fragment=0),
    TensorSpec(name="b", shape=(), dtype="bfloat16", kind="parameter", rule="mean", fragment=0),
    TensorSpec(
        name="none", shape=(0, 4), dtype="float32", kind="parameter", rule="rda", fragment=0
    ),
    TensorSpec(name="seen", shape=(), dtype="int64", kind="buffer", rule="max", fragment=0),
]
LARGEST_ROUNDING = 1.0 + 2**-5
"""In units of a block's scale: an element at the end of the grid that has no counterpart is cut by
one level; and the scale itself is rounded to bf16, which moves 8 levels by 2^-6 at most."""

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def buffers(seen: int) -> dict[str, Tensor]:
    return {"seen": torch.tensor(seen)}


class Publisher:
    """One fragment as the coordinator publishes it: master, published weights and their bytes."""

    def __init__(self, dtype: PublishDtype) -> None:
        lots = torch.Generator().manual_seed(1)
        self.dtype = dtype
        self.version = 0
        parameters = [spec for spec in SPECS if spec.kind == "parameter"]
        self.master = {spec.name: torch.randn(spec.shape, generator=lots) for spec in parameters}
        self._take(encode_fragment(SPECS, self.master, buffers(0), dtype, self.metadata))
        self.master = dict(self.published)  # version 0 is where the run begins

    @property
    def metadata(self) -> bytes:
        return version_metadata("fragment", "tiny", 0, self.version)

    def move(self, by: dict[str, Tensor]) -> Encoded:
        """The next version of the master, published; its step object."""
        self.version += 1
        self.master = {name: value + by[name] for name, value in self.master.items()}
        metadata = version_metadata("step", "tiny", 0, self.version)
        step = encode_step(SPECS, self.master, self.published, buffers(self.version), metadata)
        weights = take_step(self.published, step.decoded)
        self._take(
            encode_fragment(SPECS, weights, buffers(self.version), self.dtype, self.metadata)
        )
        return step

    def _take(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.published = {name: coded.whole() for name, coded in encoded.decoded.items()}


def random_moves(seed: int, size: float) -> dict[str, Tensor]:
    lots = torch.Generator().manual_seed(seed)
    return {
        spec.name: size * torch.randn(spec.shape, generator=lots)
        for spec in SPECS
        if spec.kind == "parameter"
    }


def roundings(step: Encoded) -> dict[str, Tensor]:
    """By parameter, the most that quantising may have left out of each element."""
    out = {}
    for name, coded in step.decoded.items():
        scales = coded.parts["|s"].float().abs().repeat_interleave(BLOCK)
        out[name] = LARGEST_ROUNDING * scales[: coded.numel].view(coded.shape)
    return out


@DTYPES
def test_a_learner_arrives_at_the_very_bytes(dtype: PublishDtype) -> None:
    """Base and step give the published bytes, version by version; buffers come whole."""
    publisher = Publisher(dtype)
    held = bytes(publisher.encoded.buffer)
    for version in range(1, 6):
        step = publisher.move(random_moves(version, 0.1))
        made = rebuild_version(held, step.buffer, SPECS, dtype, publisher.metadata)
        held = bytes(made.buffer)
        assert made.sha256 == publisher.encoded.sha256 == hashlib.sha256(held).hexdigest()
        assert decode_fragment(held, SPECS, dtype).buffers["seen"] == version


@DTYPES
def test_versions_do_not_drift_from_the_master(dtype: PublishDtype) -> None:
    """After 200 versions they differ by no more than one step's rounding (and, in bf16, by what the
    type itself rounds): what is left out of a step is part of the next."""
    publisher = Publisher(dtype)
    for version in range(1, 201):
        step = publisher.move(random_moves(version, 0.01))
        if version % 50:
            continue
        for name, most in roundings(step).items():
            apart = (publisher.master[name] - publisher.published[name]).abs()
            of_type = publisher.published[name].abs() * (2**-8 if dtype == "bfloat16" else 2**-23)
            assert (apart <= most + of_type).all(), f"{name} at version {version}"
    moved = publisher.master["w"] - Publisher(dtype).master["w"]
    assert moved.abs().mean() > 0.05, "the walk went far beyond one step"


def test_a_standstill_publishes_the_same_weights() -> None:
    """A step of zero is exactly zero: learners that do not move see the same weights for ever."""
    publisher = Publisher("float32")
    before = dict(publisher.published)
    still = {name: torch.zeros_like(value) for name, value in before.items()}
    for _ in range(3):
        publisher.move(still)
    assert all(torch.equal(publisher.published[name], value) for name, value in before.items())


@pytest.mark.parametrize("numel", [2**20, 2**20 + 17])
def test_a_large_step_takes_at_most_0_14_of_fp32(numel: int) -> None:
    """The header included."""
    specs = [
        TensorSpec(
            name="w", shape=(numel,), dtype="float32", kind="parameter", rule="rda", fragment=0
        )
    ]
    metadata = version_metadata("step", "tiny", 0, 1)
    full = plan_payload(specs, FP32, metadata).num_bytes
    assert plan_payload(specs, STEP_CODEC, metadata).num_bytes <= 0.14 * full


def test_a_damaged_base_or_step_never_passes_for_the_version() -> None:
    """A flipped bit gives another digest, or is noticed at once."""
    publisher = Publisher("float32")
    base = bytearray(publisher.encoded.buffer)
    step = publisher.move(random_moves(1, 0.1))
    base[-9] ^= 0x10
    made = rebuild_version(base, step.buffer, SPECS, "float32", publisher.metadata)
    assert made.sha256 != publisher.encoded.sha256
    with pytest.raises(IntegrityError, match="cut short"):
        rebuild_version(base, step.buffer[:-1], SPECS, "float32", publisher.metadata)


def test_a_step_that_is_not_finite_is_not_written() -> None:
    """The tensor is named."""
    publisher = Publisher("float32")
    moves = random_moves(1, 0.1)
    moves["w"][0, 0] = math.inf
    with pytest.raises(TaskError, match="'w'"):
        publisher.move(moves)
