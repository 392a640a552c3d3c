"""Which loops this process uses: the fused ones where they can be had, else plain torch.

`DDL_KERNEL=torch` or `DDL_KERNEL=numba` decides it by hand. Compiling takes some seconds of one
core, once on a machine; numba keeps the code beside the source or in the user's cache folder
(`NUMBA_CACHE_DIR` moves it), and to load it from there takes half a second.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from types import ModuleType

from ddl.errors import ConfigError

VARIABLE = "DDL_KERNEL"


def wanted() -> str:
    """What DDL_KERNEL asks for: numba, torch or "". Raises: ConfigError: something else."""
    name = os.environ.get(VARIABLE, "")
    if name not in ("", "numba", "torch"):
        raise ConfigError(f"{VARIABLE} is {name!r}", hint="Use numba or torch, or leave it unset")
    return name


@cache
def loops() -> ModuleType | None:
    """`ddl.fused.loops`, or None where plain torch is to be used. Compiles at the first call.

    The answer never changes within a process, so that what it merges with them once, it always does.
    Raises: ConfigError: DDL_KERNEL asks for what is not there.
    """
    name = wanted()
    if name == "torch":
        return None
    try:
        from ddl.fused import loops as compiled
    except ImportError as error:
        if name == "numba":
            raise ConfigError(
                f"{VARIABLE} is numba, which cannot be imported: {error}",
                hint="Install numba, or leave it unset",
            ) from error
        return None
    return compiled


def prepare() -> None:
    """Begin to compile in a thread of its own; who needs the loops meanwhile waits for it.

    The thread is no daemon: a process must not end while the compiler is at work in it.
    """
    threading.Thread(target=_load, name="ddl-compile").start()


def _load() -> None:
    try:
        loops()
    except ConfigError:
        return  # whoever uses the loops first is told
