"""The Redis of a run: can it be reached and written, and will it keep what it is given?"""

from __future__ import annotations

import re
import statistics
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

from ddl.clock import Clock
from ddl.doctor.check import Check, fail, failed, ok, warn
from ddl.doctor.sizes import size
from ddl.errors import AddressError, RegistryError
from ddl.names import counted
from ddl.protocol.address import safe_url
from ddl.registry.probe import read_info, read_save_rules, read_time, try_writes
from ddl.registry.redis import RedisServer

VERSION_MIN: Final = (6, 2)
ROOM_WARN_BYTES: Final = 16 * 1024**2
ROOM_FAIL_BYTES: Final = 2 * 1024**2
"""A run of dozens of learners takes a few MiB."""

CONNECTIONS_MIN: Final = 16
"""The coordinator takes about five, each learner three."""

PINGS: Final = 5
LATENCY_WARN_S: Final = 0.2
"""A beat is one round trip, and there is one a second by default."""

OFFSET_WARN_S: Final = 5.0

_LOOPBACK: Final = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


def check_redis(url: str, clock: Clock) -> Generator[Check, None, bool]:
    """Every check of the Redis at `url`; returns whether it can be reached at all."""
    try:
        server = RedisServer(url)
    except AddressError as error:
        yield failed("redis.address", error)
        return False
    with closing(server):
        try:
            read_time(server)
        except RegistryError as error:
            yield failed("redis.reach", error)
            return False
        yield ok("redis.reach", f"{server.where} answers")
        yield link(url)
        yield _writes(server)
        yield from _said(server)
        yield from _timing(server, clock)
    return True


def link(url: str) -> Check:
    """Who could listen on the way to the server, and who could use it without asking."""
    name = "redis.link"
    parts = urlsplit(url)
    if parts.scheme == "unix" or _LOOPBACK.fullmatch(parts.hostname or ""):
        return ok(name, "stays on this machine")
    if parts.scheme == "rediss":
        return ok(name, "encrypted (TLS)")
    if not parts.password and "password=" not in parts.query:
        return warn(
            name,
            f"{safe_url(url)} takes neither TLS nor a password: who reaches it controls the run",
            "Set a password and use rediss://, or let only a private network reach it",
        )
    return warn(
        name,
        "the password and all messages travel unencrypted",
        "Use rediss://, unless the way there is a private network",
    )


def _writes(server: RedisServer) -> Check:
    name = "redis.writes"
    try:
        try_writes(server)
    except RegistryError as error:
        return failed(name, error)
    return ok(name, "scripts, hashes and streams can be written")


def _said(server: RedisServer) -> Iterator[Check]:
    """What the server says of itself."""
    try:
        info = read_info(server)
    except RegistryError as error:
        yield warn(
            "redis.info",
            f"its version, memory and persistence stay unknown: {error.args[0]}",
            "Give the user the command INFO: ACL SETUSER NAME +info",
        )
        return
    yield version(info)
    yield eviction(info)
    yield memory(info)
    yield clients(info)
    yield persistence(info, _save_rules(server))


