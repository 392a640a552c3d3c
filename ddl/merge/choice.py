"""Which kernel merges: the process' own, or the one that a record names."""

from __future__ import annotations

from ddl.errors import ConfigError
from ddl.fused.choice import loops
from ddl.merge.fused_kernel import FusedKernel
from ddl.merge.kernel import Kernel
from ddl.merge.torch_kernel import TORCH


def chosen_kernel() -> Kernel:
    """The kernel of this process, always the same: fused where `ddl.fused.choice` has loops."""
    compiled = loops()
    return TORCH if compiled is None else FusedKernel(compiled)


def kernel_by_name(name: str) -> Kernel:
    """The kernel that a record names. Raises: ConfigError: this process does not have it."""
    for kernel in (TORCH, chosen_kernel()):
        if kernel.name == name:
            return kernel
    raise ConfigError(
        f"kernel {name!r} is not to be had here",
        hint="Install numba and the ddl version of the run, and leave DDL_KERNEL unset",
    )
