"""Exit codes of `ddl`, for scripts and supervisors, and which error leads to which."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

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
    """What a process of `ddl` ends with; `EXPLAINED` tells what each means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    LEASE_LOST = 5
    INTEGRITY = 6
    START_AGAIN = 75
    INTERRUPTED = 130


class Explained(NamedTuple):
    """What an exit code means, and what whoever gets it should do."""

    meaning: str
    todo: str


EXPLAINED: Final[dict[Exit, Explained]] = {
    Exit.OK: Explained("done", "nothing"),
    Exit.FAILED: Explained(
        "failed: what was asked for could not be done, or the user's own code raised",
        "read the message; `ddl --debug ...` shows where it came from",
    ),
    Exit.USAGE: Explained(
        "a flag, setting, address or task that cannot work, or a run that is not there",
        "mend what the message names; `ddl config show` tells where a setting comes from",
    ),
    Exit.UNREACHABLE: Explained(
        "Redis or the store cannot be reached, or does not let us",
        "start it again later, or let `ddl doctor` find out what is wrong",
    ),
    Exit.REFUSED: Explained(
        "refused, fenced or kicked: another model, an id that is alive, a run in use",
        "do not start it again as it is: it would be refused again",
    ),
    Exit.LEASE_LOST: Explained(
        "another coordinator holds the run",
        "leave the run to that one, or start this one with --standby",
    ),
    Exit.INTEGRITY: Explained(
        "stored bytes are missing, cannot be read, or are not what the log says",
        "look with `ddl verify`; restore the objects it names from a copy of the store",
    ),
    Exit.START_AGAIN: Explained(
        "drained or offline for too long; nothing is wrong with it",
        "start it again: it takes up what it had",
    ),
    Exit.INTERRUPTED: Explained("Ctrl-C", "nothing; a run goes on when it is started again"),
}


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
    return exit_of(type(error))


def exit_of(kind: type[DdlError]) -> Exit:
    """The exit code of this kind of error."""
    return next((code for known, code in _BY_ERROR if issubclass(kind, known)), Exit.FAILED)


def error_kinds(base: type[DdlError] = DdlError) -> Iterator[type[DdlError]]:
    """`base` and every kind of error below it, a kind before those below it."""
    yield base
    for kind in base.__subclasses__():
        yield from error_kinds(kind)
