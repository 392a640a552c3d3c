"""Fixtures of the integration tests."""

from __future__ import annotations

from tests.redis_servers import own_redis, redis_server, redis_url

__all__ = ["own_redis", "redis_server", "redis_url"]
