"""Real Redis-compatible servers for tests; the fixtures are named in the conftest of a folder.

`DDL_TEST_REDIS` may name further server binaries, separated by the system's path separator.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from ddl.embedded import EmbeddedRedis, find_server


def server_binaries() -> list[Path]:
    """Every different server there is to test with: the one ddl would start, and those installed."""
    found = [find_server()]
    installed = (shutil.which(name) for name in ("redis-server", "valkey-server"))
    found += [Path(path) for path in installed if path]
    found += [Path(path) for path in os.environ.get("DDL_TEST_REDIS", "").split(os.pathsep) if path]
    return list(dict.fromkeys(path.resolve() for path in found))


@pytest.fixture(scope="session", params=server_binaries(), ids=lambda path: path.name)
def redis_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedRedis]:
    """A running server, shared by the session: tests leave it running and as it was."""
    folder = tmp_path_factory.mktemp("redis")
    with EmbeddedRedis(folder, persist=False, binary=request.param) as server:
        yield server


@pytest.fixture
def own_redis(redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A running server of the test's own, to stop, kill, fill and misuse; it keeps its data."""
    with EmbeddedRedis(tmp_path / "redis", binary=redis_server.binary) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The address of an empty server."""
    with admin(redis_server.url) as client:
        client.flushall()
    return redis_server.url


def admin(url: str) -> redis.Redis:
    """A plain client, to do to a server what ddl never does. A context manager."""
    return redis.Redis.from_url(url, socket_timeout=10, protocol=2)
