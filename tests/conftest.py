"""What all tests share, the servers among it: one of each kind serves a whole session."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.commands import ddl
from tests.redis_servers import own_redis, redis_server, redis_url
from tests.servers import moto_server, weed

__all__ = ["ddl", "moto_server", "own_redis", "redis_server", "redis_url", "weed"]

# Processes that tests start inherit it: on a small machine one thread each is fastest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no time limit for each: a busy machine is no failure.
settings.register_profile("ddl", deadline=None, derandomize=True)
settings.load_profile("ddl")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """DDL_... variables and cloud credentials of whoever runs the tests do not reach them."""
    for name in os.environ:
        if name.startswith(("DDL_", "AWS_")):
            monkeypatch.delenv(name)
