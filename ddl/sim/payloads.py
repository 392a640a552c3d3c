"""Weights, contributions and merges in exact arithmetic.

A fragment's weights are one number, an integer modulo the prime 2^61 - 1. There every sum,
difference, product and quotient is exact, and every step moves by a number of 61 random bits: a
contribution that is lost, merged twice or merged onto the wrong base shows for certain, and no
rounding hides it. The formulas are those of `ddl.merge`, with the mean as the rule. A codec leaves
out the low bits of what it encodes: a different number of them for each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import msgspec

from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Handin, HandinId, ObjectRef
from ddl.protocol.wire import canonical, parse

PRIME: Final = 2**61 - 1
KERNEL: Final = "residues/1"
LEFT_OUT_BITS: Final = {"fp32": 0, "bf16": 8, "int8": 16, "int4": 24}
"""What each codec of a contribution leaves out."""

STEP_LEFT_OUT_BITS: Final = 24
"""What the step between two published versions leaves out of it."""

T = TypeVar("T", bound=msgspec.Struct)


class Weights(msgspec.Struct, frozen=True):
    """A published version of one fragment."""

    fragment: int
    version: int
    value: int


class Outer(msgspec.Struct, frozen=True):
    """Its outer state; `master` differs from the published value if steps are published."""

    fragment: int
    version: int
    master: int
    momentum: int


class Move(msgspec.Struct, frozen=True):
    """The step object: what leads from the published version before to this one."""

    fragment: int
    version: int
    value: int


class Contribution(msgspec.Struct, frozen=True):
    """A contribution's payload; the announcement lacks the name of the payload."""

    announcement: Handin
    delta: int
    norm: float


class Step(NamedTuple):
    """Result of an outer step."""

    master: int
    momentum: int


@lru_cache(4096)
def residue(number: float) -> int:
    """The residue that stands for a finite float."""
    numerator, denominator = number.as_integer_ratio()
    return numerator * pow(denominator, -1, PRIME) % PRIME


def outer_step(
    offers: Sequence[tuple[float, int]],
    *,
    master: int,
    momentum: int | None,
    lr: float,
    mu: float,
) -> Step:
    """The weighted mean of (weight, delta), and with it a step of Nesterov SGD (design 3.2)."""
    weights = [(residue(weight), delta) for weight, delta in offers]
    total = sum(weight for weight, _ in weights)
    mean = sum(weight * delta for weight, delta in weights) * pow(total, -1, PRIME) % PRIME
    buffer = mean if momentum is None else (residue(mu) * momentum + mean) % PRIME
    after = (master - residue(lr) * (mean + residue(mu) * buffer)) % PRIME
    return Step(after, buffer)


def lossy(value: int, left_out_bits: int) -> int:
    """What is left of a value after encoding and decoding."""
    return value >> left_out_bits << left_out_bits


class Encoded(NamedTuple):
    """A payload on its way into the store."""

    ref: ObjectRef
    data: bytes


def encode(keys: ObjectKeys, value: Weights | Outer | Move | Contribution) -> Encoded:
    """Bytes of a payload, and the reference that names them."""
    data = canonical(value)
    digest = hashlib.sha256(data).hexdigest()
    match value:
        case Weights(fragment, version):
            key = keys.fragment(fragment, version, digest)
        case Outer(fragment, version):
            key = keys.outer(fragment, version, digest)
        case Move(fragment, version):
            key = keys.step(fragment, version, digest)
        case _:
            announcement = value.announcement
            key = keys.contribution(*announcement.id, digest)
    return Encoded(ObjectRef(key=key, bytes=len(data), sha256=digest), data)


def decode(ref: ObjectRef, data: bytes, kind: type[T]) -> T | None:
    """The payload that `ref` names; None if the bytes are not the ones it tells of."""
    if len(data) != ref.bytes or hashlib.sha256(data).hexdigest() != ref.sha256:
        return None
    return parse(data, kind, what=ref.key)


def announcement(key: str, data: bytes) -> Handin | None:
    """The announcement that a contribution's payload repeats; None if it cannot be read."""
    try:
        found = msgspec.json.decode(data, type=Contribution)
    except msgspec.DecodeError:
        return None
    ref = ObjectRef(key=key, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return msgspec.structs.replace(found.announcement, payload=ref)


class Movement:
    """A learner's weights of one fragment and its anchor, as `ddl.merge.movement`; beside them, by
    other means, the books that they are checked against.

    Attributes:
        theta: the weights.
        anchor: R; theta - anchor has not been handed in.
        in_hand: the sum of all moves that were neither handed in nor thrown away.
        in_flight: what was handed in last.
        last: its id; None before, and after a re-alignment, which forgets it.
    """

    def __init__(self) -> None:
        self.theta = 0
        self.anchor = 0
        self.in_hand = 0
        self.in_flight = 0
        self.last: HandinId | None = None

    def step(self, move: int) -> None:
        """Take a step of the inner optimizer."""
        self.theta = (self.theta + move) % PRIME
        self.in_hand = (self.in_hand + move) % PRIME

    def delta(self, theta: int) -> int:
        """What to encode of a snapshot."""
        return (self.anchor - theta) % PRIME

    def handed_in(self, id_: HandinId, decoded: int) -> None:
        """The coordinator will read this of the delta."""
        self.last, self.in_flight = id_, decoded
        self.anchor = (self.anchor - decoded) % PRIME
        self.in_hand = (self.in_hand + decoded) % PRIME

    def adopt(self, published: int, *, keep: float, in_flight: bool) -> None:
        """Move to a published version, keeping this part of what was not handed in, or is in flight."""
        kept = residue(keep) * (self.theta - self.anchor) % PRIME
        flown = residue(keep) * self.in_flight if in_flight else 0
        self.anchor = (published - flown) % PRIME
        self.theta = (self.anchor + kept) % PRIME
        self.in_hand = residue(keep) * self.in_hand % PRIME

    @property
    def balances(self) -> bool:
        """Whether what the weights are beyond the anchor is what was trained and not handed in."""
        return (self.theta - self.anchor - self.in_hand) % PRIME == 0
