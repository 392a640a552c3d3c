"""The learner's book-keeping of one fragment: what it has moved and not yet handed in (design 3.1).

All on the host, in fp32. R is the anchor, theta the learner's weights, Theta a published version.
What has not been handed in is u = theta - R, whatever happens:

    hand in    delta = R - theta, encoded;  R := R - decoded(delta)
    adopt      theta := Theta + k*u,  R := Theta      k = 1 carry, 0 overwrite, alpha blend
    re-align   theta := Theta,        R := Theta

What was handed in and is not in the version yet, a delta in flight, is no part of u. A learner that adopts
meanwhile would go on without it, and get it back with a later version: it would train for a while where it
has never been. So its own view of the version has it: Theta - k*decoded(delta) stands for Theta then. Alone,
with lr 1 and no momentum, a learner so goes the way that it would go without any run, however slow its links.

What a lossy codec leaves out of a delta stays in u by itself: error feedback without a second
buffer. And since a parameter in bf16 or fp16 cannot hold Theta + k*u, R is set so that u comes out
right: R := (what theta really becomes) - k*u. Rounding is so never handed in as work, and a learner
that does not move hands in exactly zero.

Source: arXiv 2604.21428, Algorithm 1 and D.1 (there always overwrite, and nothing is carried).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ddl.fused.sizes import TILE
from ddl.merge.layout import dtype_of
from ddl.merge.tiles import Flat, tiles
from ddl.protocol.records import TensorSpec

Mode = Literal["carry", "overwrite", "blend"]
"""`adopt.mode` of the settings."""


class Movement:
    """The anchor of one fragment.

    Contract: `realign` comes first. From the moment that a snapshot is taken until `handed_in` has
    returned, nothing is adopted: the delta belongs to the anchor it was taken from. The learner's
    core sees to that, so that the up thread and the training thread need no lock here.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        """Start without an anchor. Only the parameters among `specs` move."""
        self._specs = [spec for spec in specs if spec.kind == "parameter"]
        self._anchor: dict[str, Tensor] = {}
        self._in_flight: Mapping[str, Flat] = {}

    @property
    def anchor(self) -> Mapping[str, Tensor]:
        """R: fp32 by name, not to be written to; empty before the first `realign`."""
        return self._anchor

    def hand_in(
        self, theta: Mapping[str, Tensor], out: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The delta R - theta of every parameter, fp32, to be encoded.

        Until `handed_in` follows, nothing has changed; a delta that cannot be encoded needs no undo.

        Args:
            theta: the snapshot, fp32 on the host.
            out: fp32 tensors to write into; may be the snapshot itself.
        """
        return {
            spec.name: torch.sub(
                self._anchor[spec.name], theta[spec.name], out=out[spec.name] if out else None
            )
            for spec in self._specs
        }

    def handed_in(self, decoded: Mapping[str, Flat]) -> None:
        """Take off the anchor what the coordinator will read of the delta: R := R - decoded.

        `decoded` must stay readable until a version that has it is adopted: it is in flight.
        """
        self._in_flight = decoded
        for spec in self._specs:
            _take_off(self._anchor[spec.name].view(-1), decoded[spec.name], 1.0)

    def adopt(
        self,
        theta: Mapping[str, Tensor],
        published: Mapping[str, Tensor],
        *,
        mode: Mode,
        alpha: float = 0.0,
        mastered: Container[str] = (),
        in_flight: bool = False,
    ) -> dict[str, Tensor]:
        """Move to a published version; the caller sets its parameters to the result.

        Args:
            theta: weights as they are now, on the host, in the parameters' own type or fp32.
            published: Theta, fp32. A result may share its memory.
            mode: what happens to u.
            alpha: what blend keeps of u.
            mastered: parameters of which theta is an fp32 master copy: nothing of them is rounded.
            in_flight: what was handed in last is not in this version.
        Returns:
            The new weights, in the parameters' own type; fp32 of those with a master copy.
        """
        keep = {"carry": 1.0, "overwrite": 0.0, "blend": alpha}[mode]
        if not in_flight:
            self._in_flight = {}
        moved = {}
        for spec in self._specs:
            dtype = torch.float32 if spec.name in mastered else dtype_of(spec)
            moved[spec.name] = self._move(
                spec.name, theta[spec.name], published[spec.name], keep, dtype
            )
        return moved

    def realign(
        self, published: Mapping[str, Tensor], *, mastered: Container[str] = ()
    ) -> dict[str, Tensor]:
        """Take a published version as it is; u becomes zero. Arguments and result as in `adopt`."""
        if not self._anchor:
            self._anchor = {spec.name: torch.empty(spec.shape) for spec in self._specs}
        # whatever theta was
        return self.adopt(published, published, mode="overwrite", mastered=mastered)

    def _move(
        self, name: str, theta: Tensor, published: Tensor, keep: float, dtype: torch.dtype
    ) -> Tensor:
        anchor = self._anchor[name]
        if keep == 0.0:  # and not 0 * u, which would keep a NaN
            moved = published.to(dtype)
            anchor.copy_(moved)
            return moved
        # u takes the anchor's memory: fresh pages cost the training thread more than sums
        kept = torch.sub(theta, anchor, out=anchor)
        if keep != 1.0:
            kept *= keep
        moved = published + kept
        if self._in_flight:
            _take_off(moved.view(-1), self._in_flight[name], keep)
        moved = moved.to(dtype)
        torch.sub(moved, kept, out=anchor)
        return moved


def _take_off(values: Tensor, coded: Flat, factor: float) -> None:
    """Take factor * coded off values (n,) in place, without decoding all of it at once."""
    scratch = torch.empty(TILE)
    for start, stop in tiles(coded.numel):
        values[start:stop].sub_(coded.read(start, stop, scratch), alpha=factor)
