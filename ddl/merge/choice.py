"""Which kernel merges a fragment: the one for its size, or the one that a record names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddl.errors import ConfigError
from ddl.fused import choice
from ddl.merge.fused_kernel import FusedKernel
from ddl.merge.kernel import Kernel
from ddl.merge.torch_kernel import TORCH

SMALL: Final = 2**20
"""Fragments of fewer parameters are merged by plain torch, in milliseconds: who starts again with
such ones alone need not load the loops first, which takes most of a second.
"""


def chosen_kernel(num_parameters: int) -> Kernel:
    """The kernel for fragments of this size, always the same in a process: fused for large ones
    where `ddl.fused.choice` has loops.

    Raises: ConfigError: DDL_KERNEL asks for what is not there.
    """
    compiled = choice.loops() if _is_fused(num_parameters) else None
    return TORCH if compiled is None else FusedKernel(compiled)


def prepare(sizes: Iterable[int]) -> None:
    """Begin to load, in a thread, what merging fragments of these sizes takes.

    Raises: ConfigError: DDL_KERNEL is the name of no kernel.
    """
    if any(_is_fused(size) for size in sizes):
        choice.prepare()


def kernel_by_name(name: str) -> Kernel:
    """The kernel that a record names. Raises: ConfigError: this process does not have it."""
    if name == TORCH.name:
        return TORCH
    kernel = chosen_kernel(SMALL)
    if kernel.name == name:
        return kernel
    raise ConfigError(
        f"kernel {name!r} is not to be had here",
        hint="Install numba and the ddl version of the run, and leave DDL_KERNEL unset",
    )


def _is_fused(num_parameters: int) -> bool:
    wanted = choice.wanted()
    return wanted == "numba" or (not wanted and num_parameters >= SMALL)