def version(info: Mapping[str, Any]) -> Check:
    """Valkey calls itself Redis 7.2.4 for old clients, beside its own version."""
    name = "redis.version"
    if info.get("cluster_enabled") or info.get("redis_mode") == "cluster":
        return fail(
            name,
            "it is a node of a cluster",
            "Give the address of a single server; clusters are not supported yet",
        )
    if "valkey_version" in info:
        return ok(name, f"Valkey {info['valkey_version']}")
    said = str(info.get("redis_version", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", said)[:2])
    if numbers < VERSION_MIN:
        return fail(
            name, f"Redis {said or 'of an unknown version'}", "Use Redis 6.2 or newer, or Valkey"
        )
    return ok(name, f"Redis {said}")


def eviction(info: Mapping[str, Any]) -> Check:
    """A server that may drop keys on its own will drop those of a run."""
    name = "redis.eviction"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return ok(name, "maxmemory-policy noeviction: no key is dropped")
    cure = "CONFIG SET maxmemory-policy noeviction (and in its configuration file)"
    if info.get("maxmemory"):
        return fail(name, f"maxmemory-policy {policy} drops a run's keys when memory is full", cure)
    return warn(name, f"maxmemory-policy {policy} would drop keys, once maxmemory is set", cure)


def memory(info: Mapping[str, Any]) -> Check:
    name = "redis.memory"
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not limit:
        return ok(name, f"{size(used)} used, without a limit (maxmemory 0)")
    left = max(0, limit - used)
    text = f"{size(left)} left of maxmemory {size(limit)}"
    if left >= ROOM_WARN_BYTES:
        return ok(name, text)
    make = fail if left < ROOM_FAIL_BYTES else warn
    return make(name, text, "Raise maxmemory, or remove what is not needed")


def clients(info: Mapping[str, Any]) -> Check:
    """Small hosted servers allow few connections."""
    name = "redis.clients"
    now, limit = info.get("connected_clients", 0), info.get("maxclients", 0)
    if limit and limit - now < CONNECTIONS_MIN:
        return warn(
            name,
            f"{counted(limit - now, 'connection')} left of maxclients {limit}",
            "Raise maxclients: the coordinator takes about 5, each learner 3",
        )
    return ok(name, counted(now, "connection") + (f" of maxclients {limit}" if limit else ""))


def persistence(info: Mapping[str, Any], save_rules: str | None) -> Check:
    """`save_rules` None: the server does not tell.

    A run survives a server that forgets: it is rebuilt from the log, and learners announce again.
    """
    name = "redis.persistence"
    for field in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(field, "ok") != "ok":
            return fail(
                name,
                f"it cannot save to its disk ({field}: {info[field]}), and may refuse writes",
                "Make room on the disk of the server, or see its log",
            )
    if info.get("aof_enabled"):
        return ok(name, "append-only file")
    if save_rules:
        return ok(name, f"snapshots (save {save_rules})")
    seen = "appendonly is off and no snapshots are set" if save_rules == "" else "appendonly is off"
    return warn(
        name,
        f"{seen}: after a restart it is empty, and what it held is written anew from the run's log, "
        "which costs seconds, and no work",
        "It will do; to be spared that: CONFIG SET appendonly yes (and in its configuration file)",
    )


def _save_rules(server: RedisServer) -> str | None:
    try:
        return read_save_rules(server)
    except RegistryError:
        return None  # hosted servers refuse CONFIG; `persistence` says that it is not known


def _timing(server: RedisServer, clock: Clock) -> Iterator[Check]:
    trips, offsets = [], []
    try:
        for _ in range(PINGS):
            started, before = clock.monotonic(), clock.wall()
            now = read_time(server)
            trips.append(clock.monotonic() - started)
            offsets.append(before + trips[-1] / 2 - now)
    except RegistryError as error:
        yield failed("redis.latency", error)
        return
    yield latency(statistics.median(trips), max(trips))
    # the quickest answer leaves the least room for error
    yield clock_offset(offsets[trips.index(min(trips))])


def latency(median_s: float, worst_s: float) -> Check:
    name = "redis.latency"
    text = f"{median_s * 1e3:.1f} ms (at most {worst_s * 1e3:.1f} ms)"
    if median_s < LATENCY_WARN_S:
        return ok(name, text)
    return warn(name, text, "Take a Redis nearer to the learners, or raise liveness.beat_s")


def clock_offset(offset_s: float) -> Check:
    """Runs go by the server's clock alone; logs, certificates and S3 signatures do not."""
    name = "redis.clock"
    side = "ahead of" if offset_s > 0 else "behind"
    text = f"this machine's clock is {abs(offset_s):.1f} s {side} the server's"
    if abs(offset_s) < OFFSET_WARN_S:
        return ok(name, text)
    return warn(
        name,
        f"{text}: times in logs will not fit, and S3 refuses clocks that are 15 minutes off",
        "Set the clocks, for example with `timedatectl set-ntp true`",
    )
