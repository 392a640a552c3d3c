"""What a Redis server says of itself, and whether it does what a run asks of it."""

from __future__ import annotations

import secrets
from typing import Any

from ddl.protocol.keys import RegistryKeys
from ddl.registry.redis import RedisServer


def try_writes(server: RedisServer) -> float:
    """Run a script that writes and removes what a run's scripts do; return the server's time.

    The keys are those of a run with a random name; nothing of them is left, whatever happens.
    Raises: RegistryError when the server is full, read-only, or does not let this user do that.
    """
    keys = RegistryKeys(f"probe-{secrets.token_hex(8)}")
    return float(server.run("probe", [keys.receipts, keys.news, keys.lease], '{"seq":1}'))


def read_time(server: RedisServer) -> float:
    """The server's clock, in seconds since the epoch. Raises: RegistryError."""
    seconds, microseconds = server.call("TIME")
    return float(seconds) + float(microseconds) / 1e6


def read_info(server: RedisServer) -> dict[str, Any]:
    """Fields of `INFO` as redis-py reads them: numbers where it can, else text.

    Raises: RegistryError, also where the user has no right to ask.
    """
    return dict(server.call("INFO"))


def read_save_rules(server: RedisServer) -> str:
    """The setting `save`, "" for no snapshots. Raises: RegistryError, as on most hosted servers."""
    reply = server.call("CONFIG", "GET", "save")
    # a list of names and values, or in the newer protocol a table
    rules = list(reply.values()) if isinstance(reply, dict) else list(reply[1:])
    return bytes(rules[0]).decode() if rules else ""
