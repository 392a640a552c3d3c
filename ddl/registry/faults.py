"""What redis-py raises, as errors of ours: each state of a server with its own sentence and cure.

An error is known by its class or, where redis-py has no class for it, by the code in its text:
a server before 7.0 wraps the code of an error inside a script into a sentence of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from redis import exceptions as redis_errors

from ddl.errors import (
    RegistryError,
    RegistryForeignError,
    RegistryFullError,
    RegistryUnavailableError,
)

CAUGHT: Final = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,
    redis_errors.ChildDeadlockedError,
    UnicodeError,
    OSError,
)
"""Everything that a call into redis-py may raise by the fault of a server or of the network."""


class _Fault(NamedTuple):
    kind: type[RegistryError]
    text: str
    """With {where} for the server's address and {detail} for what redis-py said."""
    hint: str


_UNREACHABLE = _Fault(
    RegistryUnavailableError,
    "Redis at {where} cannot be reached: {detail}",
    "Check that it runs and that the address is right (DDL_REDIS may name another)",
)
_SILENT = _Fault(
    RegistryUnavailableError,
    "Redis at {where} did not answer in time: {detail}",
    "Check the network between here and there, and that the server is not stopped or overloaded",
)
_LOADING = _Fault(
    RegistryUnavailableError,
    "Redis at {where} is loading its data from disk",
    "It answers as soon as that is done",
)
_READ_ONLY = _Fault(
    RegistryUnavailableError,
    "Redis at {where} is a read-only replica",
    "A failover may be under way; otherwise give the address of the primary",
)
_CANNOT_SAVE = _Fault(
    RegistryUnavailableError,
    "Redis at {where} refuses writes because it cannot save to its disk",
    "Make room on the disk of the server, or see its log",
)
_BUSY = _Fault(
    RegistryUnavailableError,
    "Redis at {where} is busy with a long script or transaction",
    "It answers as soon as that has ended",
)
_CLUSTER_BUSY = _Fault(
    RegistryUnavailableError,
    "Redis at {where} is moving data or has no primary now: {detail}",
    "Wait for its cluster or replicas to recover",
)
_CLUSTER = _Fault(
    RegistryError,
    "Redis at {where} is a node of a cluster: {detail}",
    "Give the address of a single server; clusters are not supported yet",
)
_FULL = _Fault(
    RegistryFullError,
    "Redis is out of memory: {where} refuses writes",
    "Raise its maxmemory or remove what is not needed; the run goes on once there is room",
)
_CREDENTIALS = _Fault(
    RegistryError,
    "Redis at {where} refuses the user name or password: {detail}",
    "Give them in its address, redis://USER:PASSWORD@HOST (or in DDL_REDIS)",
)
_RIGHTS = _Fault(
    RegistryError,
    "Redis at {where} does not let this user do that: {detail}",
    "The user needs all commands on the keys ddl:*, scripts included",
)
_FOREIGN = _Fault(
    RegistryForeignError,
    "Redis at {where} holds something else in a key of ddl's: {detail}",
    "Find out who wrote it, then remove all keys of the run, ddl:{RUN}:*, or take a database of "
    "its own: the coordinator writes them anew from the log",
)
_REFUSED = _Fault(
    RegistryError,
    "Redis at {where} refused a command: {detail}",
    "ddl needs Redis 6.2 or newer, or Valkey",
)
_CLIENT = _Fault(RegistryError, "The Redis client failed while talking to {where}: {detail}", "")

_UNREADABLE: Final = re.compile(r"user_script: ?\d+: (Expected|attempt to) ")
"""What Lua says when a script of ours finds something that it did not write."""

_BY_CODE: Final = {
    "OOM": _FULL,
    "READONLY": _READ_ONLY,
    "MISCONF": _CANNOT_SAVE,
    "LOADING": _LOADING,
    "BUSY": _BUSY,
    "TRYAGAIN": _CLUSTER_BUSY,
    "CLUSTERDOWN": _CLUSTER_BUSY,
    "MASTERDOWN": _CLUSTER_BUSY,
    "NOREPLICAS": _CLUSTER_BUSY,
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "NOAUTH": _CREDENTIALS,
    "WRONGPASS": _CREDENTIALS,
    "NOPERM": _RIGHTS,
    "WRONGTYPE": _FOREIGN,
}

FAULTS: Final[dict[type[BaseException], _Fault]] = {
    redis_errors.AuthenticationError: _CREDENTIALS,
    redis_errors.AuthenticationWrongNumberOfArgsError: _CREDENTIALS,
    redis_errors.AuthorizationError: _RIGHTS,
    redis_errors.NoPermissionError: _RIGHTS,
    redis_errors.BusyLoadingError: _LOADING,
    redis_errors.ConnectionError: _UNREACHABLE,
    redis_errors.TimeoutError: _SILENT,
    redis_errors.OutOfMemoryError: _FULL,
    redis_errors.ReadOnlyError: _READ_ONLY,
    redis_errors.TryAgainError: _CLUSTER_BUSY,
    redis_errors.ClusterDownError: _CLUSTER_BUSY,
    redis_errors.ClusterError: _CLUSTER,
    redis_errors.AskError: _CLUSTER,
    redis_errors.ClusterCrossSlotError: _CLUSTER,
    redis_errors.RedisClusterException: _CLUSTER,
    redis_errors.ResponseError: _REFUSED,
    redis_errors.InvalidResponse: _CLIENT,
    redis_errors.DataError: _CLIENT,
    redis_errors.PubSubError: _CLIENT,
    redis_errors.WatchError: _CLIENT,
    redis_errors.LockError: _CLIENT,
    redis_errors.ChildDeadlockedError: _CLIENT,
    UnicodeError: _CLIENT,
    OSError: _UNREACHABLE,
}
"""By class; a class that is not here is its nearest base."""


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise our errors for all that redis-py raises inside."""
    try:
        yield
    except CAUGHT as error:
        raise translate(error, where) from error


def translate(error: BaseException, where: str) -> RegistryError:
    """Our error for what redis-py raised. `where` is the server's address without its password."""
    fault = _fault(error)
    detail = str(error).rstrip(".") or type(error).__name__
    return fault.kind(fault.text.format(where=where, detail=detail), hint=fault.hint)


def _fault(error: BaseException) -> _Fault:
    by_class = next((FAULTS[base] for base in type(error).__mro__ if base in FAULTS), _CLIENT)
    if by_class is not _REFUSED:
        return by_class
    text = str(error)
    if _UNREADABLE.search(text):
        return _FOREIGN
    code = re.match(r"([A-Z]+) ", text) or re.search(r": -([A-Z]+) ", text)
    return _BY_CODE.get(code[1], by_class) if code else by_class
