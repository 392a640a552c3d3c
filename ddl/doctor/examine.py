"""All checks, in the order in which a run would meet what they look at."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ddl.clock import Clock, SystemClock
from ddl.config import StoreSettings
from ddl.doctor import machine
from ddl.doctor.accelerator import check_torch
from ddl.doctor.check import Check, failed, ok, warn
from ddl.doctor.control import check_redis
from ddl.doctor.store import check_store
from ddl.doctor.task import check_task
from ddl.errors import DdlError
from ddl.protocol.records import RunEntry
from ddl.registry.reader import RedisReader
from ddl.store.retry import RetryPolicy

BYTES_PER_PARAMETER = 4


@dataclass(frozen=True, kw_only=True, repr=False)
class Target:
    """What is looked at.

    Attributes:
        redis_url: may hold a password; None: no Redis is named.
        run: the run's name, None if none is meant.
        store_url: None: what Redis says of the run, if anything.
        store: endpoint and region of the store.
        environment: where credentials and OMP_NUM_THREADS are read.
        spool: where a learner of this machine keeps what it hands in.
        bandwidth_bytes: measure bandwidth with so much; 0 for not at all.
        patience_s: how long the store may fail before it counts as unreachable.
        clock: of this machine.
        torch: whether to look at torch, which takes a few seconds, and to run the task file, which imports it.
        task: the task file that this machine is to train; None if none is named.
    """

    redis_url: str | None
    store_url: str | None
    spool: Path
    environment: Mapping[str, str]
    run: str | None = None
    store: StoreSettings = field(default_factory=StoreSettings)
    bandwidth_bytes: int = 0
    patience_s: float = 8.0
    clock: Clock = field(default_factory=SystemClock)
    torch: bool = True
    task: Path | None = None


def examine(target: Target) -> Iterator[Check]:
    """Look at everything. Leaves nothing behind in Redis and the store."""
    entry = yield from _redis(target)
    store_url = target.store_url or (entry.store_url if entry else None)
    if store_url is None:
        yield warn(
            "store.open",
            "no object store is named: nothing of it was checked",
            "Give RUN, --store or DDL_STORE",
        )
    else:
        stored = target.store_url is None and entry is not None
        yield from check_store(
            store_url,
            entry.run.settings.store if stored and entry else target.store,
            environment=target.environment,
            policy=RetryPolicy(patience_s=target.patience_s, clock=target.clock),
            entry=entry,
            bandwidth_bytes=target.bandwidth_bytes,
        )
    num_parameters = entry.run.layout.num_parameters if entry else 0
    cores = machine.usable_cores()
    yield machine.spool(target.spool, model_bytes=num_parameters * BYTES_PER_PARAMETER)
    yield machine.threads(target.environment, cores=cores)
    if target.torch:
        yield from check_torch(cores=cores)
    if target.task is not None:
        yield check_task(target.task, entry.run if entry else None, runs=target.torch)


def _redis(target: Target) -> Generator[Check, None, RunEntry | None]:
    """Checks of Redis; returns what it knows of the run."""
    if target.redis_url is None:
        yield warn(
            "redis.reach",
            "no Redis is named: nothing of it was checked",
            "Give RUN, --redis or DDL_REDIS",
        )
        return None
    reached = yield from check_redis(target.redis_url, target.clock)
    if not reached or target.run is None:
        return None
    name = "redis.run"
    try:
        with closing(RedisReader(target.redis_url, target.run)) as registry:
            entry = registry.read_entry()
    except DdlError as error:
        yield failed(name, error)
        return None
    if entry is not None:
        yield ok(name, f"the run {target.run!r} is known, its store is {entry.store_url}")
    elif target.store_url is not None:
        yield ok(name, f"the run {target.run!r} has not been started")
    else:
        yield warn(
            name,
            f"the run {target.run!r} is not known, so its store cannot be checked",
            "Start its coordinator first: ddl coordinator start RUN.toml",
        )
    return entry
