"""How the deltas of several learners become one outer gradient, tensor by tensor.

d_1..d_M: deltas of one tensor, sorted by contribution id; w_i: their weights; s_i = w_i / sum w.

    mean      sum s_i d_i
    RDA       (sum s_i |d_i|) * unit(sum s_i unit(d_i))      |.| is the L2 norm of the tensor
    heaviest  the d_i of the largest w_i

Learners' deltas are nearly orthogonal, so that their mean is shorter by about sqrt(M) than each of
them and the outer optimizer would have to be tuned anew for every M. RDA keeps the length.

Sums run in fp64, in the order of the contributions: the result depends neither on the number of
threads nor, beyond the last bit, on the order.

Source: arXiv 2604.21428, D.2 (the weighted form is printed there with v_i for |v_i|).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from ddl.merge.kernel import Kernel
from ddl.merge.memory import empty
from ddl.merge.tiles import Flat
from ddl.protocol.records import Rule

GAIN_MAX: Final = 2.0
"""RDA may exceed the mean by this many times what it does for orthogonal deltas."""

CANCELLED: Final = 1e-6
"""Below this length the sum of unit vectors is rounding, and has no direction worth the name."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One contribution's delta of one tensor.

    Attributes:
        values: fp32 in any stored form.
        weight: > 0 and finite.
        norm: L2 norm of the values, as `examine` gives it.
    """

    values: Flat
    weight: float
    norm: float


@dataclass(frozen=True, slots=True)
class Combined:
    """An outer gradient, `scale * total`; it is not multiplied out until the outer step reads it.

    Attributes:
        total: fp32, in the memory that `combine` was given.
        scale: what each element is to be multiplied by, in fp32.
        norm: L2 norm of the gradient.
        cosine: mean cosine between the deltas and it, weighted by weight (RDA) or by weight and
            length (mean); None where nothing moved or nothing was compared.
    """

    total: Tensor
    scale: float
    norm: float
    cosine: float | None

    @property
    def value(self) -> Tensor:
        """The gradient, fp32 in the tensor's shape."""
        return self.total * self.scale


def combine(rule: Rule, deltas: Sequence[Delta], kernel: Kernel, out: Tensor) -> Combined:
    """Combine at least one delta of a parameter by its rule; a single one is copied, bit for bit.

    Args:
        out: fp32 in the tensor's shape, for the result's `total`.
    """
    if len(deltas) == 1:
        return _copy(deltas[0], kernel, out)
    if rule == "heaviest":  # of equal weights the first
        heaviest = _copy(max(deltas, key=lambda delta: delta.weight), kernel, out)
        return replace(heaviest, cosine=None)
    if rule == "rda":
        return _rda(deltas, kernel, out)
    assert rule == "mean", rule
    return _mean(deltas, kernel, out)


def _mean(deltas: Sequence[Delta], kernel: Kernel, out: Tensor) -> Combined:
    """The mean, sum s_i d_i. Its cosine is |sum s_i d_i| / sum s_i |d_i|."""
    shares = _shares(deltas)
    norm = kernel.add_up([delta.values for delta in deltas], shares, out)
    longest = _mean_norm(deltas, shares)
    return Combined(out, 1.0, norm, norm / longest if longest else None)


def _rda(deltas: Sequence[Delta], kernel: Kernel, out: Tensor) -> Combined:
    """The RDA, (sum s_i |d_i|) * unit(sum s_i unit(d_i)). Its cosine is |sum s_i unit(d_i)|.

    Zero vectors have no direction and are left out, as if their learners had not met the tensor. The
    result is at most 2 sqrt(M_eff) times as long as the mean, M_eff = (sum w)^2 / sum w^2, lest
    nearly opposite deltas be blown up; where the unit vectors cancel altogether it is the mean.
    """
    moving = [delta for delta in deltas if delta.norm > 0]
    if len(moving) < 2:
        return _copy((*moving, deltas[0])[0], kernel, out)
    shares = _shares(moving)
    units = [share / delta.norm for share, delta in zip(shares, moving, strict=True)]
    values = [delta.values for delta in moving]
    cosine = kernel.add_up(values, units, out)
    if cosine < CANCELLED:
        return _mean(moving, kernel, out)
    length = _mean_norm(moving, shares)
    gain_max = GAIN_MAX / math.sqrt(math.fsum(share * share for share in shares))
    # With N the mean norm, the mean is N sum s_i unit(d_i) + sum s_i (|d_i| - N) unit(d_i): at least
    # as long as this. Mostly that is enough to know that the cap does not bite, and saves a pass.
    spread = math.fsum(s * abs(d.norm - length) for s, d in zip(shares, moving, strict=True))
    if gain_max * (length * cosine - spread) <= length:
        length = min(length, gain_max * kernel.add_up(values, shares, empty(tuple(out.shape))))
    return Combined(out, length / cosine, length, cosine)


def _copy(delta: Delta, kernel: Kernel, out: Tensor) -> Combined:
    norm = kernel.add_up([delta.values], [1.0], out)
    return Combined(out, 1.0, norm, 1.0 if norm else None)


def _shares(deltas: Sequence[Delta]) -> list[float]:
    total = math.fsum(delta.weight for delta in deltas)
    return [delta.weight / total for delta in deltas]


def _mean_norm(deltas: Sequence[Delta], shares: Sequence[float]) -> float:
    """The mean of norms, sum s_i |d_i|."""
    return math.fsum(share * delta.norm for share, delta in zip(shares, deltas, strict=True))
