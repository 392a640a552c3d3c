"""One outer step of one fragment: contributions and state in, the next version out.

The reference kernel, in plain torch. The coordinator calls it at every close, and replay calls it
again on the kept payloads: same inputs, same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from ddl.merge.buffers import merge_buffer
from ddl.merge.combine import Delta, combine
from ddl.merge.outer import nesterov
from ddl.merge.tiles import Flat, dot
from ddl.protocol.records import Health, TensorSpec

KERNEL: Final = "torch/1"
"""Stands in every record: replay is bit-equal with the same kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A contribution that passed the gate.

    Attributes:
        weight: tokens^2 / steps * decay^staleness, > 0 and finite.
        deltas: anchor minus weights of each parameter, in any stored form.
        norms: L2 norm of each, from `examine`.
        buffers: values of each buffer in its own type.
    """

    weight: float
    deltas: Mapping[str, Flat]
    norms: Mapping[str, float]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The next version of a fragment; all tensors are new.

    Attributes:
        master: fp32 of each parameter.
        momentum: fp32 of each parameter.
        buffers: values of each buffer in its own type.
        health: `cos_peers`: mean cosine between deltas and outer gradient (see `Combined`), each
            tensor weighted by its elements. `cos_prev`: cosine between the outer gradient and the
            momentum before it, that is the decaying sum of those before; None at the first step.
            `step_norm`: L2 norm of what the master moved by.
    """

    master: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    health: Health


def merge_fragment(
    specs: Sequence[TensorSpec],
    offers: Sequence[Offer],
    *,
    master: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor] | None,
    lr: float,
    mu: float,
) -> Merged:
    """Combine the offers by each tensor's rule and take the outer step. Changes no argument.

    Peak memory beyond arguments and result: one tensor's outer gradient and step.

    Args:
        specs: the fragment's tensors.
        offers: at least one, sorted by contribution id.
        master: fp32 of each parameter.
        momentum: fp32 of each parameter; None before the fragment's first step.
        lr, mu: outer learning rate and momentum factor.
    """
    weights = [offer.weight for offer in offers]
    masters, momenta, buffers = {}, {}, {}
    signs = _Signs()
    for spec in specs:
        name = spec.name
        if spec.kind == "buffer":
            values = [offer.buffers[name] for offer in offers]
            buffers[name] = merge_buffer(spec.rule, values, weights)
            continue
        deltas = [Delta(o.deltas[name], o.weight, o.norms[name]) for o in offers]
        gradient = combine(spec.rule, deltas)
        before = momentum[name] if momentum is not None else None
        masters[name], momenta[name] = nesterov(master[name], gradient.value, before, lr=lr, mu=mu)
        signs.note(gradient.value, gradient.cosine, before, masters[name] - master[name])
    return Merged(master=masters, momentum=momenta, buffers=buffers, health=signs.health())


class _Signs:
    """Gathers a step's health over its tensors."""

    def __init__(self) -> None:
        self._cosines: list[tuple[float, int]] = []
        self._dots: list[tuple[float, float, float]] = []
        self._moved: list[float] = []

    def note(
        self, gradient: Tensor, cosine: float | None, before: Tensor | None, moved: Tensor
    ) -> None:
        if cosine is not None:
            self._cosines.append((cosine, gradient.numel()))
        if before is not None:
            self._dots.append((dot(gradient, before), dot(gradient, gradient), dot(before, before)))
        self._moved.append(dot(moved, moved))

    def health(self) -> Health:
        elements = sum(count for _, count in self._cosines)
        cos_peers = None
        if elements:
            cos_peers = math.fsum(cosine * count for cosine, count in self._cosines) / elements
        cos_prev = None
        if self._dots:
            both, left, right = (math.fsum(column) for column in zip(*self._dots, strict=True))
            lengths = math.sqrt(left) * math.sqrt(right)
            cos_prev = both / lengths if lengths > 0 else None
        return Health(
            cos_peers=cos_peers,
            cos_prev=cos_prev,
            step_norm=math.sqrt(math.fsum(self._moved)),
        )
