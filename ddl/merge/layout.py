"""How a model is cut into fragments, and by which rule each of its tensors is merged.

Settled once, at genesis, and stored in `run.json`.

Source: arXiv 2604.21428, appendix C (balanced tensor fragmentation: whole tensors, largest first,
each into the lightest fragment; at most 4/3 of the best possible) and 5.5 (embeddings take the
mean).
"""

from __future__ import annotations

import difflib
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

import torch

from ddl.errors import ConfigError, TaskError
from ddl.protocol.records import Layout, Rule, TensorKind, TensorSpec
from ddl.protocol.sizes import default_num_fragments

_DELTA_BYTES: Final = 4
"""Parameters count as fp32, the form in which they are merged, whatever type they are trained in."""

_ALLOWED: Final[Mapping[TensorKind, tuple[Rule, ...]]] = {
    "parameter": ("rda", "mean", "heaviest", "local"),
    "buffer": ("mean", "max", "heaviest", "local"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a model; `dtype` is torch's name without the prefix."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    is_embedding: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """What it weighs in a fragment."""
        count = math.prod(self.shape)
        return count * (_DELTA_BYTES if self.kind == "parameter" else dtype_of(self).itemsize)


def dtype_of(tensor: TensorInfo | TensorSpec) -> torch.dtype:
    """The torch type behind the name in a description or a record."""
    dtype = getattr(torch, tensor.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def plan_layout(
    infos: Sequence[TensorInfo],
    *,
    num: int,
    method: Literal["rda", "mean"],
    every_steps: int,
    overrides: Mapping[str, Rule] | None = None,
) -> Layout:
    """Assign a rule and a fragment to every tensor.

    Parameters are dealt first, so that each fragment has some; then buffers. Equal arguments give
    equal layouts, whatever order the tensors come in, except for the order of `tensors`.

    Args:
        infos: the model's tensors; the layout keeps their order.
        num: number of fragments, or 0 for `default_num_fragments`.
        method: rule of parameters with two or more dimensions that are not embeddings.
        every_steps: H; a learner hands in every fragment once in H steps.
        overrides: rule by tensor name or `fnmatch` pattern. A name, which may be an alias, goes
            before patterns; of several patterns the first that matches counts.
    Raises:
        ConfigError: more fragments than parameters to put into them.
        TaskError: an override that matches nothing, or a rule that its tensor cannot have.
    """
    rules = _rules(infos, method, overrides or {})
    shared = [info for info in infos if rules[info.name] != "local"]
    parameters = [info for info in shared if info.kind == "parameter" and info.bytes]
    if not parameters:
        raise TaskError("no parameter is shared: all are local, or empty")
    if num > len(parameters):
        raise ConfigError(
            f"fragments.num is {num}, but the model has only {len(parameters)} parameters that are "
            "shared and not empty, and a fragment holds whole tensors",
            hint=f"Use fragments.num = {len(parameters)} or fewer",
        )
    num = num or default_num_fragments(
        sum(info.bytes for info in parameters), len(parameters), every_steps
    )
    places = _deal(shared, num)
    return Layout(
        num_fragments=num,
        tensors=tuple(
            TensorSpec(
                name=info.name,
                shape=info.shape,
                dtype=info.dtype,
                kind=info.kind,
                rule=rules[info.name],
                fragment=places.get(info.name, -1),
                aliases=info.aliases,
            )
            for info in infos
        ),
    )


def default_rule(info: TensorInfo, method: Literal["rda", "mean"]) -> Rule:
    """The rule of a tensor that nobody named."""
    if info.kind == "parameter":
        return method if len(info.shape) >= 2 and not info.is_embedding else "mean"
    if dtype_of(info).is_floating_point:
        return "mean"
    return "heaviest" if info.dtype == "bool" or dtype_of(info).is_complex else "max"


def _rules(
    infos: Sequence[TensorInfo], method: Literal["rda", "mean"], overrides: Mapping[str, Rule]
) -> dict[str, Rule]:
    names = [name for info in infos for name in (info.name, *info.aliases)]
    for pattern in overrides:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, n=1)
            raise TaskError(
                f"rule for {pattern!r}: the model has no such tensor",
                hint=f"Did you mean {near[0]!r}?" if near else f"Its tensors: {', '.join(names)}",
            )
    return {info.name: _rule(info, method, overrides) for info in infos}


def _rule(info: TensorInfo, method: Literal["rda", "mean"], overrides: Mapping[str, Rule]) -> Rule:
    names = (info.name, *info.aliases)
    exact = [overrides[name] for name in names if name in overrides]
    matching = [
        rule for pattern, rule in overrides.items() if any(fnmatchcase(n, pattern) for n in names)
    ]
    rule = next(iter([*exact, *matching]), None)
    if rule is None:
        return default_rule(info, method)
    allowed = _ALLOWED[info.kind]
    if rule not in allowed:
        raise TaskError(
            f"rule {rule!r} does not fit {info.kind} {info.name!r}",
            hint=f"Use one of {', '.join(allowed)}",
        )
    if rule == "mean" and not dtype_of(info).is_floating_point:
        raise TaskError(
            f"rule 'mean' does not fit {info.name!r}, which is {info.dtype}",
            hint="Use max, heaviest or local",
        )
    return rule


def _deal(infos: Sequence[TensorInfo], num: int) -> dict[str, int]:
    """Fragment of each tensor: largest first into the lightest; ties by name and by number."""
    fragments = [(0, index) for index in range(num)]
    places = {}
    for info in sorted(infos, key=lambda i: (i.kind != "parameter", -i.bytes, i.name)):
        load, index = heapq.heappop(fragments)
        places[info.name] = index
        heapq.heappush(fragments, (load + info.bytes, index))
    return places
