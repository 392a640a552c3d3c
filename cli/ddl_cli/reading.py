"""Looking at a run: from Redis, over times in which it does not answer, or from the log alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ddl.core.facts import by_time
from ddl.core.snapshot import snapshot, snapshot_of_log
from ddl.errors import ConfigError, RegistryError, UnknownRunError
from ddl.protocol.address import safe_url
from ddl.protocol.records import Fact, RunSnapshot
from ddl_cli.exits import Exit
from ddl_cli.resolve import Place
from ddl_cli.units import short_time

if TYPE_CHECKING:
    from ddl.store.base import Store

EVENTS_READ: Final = 200
"""Newest events that one look brings: more than come between two looks."""

EVENTS_KEPT: Final = 4096
"""As many as Redis keeps."""

RECORDS_TOLD: Final = 24
"""Newest records of a log whose events are told, where only the store tells."""

CURVE_POINTS: Final = 24
"""Older records that are read for the curve of the loss."""

Read = Callable[[], RunSnapshot | None]


class Reader:
    """Reads snapshots by `read`; what it last saw is shown while Redis is away.

    Args:
        read: gives the snapshot of now, None when Redis does not know the run (any more).
        first: a snapshot to begin with.
    """

    def __init__(self, read: Read, first: RunSnapshot) -> None:
        self._read = read
        self._last = first
        self._away_since: float | None = None

    def next(self) -> tuple[RunSnapshot, str]:
        """The newest snapshot there is, and a notice if it is not of now."""
        try:
            snapshot, reason = self._read(), "Redis has lost the run"
        except RegistryError as error:
            snapshot, reason = None, str(error)
        if snapshot is not None:
            self._last, self._away_since = snapshot, None
            return snapshot, ""
        self._away_since = self._away_since or time.monotonic()
        away_s = time.monotonic() - self._away_since
        return self._last, f"{reason} (for {short_time(away_s)}; this is what was seen last)"


class Source:
    """Reads the run from Redis; finds nothing where no Redis is named but a store is."""

    def __init__(self, place: Place) -> None:
        """Raises: ConfigError if neither Redis nor a store is named."""
        only_store = place.redis_url is None and place.store_url is not None
        self._registry = None if only_store else place.reader()
        self._place = place

    def read(self) -> RunSnapshot | None:
        """The snapshot of now; None when Redis does not know the run. Raises: RegistryError."""
        if self._registry is None:
            return None
        found = snapshot(self._registry.view(num_facts=EVENTS_READ))
        return found and typeable(found, self._place)

    def backlog(self) -> tuple[Fact, ...]:
        """All events that Redis still has. Raises: RegistryError."""
        if self._registry is None:
            return ()
        return by_time(fact for _, fact in self._registry.facts(limit=EVENTS_KEPT))


def typeable(shown: RunSnapshot, place: Place) -> RunSnapshot:
    """The same, with cures whose commands name the run as it was found, not by its bare name."""
    bare = re.compile(rf"(`ddl [a-z ]+) {re.escape(place.run)}(?=[ `])")
    troubles = tuple(
        msgspec.structs.replace(t, cure=bare.sub(lambda m: f"{m[1]} {place.typed}", t.cure))
        for t in shown.troubles
    )
    return msgspec.structs.replace(shown, troubles=troubles)


def first_look(place: Place, read: Read) -> tuple[RunSnapshot, Exit]:
    """The run as Redis shows it, else as the store does.

    Raises: the RegistryError, if no store tells of the run either; UnknownRunError, AddressError,
    StoreError.
    """
    where = safe_url(place.redis_url) if place.redis_url else ""
    silent: RegistryError | None = None
    try:
        found = read()
    except RegistryError as error:
        found, silent = None, error
    if found is not None:
        return found, Exit.OK
    if place.store_url is None:
        raise silent or UnknownRunError(
            f"Redis at {where} does not know the run {place.run!r}",
            hint=f"`ddl runs --redis {where}` lists those it knows; with --store the log in the store "
            "can be read",
        )
    reason = str(silent) if silent else f"{where} does not know this run" if where else ""
    try:
        found = _from_store(place, reason)
    except ConfigError as nothing:  # no such run, or no such store
        if silent:
            raise silent from nothing
        if where:
            raise UnknownRunError(
                f"the run {place.run!r} is not started yet: Redis at {where} does not know it, and "
                f"{nothing.args[0]}",
                hint="`ddl coordinator start run.toml` starts it; if it was, look at the name and both "
                "addresses",
            ) from nothing
        raise
    return found, Exit.UNREACHABLE if silent else Exit.OK


def _from_store(place: Place, reason: str) -> RunSnapshot:
    """The run as the newest record in the store tells it. Raises: UnknownRunError, StoreError."""
    store = place.open_store()
    try:
        found = read_log(store, place.run, redis_error=reason)
        if found is None:
            raise UnknownRunError(
                f"there is no run {place.run!r} in {store.url}",
                hint=f"`ddl runs --store {store.url}` lists those that are there; --store and "
                "DDL_STORE name a store without a run",
            )
        return found
    finally:
        store.close()


def read_log(store: Store, run_name: str, *, redis_error: str) -> RunSnapshot | None:
    """The run as its log in the store tells it; None if there is no such run.

    Raises: IntegrityError, ProtocolError; RefusedError if it is being removed; StoreError.
    """
    from ddl.coordinator.history import History
    from ddl.core.facts import told_by

    history = History(store, run_name)
    run = history.run_record()
    if run is None:
        return None
    log = history.fold(run)
    first = max(1, log.seq - RECORDS_TOLD + 1)
    newest = [entry.record for entry in history.entries(range(first, log.seq + 1))]
    apart = max(1, first // CURVE_POINTS)
    older = (entry.record for entry in history.entries(range(1, first, apart)))
    return snapshot_of_log(
        run,
        log,
        facts=tuple(told_by(newest, newest[0].state if newest else log.state)),
        losses=tuple(
            (record.global_version, record.health.loss_mean)
            for record in (*older, *newest)
            if record.kind == "step" and record.health.loss_mean is not None
        ),
        redis_error=redis_error,
    )
