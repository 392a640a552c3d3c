"""Joining a run: from one address to a registered incarnation, in two steps.

`find_run` reads what there is to read, in Redis and in the store, and refuses whom it can. Only
`Session.enter`, when the model has been built, writes: whoever is refused before leaves nothing behind.

An incarnation is taken by creating its object in the store, so that two lives of one id can never
share a number, even with Redis empty; the registration in Redis then tells whether an older life
still beats.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ddl import __version__
from ddl.clock import Clock, ServerClock, SystemClock
from ddl.errors import (
    AddressError,
    ObjectNotFoundError,
    RefusedError,
    RegistryError,
    RegistryUnavailableError,
)
from ddl.journal import Journal, Troubles
from ddl.learner.arrival import await_going_on, await_run
from ddl.learner.spool import Spool
from ddl.limits import JOIN_WAIT_S
from ddl.names import check_learner_id
from ddl.places import is_provably_gone, spool_root
from ddl.protocol.address import parse_address, typed_address
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Fact, LearnerRecord, RunEntry, RunRecord
from ddl.protocol.wire import canonical, parse
from ddl.registry.base import Joined, LearnerRegistry
from ddl.registry.learner import RedisLearner
from ddl.store.base import Store
from ddl.store.open_url import open_url
from ddl.store.retry import Retried
from ddl.store.search import last_present

REBUILD_S: Final = 30.0
"""Longest wait of a learner that joins for a Redis that has just lost the run, or is being restarted."""

RETRY_S: Final = 0.25

UPLOADS: Final = "uploads"
DOWNLOADS: Final = "downloads"
CHECKS: Final = "version checks"
SPOOL: Final = "spool writes"
"""Subjects of `Session.troubles`: the store's, versions whose bytes are not what the log says, and a
local disk that does not take contributions."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """Where and as whom to join.

    Attributes:
        address: `redis://HOST:PORT/DB?run=NAME`, or a run's name beside `redis`.
        learner: this learner's id; by default made from the host's name and a random part.
        store: where this machine reaches the store, if not where the run says.
        takeover: replace a living process of the same id.
        up_mbit, down_mbit: caps on this process's transfers, in million bits per second.
        spool: folder for contributions on their way; by default `DDL_SPOOL` or the state folder.
        device: shown to people.
        wait_s: how long to wait for a run that Redis does not know (yet), or for a Redis that is away; for one
            that is over to be started again, 10 s at most.
        journal: where to say what happens; by default stderr.
    """

    address: str
    redis: str | None = None
    learner: str | None = None
    store: str | None = None
    takeover: bool = False
    up_mbit: float | None = None
    down_mbit: float | None = None
    spool: Path | None = None
    device: str = "cpu"
    wait_s: float = JOIN_WAIT_S
    journal: Journal | None = None


@dataclass(slots=True)
class Session:
    """An incarnation of a learner and its connections; nobody knows it before `enter`."""

    run: RunEntry
    address: str
    """The run as a person would type it into another command, in any shell."""
    learner: str
    incarnation: int
    registry: LearnerRegistry
    store: Store
    troubles: Troubles
    keys: ObjectKeys
    spool: Spool
    clock: Clock
    server: ServerClock
    journal: Journal
    record: LearnerRecord
    """The record as registered; beats fill in what changes."""
    takeover: bool
    entered: bool = False

    def enter(self) -> None:
        """Take the incarnation, and register it.

        Raises: RefusedError: another process has this id, since a moment ago or longer; StoreError,
            RegistryError.
        """
        body = canonical(
            {"host": socket.gethostname(), "pid": os.getpid(), "ddl_version": __version__}
        )
        if not self.store.put(self.keys.join(self.learner, self.incarnation), body, mode="create"):
            raise RefusedError(
                f"learner {self.learner!r} was started by another process at the same time",
                hint="Use another id, or start again",
            )
        self.check_id(enter=True)
        self.entered = True
        run = self.run.run
        self.journal.tell(
            "learner.joined",
            f"{self.learner} (incarnation {self.incarnation}) joins the run {run.name!r}, lineage "
            f"{run.lineage[:8]}, and waits for its weights",
            learner=self.learner,
            incarnation=self.incarnation,
        )

    def check_id(self, *, enter: bool = False) -> None:
        """See that no living process has this id; `enter` it in Redis then.

        Raises: RefusedError: one has it, or the run's name belongs to another run; RegistryError.
        """
        gone_s = self.run.settings.liveness.gone_s
        ask = partial(
            self._register, partial(self.registry.register, self.record, gone_s=gone_s, enter=enter)
        )
        joined = ask(takeover=self.takeover)
        holder = joined.holder
        if joined.refused and holder is not None and is_provably_gone(holder.host, holder.pid):
            joined = ask(takeover=True)
        if joined.refused and joined.holder is None:
            run = self.run.run
            raise RefusedError(
                f"{joined.refused}: this learner was about to join lineage {run.lineage}, which is "
                "gone from Redis",
                hint="Join again for the run that has the name now; to go on with the old one, start "
                "its coordinator on another Redis, or another database of this one",
            )
        if joined.refused:
            raise RefusedError(
                joined.refused,
                hint=f"Use another id (--id; in Python id=...), wait {gone_s:g} s after it has ended, or "
                "take its place (--takeover; in Python takeover=True)",
            )
        self.server.observe(joined.now)
        self.record = msgspec.structs.replace(self.record, started_at=joined.now)

    def _register(self, ask: Callable[..., Joined], *, takeover: bool) -> Joined:
        """Ask, and ask again while Redis is away or has lost the run: it knew it a moment ago, so its
        coordinator is about to write it anew.

        Raises: RegistryError after REBUILD_S.
        """
        deadline = self.clock.monotonic() + REBUILD_S
        while True:
            try:
                joined = ask(takeover=takeover)
                if not joined.refused or joined.holder is not None or self._is_replaced():
                    return joined
                problem: RegistryError = RegistryUnavailableError(
                    joined.refused, hint="Its coordinator writes it anew: see that one works"
                )
            except RegistryError as error:
                if not error.retryable:
                    raise
                problem = error
            if self.clock.monotonic() > deadline:
                raise problem
            self.journal.on_change("registry", "registry.lost", f"{problem}; trying again")
            time.sleep(RETRY_S)

    @property
    def way_back(self) -> str:
        """What lets this learner in again after it was kicked."""
        return f"`ddl learner allow {self.address} {self.learner}` lets it in again"

    def _is_replaced(self) -> bool:
        """Whether another run has this one's name in Redis."""
        entry = self.registry.read_entry()
        return entry is not None and entry.run.lineage != self.run.run.lineage

    def tell(self, name: str, text: str, **fields: object) -> None:
        """Say a fact on stderr and, if Redis answers, in the run's events."""
        self.journal.tell(name, text, **fields)
        with suppress(RegistryError):
            self.registry.tell([Fact(at=self.server.now(), name=name, text=text, fields=fields)])

    def close(self) -> None:
        """Free all connections, and what was made on disk for one that has not entered."""
        self.registry.close()
        self.store.close()
        self.spool.close()
        if not self.entered:
            self.spool.discard()


