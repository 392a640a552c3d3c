"""The object store of a run: every call that a run makes, made once on objects of our own."""

from __future__ import annotations

import os
import secrets
import statistics
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from ddl.clock import Clock
from ddl.config import StoreSettings
from ddl.doctor.check import Check, fail, failed, ok, warn
from ddl.doctor.machine import room
from ddl.doctor.sizes import MIB, size
from ddl.errors import DdlError, ObjectNotFoundError, StoreError
from ddl.protocol import keys
from ddl.protocol.records import RunEntry
from ddl.protocol.wire import canonical
from ddl.store.base import Store
from ddl.store.open_url import open_url
from ddl.store.probe import probe_create_once
from ddl.store.retry import RetryPolicy

PART_BYTES: Final = 5 * MIB
"""The smallest parts that S3 takes, so that the probe of parts stays small."""

LOOKS: Final = 5
LATENCY_WARN_S: Final = 1.0


def check_store(
    url: str,
    settings: StoreSettings,
    *,
    environment: Mapping[str, str],
    policy: RetryPolicy,
    entry: RunEntry | None = None,
    bandwidth_bytes: int = 0,
) -> Iterator[Check]:
    """Every check of the store at `url`; after one that rules out the others, none follows.

    Args:
        environment: where credentials are read.
        policy: how long to try, and by which clock.
        entry: the run as Redis knows it, to be looked for in the store.
        bandwidth_bytes: move so much up and down to measure how fast that goes; 0 for not at all.
    """
    probing = msgspec.structs.replace(settings, part_bytes=PART_BYTES)
    try:
        store = open_url(url, settings=probing, environment=environment, policy=policy)
    except DdlError as error:
        yield failed("store.open", error)
        return
    token = secrets.token_hex(8)
    with closing(store):
        access = _access(store, keys.probe(f"{token}-access"))
        yield access
        if access.status == "fail":
            return
        yield _create_once(store)
        try:
            yield from _with_objects(store, token, probing, environment, policy)
            if entry is not None:
                yield _run(store, entry)
            yield latency(_look_up_times(store, policy.clock))
            if bandwidth_bytes:
                yield _bandwidth(store, bandwidth_bytes, policy.clock)
        except StoreError as error:
            yield failed("store.trouble", error)
    if url.startswith("file://"):
        yield room("store.room", Path(unquote(urlsplit(url).path)))


def _access(store: Store, key: str) -> Check:
    """Put, get, list and delete one object, naming the step that failed."""
    name = "store.access"
    step = "put"
    try:
        store.put(key, b"probe")
        step = "get"
        if store.get(key) != b"probe":
            return fail(name, "get: other bytes came back than were put", "Use another store")
        step = "list"
        if [found.key for found in store.list(key)] != [key]:
            return fail(name, "list: it does not show what was put", "Use another store")
        step = "delete"
        store.delete([key])
        if store.head(key) is not None:
            return fail(name, "delete: the object is still there", "Use another store")
    except StoreError as error:
        return failed(name, error, step=step)
    return ok(name, f"put, get, list and delete work in {store.url}")


def _create_once(store: Store) -> Check:
    name = "store.create-once"
    try:
        if probe_create_once(store):
            return ok(name, "of two writers of one object, one is turned away")
    except StoreError as error:
        return failed(name, error)
    return fail(
        name,
        "two writers of one object are both told that they succeeded: it ignores If-None-Match",
        "Use a store with conditional writes (AWS S3, R2, recent MinIO, SeaweedFS, Ceph), or file://",
    )


def _with_objects(
    store: Store,
    token: str,
    settings: StoreSettings,
    environment: Mapping[str, str],
    policy: RetryPolicy,
) -> Iterator[Check]:
    """What needs objects that stay for a while. Raises: StoreError."""
    small, large, scratch = (keys.probe(f"{token}-{name}") for name in ("a", "b", "c"))
    try:
        store.put(small, b"small")
        check = _large(store, large)
        yield check
        if not store.url.startswith("s3://") or check.status == "fail":
            return
        from ddl.doctor.bucket import check_bucket  # boto3: only who has a bucket pays for it
        from ddl.store.s3_probe import S3Probe

        probe = S3Probe(store.url, settings, environment=environment, policy=policy)
        with closing(probe):
            yield from check_bucket(
                probe, [small, large], prefix=keys.probe(f"{token}-"), scratch=scratch
            )
    finally:
        with suppress(StoreError):  # whatever made it fail has been told already
            store.delete([small, large, scratch])


def _large(store: Store, key: str) -> Check:
    """An object that is too large for one request to a bucket is whole, and created once too."""
    name = "store.large"
    body = secrets.token_bytes(PART_BYTES + 1)
    try:
        first = store.put(key, body, mode="create")
        second = store.put(key, body[::-1], mode="create")
        same = store.get(key) == body
        part = store.get_range(key, PART_BYTES - 1, 5) == body[-2:]
    except StoreError as error:
        return failed(name, error)
    if not first or second:
        return fail(
            name,
            "a large object is written over: it ignores If-None-Match when the parts are put together",
            "Use another store",
        )
    if not (same and part):
        return fail(name, f"of {size(len(body))}, other bytes came back", "Use another store")
    return ok(name, f"{size(len(body))} come back as they were sent, and are created once")


def _run(store: Store, entry: RunEntry) -> Check:
    """Redis and the store must speak of the same run."""
    name = "store.run"
    cure = "Give the run's own store as this machine reaches it: --store URL"
    try:
        found = store.get(keys.ObjectKeys(entry.run.name).run_record)
    except ObjectNotFoundError:
        return fail(name, f"it does not hold the run {entry.run.name!r} that Redis knows", cure)
    if bytes(found) != canonical(entry.run):
        return fail(name, f"it holds another run {entry.run.name!r} than Redis knows", cure)
    return ok(name, f"it holds the run {entry.run.name!r}")


def _look_up_times(store: Store, clock: Clock) -> Generator[float]:
    for _ in range(LOOKS):
        started = clock.monotonic()
        store.head(keys.probe("nothing"))
        yield clock.monotonic() - started


def latency(times_s: Iterator[float]) -> Check:
    """`times_s`: how long single small requests took. Raises: StoreError from its iteration."""
    name = "store.latency"
    taken = list(times_s)
    usual_s = statistics.median(taken)
    text = f"{usual_s * 1e3:.3g} ms a request (at most {max(taken) * 1e3:.3g} ms)"
    if usual_s < LATENCY_WARN_S:
        return ok(name, text)
    return warn(name, text, "Take a store nearer to the machines, or rounds will wait for records")


def _bandwidth(store: Store, num_bytes: int, clock: Clock) -> Check:
    """Raises: StoreError."""
    name = "store.bandwidth"
    key = keys.probe(secrets.token_hex(8))
    body = os.urandom(num_bytes)
    try:
        started = clock.monotonic()
        store.put(key, body)
        sent = clock.monotonic()
        got = store.get(key)
        received = clock.monotonic()
    finally:
        store.delete([key])
    if got != body:
        return fail(name, f"of {size(num_bytes)}, other bytes came back", "Use another store")
    up, down = num_bytes / (sent - started), num_bytes / (received - sent)
    return ok(name, f"{size(up)}/s up, {size(down)}/s down ({size(num_bytes)} each way)")
