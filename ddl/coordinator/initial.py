"""`--init weights.safetensors`: start weights from a file instead of from the task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ddl.errors import ConfigError

_SHOWN: Final = 5
"""Differences that an error lists."""


def load_initial(file: Path, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read exactly the tensors of `model` from a safetensors file.

    Names and shapes must agree. Floating values keep the file's precision; all others must have
    the model's type.

    Args:
        model: by canonical name, every tensor of the model; only names, shapes and types count.
    Raises: ConfigError: no such file, or another model; the first differences are named.
    """
    try:
        with safe_open(file, framework="pt") as reader:
            found = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118 -- no mapping
    except FileNotFoundError:
        raise ConfigError(f"--init {file} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"--init {file} is not a whole safetensors file: {error}") from error
    differences = _differences(found, model)
    if differences:
        more = len(differences) - _SHOWN
        raise ConfigError(
            f"--init {file} does not fit the task's model: {'; '.join(differences[:_SHOWN])}"
            + (f"; and {more} more" if more > 0 else ""),
            hint="Names must be those of the bare model; tied tensors come once, under their first",
        )
    return found


def _differences(found: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> list[str]:
    """A sentence for every difference, by name."""
    sentences = {}
    for name in found.keys() | model.keys():
        if name not in found:
            sentences[name] = f"{name!r} is missing in the file"
        elif name not in model:
            sentences[name] = f"{name!r} is not in the model"
        else:
            sentences[name] = _difference(name, found[name], model[name])
    return [sentences[name] for name in sorted(sentences) if sentences[name]]


def _difference(name: str, found: Tensor, model: Tensor) -> str:
    if found.shape != model.shape:
        return f"{name!r} is {tuple(found.shape)} in the file, {tuple(model.shape)} in the model"
    both_floating = found.is_floating_point() and model.is_floating_point()
    if found.dtype != model.dtype and not both_floating:
        return f"{name!r} is {found.dtype} in the file, {model.dtype} in the model"
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        return f"{name!r} holds values that are not finite"
    return ""
