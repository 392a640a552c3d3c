"""Every exception of redis-py becomes an error of ours with a sentence of its own."""

from __future__ import annotations

import inspect

import pytest
from redis import exceptions as redis_errors

from ddl.errors import (
    RegistryError,
    RegistryForeignError,
    RegistryFullError,
    RegistryUnavailableError,
)
from ddl.registry.faults import CAUGHT, FAULTS, translate

WHERE = "redis://box:6379/0"

RETRYABLE = {
    "BusyLoadingError",
    "ClusterDownError",
    "ConnectionError",
    "ExternalAuthProviderError",
    "MasterDownError",
    "MaxConnectionsError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "TimeoutError",
    "TryAgainError",
}
"""All others say that something must be changed before a call can succeed."""

NEVER_RAISED = {"RedisError", "IncorrectPolicyType"}
"""The base of all, and the complaint of a cluster client that ddl does not use."""


def exception_classes() -> list[type[BaseException]]:
    """Every class in redis.exceptions that can be raised."""
    members = vars(redis_errors).values()
    return [m for m in members if inspect.isclass(m) and issubclass(m, BaseException)]


@pytest.mark.parametrize("kind", exception_classes(), ids=lambda kind: kind.__name__)
def test_no_exception_of_the_client_is_unmapped(kind: type[BaseException]) -> None:
    """Each is caught, has a nearest class in the table, and is retryable exactly if listed."""
    if kind.__name__ in NEVER_RAISED:
        assert kind not in FAULTS
        return
    assert issubclass(kind, CAUGHT)
    assert any(base in FAULTS for base in kind.__mro__), f"{kind.__name__} is not in FAULTS"
    # some take the slot of a key, or a code, instead of a sentence
    error = translate(kind.__new__(kind, "1 box:1"), WHERE)
    assert isinstance(error, RegistryError)
    assert WHERE in str(error)
    assert error.retryable == (kind.__name__ in RETRYABLE)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("MISCONF Redis is configured to save RDB", RegistryUnavailableError, "cannot save"),
        ("NOREPLICAS Not enough good replicas", RegistryUnavailableError, "no primary now"),
        ("BUSY Redis is busy running a script", RegistryUnavailableError, "long script"),
        ("LOADING Redis is loading the dataset", RegistryUnavailableError, "loading its data"),
        ("READONLY You can't write against", RegistryUnavailableError, "read-only replica"),
        ("OOM command not allowed", RegistryFullError, "Redis is out of memory"),
        ("NOPERM this user has no permissions", RegistryError, "does not let this user"),
        ("ERR unknown command 'EVAL'", RegistryError, "refused a command"),
        ("WRONGTYPE Operation against a key", RegistryForeignError, "holds something else"),
        ("", RegistryError, "refused a command"),
    ],
)
def test_the_code_of_an_answer_tells_what_is_wrong(
    text: str, kind: type[RegistryError], words: str
) -> None:
    """Alone, and as servers before 7.0 wrap it when it happens inside a script."""
    wrapped = f"Error running script (call to f_0): @user_script:5: @user_script: 5: -{text} "
    for each in (text, wrapped):
        error = translate(redis_errors.ResponseError(each), WHERE)
        assert type(error) is kind
        assert words in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "user_script:87: Expected value but found invalid token at character 1 script: on @user_script:87.",
        "user_script:88: attempt to index local 'held' (a number value) script: on @user_script:88.",
        "Error running script (call to f_0): @user_script:30: user_script: 30: Expected colon but found",
    ],
)
def test_what_a_script_cannot_read_is_not_the_fault_of_the_server(text: str) -> None:
    """It may be removed at any time: learners train on, and people are told what to do."""
    error = translate(redis_errors.ResponseError(text), WHERE)
    assert type(error) is RegistryForeignError
    assert error.retryable
    assert "holds something else" in str(error)
    assert "ddl:{RUN}:*" in error.hint


def test_a_wrong_password_is_a_matter_of_the_address() -> None:
    """Not an outage: retrying would not help, and the cure is named."""
    error = translate(redis_errors.AuthenticationError("invalid password"), WHERE)
    assert type(error) is RegistryError
    assert "redis://USER:PASSWORD@HOST" in error.hint
