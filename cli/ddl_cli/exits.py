"""Exit codes of `ddl`, for scripts and supervisors, and which error leads to which."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ddl.errors import (
    ConfigError,
    DdlError,
    IntegrityError,
    LeaseLostError,
    ObjectNotFoundError,
    ProtocolError,
    RefusedError,
    RegistryError,
    StoreError,
    TaskError,
)


class Exit(IntEnum):
    """What a process of `ddl` ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """A flag, setting, address or task that cannot work, or a run that is not there."""
    UNREACHABLE = 3
    """Redis or the store cannot be reached, or does not let us."""
    REFUSED = 4
    """Refused, fenced or kicked: another model, an id that is alive, a run in use. Started again as
    it is, it would be refused again."""
    LEASE_LOST = 5
    """Another coordinator holds the run."""
    INTEGRITY = 6
    """Stored bytes are missing, cannot be read, or are not what the log says."""
    START_AGAIN = 75
    """Drained or offline; nothing is wrong with it, start it again."""
    INTERRUPTED = 130
    """Ctrl-C."""


_BY_ERROR: Final[tuple[tuple[type[DdlError], Exit], ...]] = (
    (ConfigError, Exit.USAGE),
    (TaskError, Exit.USAGE),
    (ObjectNotFoundError, Exit.INTEGRITY),  # whoever lets it through expected the object
    (StoreError, Exit.UNREACHABLE),
    (RegistryError, Exit.UNREACHABLE),
    (RefusedError, Exit.REFUSED),
    (LeaseLostError, Exit.LEASE_LOST),
    (IntegrityError, Exit.INTEGRITY),
    (ProtocolError, Exit.INTEGRITY),
)


def exit_code(error: DdlError) -> Exit:
    """The exit code of an error that ends a command."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)
