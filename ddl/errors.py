"""Every error that `ddl` raises on purpose, by whose fault it is.

    DdlError
    ├── ConfigError            a setting, flag or environment variable that cannot work
    ├── AddressError           a run, Redis or store address that cannot be read
    ├── UnknownRunError        no run of this name where it was looked for
    ├── TaskError              the user's task file is missing, raises, or builds something unusable
    ├── TrainingError          the user's code raised while it trained
    ├── ProtocolError          a record or payload that this version cannot read
    ├── RefusedError           this process is not let in: other lineage or model, id alive, fenced, kicked
    │   └── RunOverError       it has come to its end: there is nothing left to take part in
    ├── LeaseLostError         another coordinator holds the run now
    ├── IntegrityError         stored bytes differ from what a record says of them
    │   └── MissingObjectError what a record names is not there
    ├── StoreError             the object store said no
    │   ├── ObjectNotFoundError
    │   ├── StoreDeniedError   credentials or rights
    │   │   └── CredentialsExpiredError  (retryable: renewed ones are read)
    │   ├── StoreFullError     no space left, or a quota
    │   └── StoreUnavailableError   (retryable)
    └── RegistryError          Redis said no
        ├── RegistryFullError  out of memory: writes are refused (retryable)
        └── RegistryUnavailableError  (retryable)

A message names the thing, the value and what it means; `hint` says what to do. Expected outcomes
(a lost create-once race, a late contribution) are return values, never errors.
"""

from __future__ import annotations

import re
from typing import ClassVar


class DdlError(Exception):
    """What was asked for could not be done; the base of all errors raised on purpose.

    Attributes:
        hint: what the user can do about it, one sentence; empty if there is nothing to do.
        code: what it is called where it is told, such as "store-denied" for StoreDeniedError;
            `ddl exits CODE` explains it by the first sentence of its docstring.
        retryable: whether the very same call may succeed later.
    """

    code: ClassVar[str] = "failed"
    retryable = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = re.sub("(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}. {self.hint}" if self.hint else message


def told(error: BaseException) -> str:
    """An error in a sentence for people: ours says all by itself, of any other the class says most."""
    return str(error) if isinstance(error, DdlError) else f"{type(error).__name__}: {error}"


class ConfigError(DdlError):
    """A setting, flag or environment variable that cannot work."""


class AddressError(ConfigError):
    """An address of a run, a Redis or a store that cannot be read."""


class UnknownRunError(ConfigError):
    """There is no run of this name in the Redis or the store where it was looked for."""


class TaskError(DdlError):
    """The user's task is missing, raises, or builds something that cannot be trained."""


class TrainingError(DdlError):
    """The user's code raised while it trained."""


class ProtocolError(DdlError):
    """A record or payload that this version of `ddl` cannot read."""


class RefusedError(DdlError):
    """This process is not let in (other lineage, other model, id alive, fenced or kicked)."""


class RunOverError(RefusedError):
    """The run has come to its end: there is nothing left to take part in."""

    GO_ON: ClassVar[str] = (
        "To go on with it, start its coordinator, with a larger [stop] if that was why; for a new run "
        "give another run.name, or delete this one with `ddl rm`"
    )

    def __init__(self, message: str, *, hint: str = GO_ON) -> None:
        super().__init__(message, hint=hint)


class LeaseLostError(DdlError):
    """Another coordinator holds the run; this one must write nothing more."""


class IntegrityError(DdlError):
    """Stored bytes are not what a record says of them."""


class MissingObjectError(IntegrityError):
    """An object that a record names is not there: lost, or let go by `[keep]`."""


class StoreError(DdlError):
    """The object store refused or failed a request."""


class ObjectNotFoundError(StoreError):
    """There is no object under this key."""


class StoreDeniedError(StoreError):
    """The store answers but does not let us: credentials, rights, or a missing bucket."""


class CredentialsExpiredError(StoreDeniedError):
    """The credentials were good once; the same call succeeds when they have been renewed."""

    retryable = True


class StoreFullError(StoreError):
    """The store has no room left."""

    retryable = True


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or keeps asking us to slow down."""

    retryable = True


class RegistryError(DdlError):
    """Redis refused or failed a request."""


class RegistryFullError(RegistryError):
    """Redis is out of memory and refuses writes."""

    retryable = True


class RegistryUnavailableError(RegistryError):
    """Redis cannot be reached, is loading, or is a read-only replica."""

    retryable = True


class RegistryForeignError(RegistryUnavailableError):
    """A key of ddl's in Redis holds what ddl did not write. The coordinator writes its own anew."""
