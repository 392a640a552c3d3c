"""How the buffers of several learners (BatchNorm statistics, counters, masks) become one.

Buffers are values, not movement: they never go through the outer optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ddl.protocol.records import Rule


def merge_buffer(rule: Rule, values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """One value of the type and shape that `values` have; always memory of its own.

    Args:
        rule: mean (floating types only; summed in fp64 in the order given), max (elementwise), or
            heaviest (of equal weights the first).
        values: at least one, sorted by contribution id; one alone is copied.
        weights: > 0 and finite, one for each value.
    """
    first = values[0]
    if len(values) == 1 or rule == "heaviest":
        return values[max(range(len(values)), key=lambda i: weights[i])].clone()
    if rule == "max":
        result = first.clone()
        for value in values[1:]:
            torch.maximum(result, value, out=result)
        return result
    assert rule == "mean", rule
    total = math.fsum(weights)
    acc = torch.zeros(first.shape, dtype=torch.float64)
    for value, weight in zip(values, weights, strict=True):
        acc += value.double().mul_(weight / total)
    return acc.to(first.dtype)