def find_run(options: JoinOptions, *, clock: Clock | None = None) -> Session:
    """Find the run, and see that this learner may join it; nothing is taken or written yet.

    Raises:
        AddressError, ConfigError: an address, id or spool folder that cannot be used.
        UnknownRunError: Redis does not know the run, even after `wait_s`.
        RegistryError: Redis cannot be reached, even after `wait_s`.
        StoreError: the store cannot be used from here.
        RunOverError: the run has come to its end, and is not started again within seconds.
        RefusedError: another living process has this id.
    """
    clock = clock or SystemClock()
    run, redis_url = _where(options)
    learner = check_learner_id(options.learner or _new_id())
    registry = RedisLearner(redis_url, run)
    journal = options.journal or Journal(sys.stderr)
    entry = await_run(registry, redis_url, run, wait_s=options.wait_s, journal=journal, clock=clock)
    troubles = Troubles(journal, clock)

    def on_retry(retried: Retried) -> None:
        if not retried.is_hiccup:
            subject = UPLOADS if retried.what.startswith("write") else DOWNLOADS
            troubles.begin(subject, str(retried))

    store = open_url(
        options.store or entry.store_url,
        settings=entry.run.settings.store,
        up_mbit=options.up_mbit,
        down_mbit=options.down_mbit,
        on_retry=on_retry,
        must_exist=True,
    )
    keys = ObjectKeys(run)
    _check_store(store, keys, entry)
    spool = Spool(
        options.spool or spool_root(), run=run, lineage=entry.run.lineage, learner=learner
    )
    incarnation = 1 + last_present(lambda n: store.head(keys.join(learner, n)) is not None)
    session = Session(
        run=entry,
        address=typed_address(redis_url, run),
        learner=learner,
        incarnation=incarnation,
        registry=registry,
        store=store,
        troubles=troubles,
        keys=keys,
        spool=spool,
        clock=clock,
        server=ServerClock(clock),
        journal=journal,
        record=LearnerRecord(
            id=learner,
            incarnation=incarnation,
            lineage=entry.run.lineage,
            host=socket.gethostname(),
            pid=os.getpid(),
            device=options.device,
            held=(-1,) * entry.run.layout.num_fragments,
        ),
        takeover=options.takeover,
    )
    try:
        await_going_on(registry, run, wait_s=options.wait_s, journal=journal, clock=clock)
        session.check_id()
    except BaseException:
        session.close()
        raise
    troubles.end(UPLOADS, DOWNLOADS)
    return session


def open_session(options: JoinOptions, *, clock: Clock | None = None) -> Session:
    """`find_run`, and enter at once. Raises: as both."""
    session = find_run(options, clock=clock)
    session.enter()
    return session


def _where(options: JoinOptions) -> tuple[str, str]:
    address = parse_address(options.address)
    redis_url = address.redis_url or options.redis or os.environ.get("DDL_REDIS")
    if address.run is None or redis_url is None:
        raise AddressError(
            f"{options.address!r} does not say where Redis is",
            hint="Join by redis://HOST:PORT/DB?run=NAME, or name it in DDL_REDIS (a command also: "
            "--redis)",
        )
    return address.run, redis_url


def _new_id() -> str:
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname())
    return f"{host.strip('-')[:48] or 'learner'}-{secrets.token_hex(2)}"


def _check_store(store: Store, keys: ObjectKeys, entry: RunEntry) -> None:
    """The store must hold this very run: two runs of one name in two places would mix."""
    try:
        found = store.get(keys.run_record)
    except ObjectNotFoundError:
        raise RefusedError(
            f"the store {store.url} has no run {entry.run.name!r}",
            hint="Give the store as this machine reaches it: --store URL",
        ) from None
    if parse(bytes(found), RunRecord, what=keys.run_record).lineage != entry.run.lineage:
        raise RefusedError(
            f"the store {store.url} has another run {entry.run.name!r} than Redis (lineage "
            f"{entry.run.lineage})",
            hint="Give the run's own store with --store URL",
        )
