"""One outer step of one fragment: contributions and state in, the next version out.

The coordinator calls it at every close, and replay calls it again on the kept payloads: same inputs,
same kernel, same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ddl.merge.buffers import merge_buffer
from ddl.merge.choice import chosen_kernel
from ddl.merge.combine import Combined, Delta, combine
from ddl.merge.kernel import Dots, Kernel, Outer
from ddl.merge.memory import empty
from ddl.merge.tiles import Flat
from ddl.protocol.records import Health, TensorSpec


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
            `step_norm`: L2 norm of the outer step.
        kernel: name of the kernel that made it, for the record.
    """

    master: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    health: Health
    kernel: str


def merge_fragment(
    specs: Sequence[TensorSpec],
    offers: Sequence[Offer],
    *,
    master: Mapping[str, Tensor],
    momentum: Mapping[str, Tensor] | None,
    lr: float,
    mu: float,
    kernel: Kernel | None = None,
) -> Merged:
    """Combine the offers by each tensor's rule and take the outer step. Changes no argument.

    Memory beyond arguments and result: a few tiles for each thread; the torch kernel also takes one
    tensor's outer gradient.

    Args:
        specs: the fragment's tensors.
        offers: at least one, sorted by contribution id.
        master: fp32 of each parameter.
        momentum: fp32 of each parameter; None before the fragment's first step.
        lr, mu: outer learning rate and momentum factor.
        kernel: that of the record when it is replayed; else the one for the fragment's size.
    """
    kernel = kernel or chosen_kernel(sum(s.numel for s in specs if s.kind == "parameter"))
    weights = [offer.weight for offer in offers]
    after: dict[str, Outer] = {}
    buffers = {}
    signs = _Signs(lr=lr, mu=mu)
    for spec in specs:
        name = spec.name
        if spec.kind == "buffer":
            values = [offer.buffers[name] for offer in offers]
            buffers[name] = merge_buffer(spec.rule, values, weights)
            continue
        before = momentum[name] if momentum is not None else None
        into = after[name] = Outer(empty(spec.shape), empty(spec.shape))
        deltas = [Delta(o.deltas[name], o.weight, o.norms[name]) for o in offers]
        gradient = combine(spec.rule, deltas, kernel, into.master)
        dots = kernel.step(gradient.total, gradient.scale, master[name], before, into, lr=lr, mu=mu)
        signs.note(gradient, dots)
    return Merged(
        master={name: outer.master for name, outer in after.items()},
        momentum={name: outer.momentum for name, outer in after.items()},
        buffers=buffers,
        health=signs.health(),
        kernel=kernel.name,
    )


class _Signs:
    """Gathers a step's health over its tensors.

    With g the outer gradient and b the momentum before, the step is lr times (1 + mu) g + mu^2 b.
    """

    def __init__(self, *, lr: float, mu: float) -> None:
        self._lr = lr
        self._mu = mu
        self._cosines: list[tuple[float, int]] = []
        self._products: list[tuple[float, float, float]] = []

    def note(self, gradient: Combined, dots: Dots) -> None:
        if gradient.cosine is not None:
            self._cosines.append((gradient.cosine, gradient.total.numel()))
        self._products.append((gradient.norm * gradient.norm, dots.g_b, dots.b_b))

    def health(self) -> Health:
        elements = sum(count for _, count in self._cosines)
        cos_peers = None
        if elements:
            cos_peers = math.fsum(cosine * count for cosine, count in self._cosines) / elements
        g_g, g_b, b_b = (math.fsum(c) for c in zip((0.0, 0.0, 0.0), *self._products, strict=True))
        lengths = math.sqrt(g_g) * math.sqrt(b_b)
        of_g, of_b = 1 + self._mu, self._mu * self._mu
        square = of_g * of_g * g_g + 2 * of_g * of_b * g_b + of_b * of_b * b_b
        return Health(
            cos_peers=cos_peers,
            cos_prev=g_b / lengths if lengths > 0 else None,
            step_norm=self._lr * math.sqrt(max(0.0, square)),
        )
