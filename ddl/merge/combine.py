"""How the deltas of several learners become one outer gradient, tensor by tensor.

d_1..d_M: deltas of one tensor, sorted by contribution id; w_i: their weights; s_i = w_i / sum w.

    mean      sum s_i d_i
    RDA       (sum s_i |d_i|) * unit(sum s_i unit(d_i))      |.| is the L2 norm of the tensor
    heaviest  the d_i of the largest w_i

Learners' deltas are nearly orthogonal, so that their mean is shorter by about sqrt(M) than each of
them and the outer optimizer would have to be tuned anew for every M. RDA keeps the length.

Sums run in fp64, in the order of the contributions, tile by tile: the result depends neither on the
number of threads nor, beyond the last bit, on the order.

Source: arXiv 2604.21428, D.2 (the weighted form is printed there with v_i for |v_i|).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ddl.merge.tiles import TILE, Flat, Total, tiles
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
    """An outer gradient.

    Attributes:
        value: fp32 in the tensor's shape.
        cosine: mean cosine between the deltas and it, weighted by weight (RDA) or by weight and
            length (mean); None where nothing moved or nothing was compared.
    """

    value: Tensor
    cosine: float | None


def combine(rule: Rule, deltas: Sequence[Delta]) -> Combined:
    """Combine at least one delta of a parameter by its rule; a single one is copied, bit for bit."""
    if len(deltas) == 1:
        return _copy(deltas[0])
    if rule == "heaviest":  # of equal weights the first
        return Combined(_copy(max(deltas, key=lambda delta: delta.weight)).value, None)
    if rule == "rda":
        return rda(deltas)
    assert rule == "mean", rule
    return mean(deltas)


def mean(deltas: Sequence[Delta]) -> Combined:
    """The mean, sum s_i d_i. Its cosine is |sum s_i d_i| / sum s_i |d_i|."""
    shares = _shares(deltas)
    value, (length,) = _sums(deltas, shares)
    longest = _mean_norm(deltas, shares)
    return Combined(value, length / longest if longest else None)


def rda(deltas: Sequence[Delta]) -> Combined:
    """The RDA, (sum s_i |d_i|) * unit(sum s_i unit(d_i)). Its cosine is |sum s_i unit(d_i)|.

    Zero vectors have no direction and are left out, as if their learners had not met the tensor. The
    result is at most 2 sqrt(M_eff) times as long as the mean, M_eff = (sum w)^2 / sum w^2, lest
    nearly opposite deltas be blown up; where the unit vectors cancel altogether it is the mean.
    """
    moving = [delta for delta in deltas if delta.norm > 0]
    if len(moving) < 2:
        return _copy(*(moving or deltas[:1]))
    shares = _shares(moving)
    units = [share / delta.norm for share, delta in zip(shares, moving, strict=True)]
    value, (cosine, mean_length) = _sums(moving, units, shares)
    if cosine < CANCELLED:
        return mean(moving)
    effective = 1 / math.fsum(share * share for share in shares)
    length = min(_mean_norm(moving, shares), GAIN_MAX * math.sqrt(effective) * mean_length)
    return Combined(value.mul_(length / cosine), cosine)


def _copy(delta: Delta) -> Combined:
    value = torch.empty(delta.values.shape, dtype=torch.float32)
    flat = value.view(-1)
    for start, stop in tiles(delta.values.numel):
        flat[start:stop] = delta.values.read(start, stop, flat[start:stop])
    return Combined(value, 1.0 if delta.norm else None)


def _shares(deltas: Sequence[Delta]) -> list[float]:
    total = math.fsum(delta.weight for delta in deltas)
    return [delta.weight / total for delta in deltas]


def _mean_norm(deltas: Sequence[Delta], shares: Sequence[float]) -> float:
    """The mean of norms, sum s_i |d_i|."""
    return math.fsum(share * delta.norm for share, delta in zip(shares, deltas, strict=True))


def _sums(deltas: Sequence[Delta], *factors: Sequence[float]) -> tuple[Tensor, tuple[float, ...]]:
    """In one pass sum f_i d_i as fp32 for the first row of factors, and its L2 norm for each row."""
    value = torch.empty(deltas[0].values.shape, dtype=torch.float32)
    flat = value.view(-1)
    scratch = torch.empty(TILE, dtype=torch.float32)
    term = torch.empty(TILE, dtype=torch.float64)
    sums = torch.empty(len(factors), TILE, dtype=torch.float64)
    totals = [Total() for _ in factors]
    for start, stop in tiles(flat.numel()):
        size = stop - start
        sums.zero_()
        for delta, column in zip(deltas, zip(*factors, strict=True), strict=True):
            part = delta.values.read(start, stop, scratch)
            for row, factor in zip(sums, column, strict=True):
                row[:size] += term[:size].copy_(part).mul_(factor)
        flat[start:stop] = sums[0, :size]
        for row, total in zip(sums, totals, strict=True):
            total.add(row[:size], row[:size])
    return value, tuple(math.sqrt(total.value) for total in totals)
