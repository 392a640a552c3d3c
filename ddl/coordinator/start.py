"""From a `run.toml` to a running coordinator: create the run or take it up again, then serve it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddl import __version__
from ddl.clock import Clock, ServerClock, SystemClock
from ddl.config import Loaded
from ddl.coordinator import genesis, resume
from ddl.coordinator.history import History
from ddl.coordinator.lease import LeaseKeeper, is_replaced, new_holder, take
from ddl.coordinator.objects import check_objects
from ddl.coordinator.service import STORE, Message, Outcome, Service
from ddl.coordinator.standby import stand_by
from ddl.core.log import LogState
from ddl.core.machine import Machine
from ddl.errors import (
    ConfigError,
    LeaseLostError,
    ProtocolError,
    RegistryForeignError,
    StoreError,
)
from ddl.journal import Journal, Troubles
from ddl.merge.choice import prepare
from ddl.names import counted
from ddl.protocol.address import join_address, safe_url
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Lease, RunEntry, RunRecord
from ddl.registry.base import CoordinatorRegistry
from ddl.registry.coordinator import RedisCoordinator
from ddl.store.base import Store
from ddl.store.open_url import open_url
from ddl.store.probe import probe_create_once
from ddl.store.retry import HICCUP_S, Retried
from ddl.task import task_digest


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What to coordinate, and how from this machine.

    Attributes:
        loaded: the settings, and where each of them came from.
        task_file: the task, resolved against the folder of `run.toml`.
        init: start weights for a run that is created; see `ddl.coordinator.initial`.
        standby: wait for the lease while another coordinator works, instead of being refused.
        up_mbit, down_mbit: caps on this process' traffic with the store.
    """

    loaded: Loaded
    task_file: Path
    init: Path | None = None
    standby: bool = False
    up_mbit: float | None = None
    down_mbit: float | None = None


def run_coordinator(
    options: StartOptions,
    *,
    journal: Journal,
    on_ready: Callable[[Service], None] = lambda _: None,
    clock: Clock | None = None,
) -> Outcome:
    """Open Redis and the store, and coordinate until the run is over or somebody ends it.

    Args:
        on_ready: given the service before it runs; its `end` asks it to end.
    Raises: DdlError: all that makes a start impossible, and the loss of the lease.
    """
    settings = options.loaded.settings
    clock = clock or SystemClock()
    troubles = Troubles(journal, clock)

    def on_retry(retried: Retried) -> None:
        if not retried.is_hiccup:
            troubles.begin(STORE, str(retried))

    with ExitStack() as stack:
        registry = RedisCoordinator(settings.redis.url, settings.run.name)
        stack.callback(registry.close)
        store = open_url(
            settings.store.url,
            settings=settings.store,
            up_mbit=options.up_mbit,
            down_mbit=options.down_mbit,
            on_retry=on_retry,
        )
        stack.callback(store.close)
        coordinator = Coordinator(
            options,
            registry=registry,
            store=store,
            journal=journal,
            troubles=troubles,
            clock=clock,
        )
        return coordinator.run(on_ready)


class Coordinator:
    """`run_coordinator` on a registry and a store that are open already."""

    def __init__(
        self,
        options: StartOptions,
        *,
        registry: CoordinatorRegistry,
        store: Store,
        journal: Journal,
        troubles: Troubles,
        clock: Clock,
    ) -> None:
        self._options = options
        self._settings = options.loaded.settings
        self._registry = registry
        self._store = store
        self._journal = journal
        self._troubles = troubles
        self._clock = clock
        self._server_clock = ServerClock(clock)
        self._history = History(store, self._settings.run.name)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._run: RunRecord | None = None
        self._log: LogState | None = None

    def run(self, on_ready: Callable[[Service], None] = lambda _: None) -> Outcome:
        """See `run_coordinator`."""
        drafted = self._check()
        seq_before = self._log.seq if self._log else 0
        with self._lease() as keeper:
            self._server_clock.observe(self._registry.now())
            self._catch_up()
            if self._log is None:
                self._create(drafted or self._draft())
                self._catch_up()
            del drafted
            run, log = self._run, self._log
            assert run is not None, "what was there a moment ago is never deleted"
            assert log is not None
            if log.epoch >= keeper.lease.epoch:  # its lease is in another Redis, or lost with one
                raise LeaseLostError(
                    f"a coordinator with epoch {log.epoch} has just written record {log.seq}; "
                    f"ours is {keeper.lease.epoch}",
                    hint="See that all coordinators use one Redis, then start again",
                )
            is_over = log.state == "stopped" and log.seq > seq_before  # it was stopped for us, too
            check_objects(self._store, log)
            self._troubles.end(STORE)
            self._journal.tell(
                "run.entered",
                f"{run.name}, lineage {run.lineage[:8]}, version {log.global_version}, "
                f"{run.layout.num_parameters:,} parameters in "
                f"{counted(run.layout.num_fragments, 'fragment')}; learners join by "
                f"{join_address(safe_url(self._settings.redis.url), run.name)}",
            )
            if orders := resume.standing_orders(log, self._options.loaded):
                self._journal.tell("settings.kept", orders)
            service = Service(
                run=run,
                machine=Machine(
                    run=run.name,
                    log=log,
                    epoch=keeper.lease.epoch,
                    holder=keeper.lease.holder,
                    ddl_version=__version__,
                    take_up=not is_over,
                ),
                store=self._store,
                registry=self._registry,
                keeper=keeper,
                inbox=self._inbox,
                journal=self._journal,
                troubles=self._troubles,
                clock=self._clock,
                server_clock=self._server_clock,
                changes={} if is_over else resume.live_changes(log, self._options.loaded),
                outdone=self._options.loaded.outdone,
                find=self._entry() is None,
            )
            on_ready(service)
            return service.run()

    def _check(self) -> genesis.Draft | None:
        """All that can be refused is refused here, while nothing is taken or written: first what
        this machine's files say, then what Redis and the store do.

        Returns: the run to be created; None if there is one.
        """
        task_digest(self._options.task_file)  # it can be read
        self._server_clock.observe(self._registry.now())
        with self._first_contact():
            self._catch_up()
        resume.check_entry(self._entry(), self._run, self._store.url)
        if self._run is not None and self._options.init is not None:
            raise ConfigError(
                f"run {self._run.name!r} exists: --init is for creating one",
                hint="Leave --init out to go on with the run, or use another run.name",
            )
        if self._run is None:
            drafted = self._draft()
            layout = drafted.layout
        else:
            drafted, layout = None, self._run.layout
        if not probe_create_once(self._store):
            raise StoreError(
                f"{self._store.url} does not create objects once: the log cannot be kept in it",
                hint="Use a store that honours If-None-Match, or a directory",
            )
        prepare(layout.sizes)  # while there is nothing to merge yet
        return drafted

    def _entry(self) -> RunEntry | None:
        """The run as Redis knows it. What cannot be read is no obstacle to a run that the store has:
        the service writes it anew from the log. Without one it may be another run's.

        Raises: ProtocolError, RegistryForeignError.
        """
        try:
            return self._registry.read_entry()
        except (ProtocolError, RegistryForeignError) as error:
            if self._run is None:
                raise
            text = f"{error}; it is written anew from the log"
            self._journal.on_change("entry", "redis.unreadable", text)
            return None

    def _draft(self) -> genesis.Draft:
        return genesis.draft(
            self._settings, task_file=self._options.task_file, init=self._options.init
        )

    def _catch_up(self) -> None:
        """Find the run, if there is one and it is ours to coordinate, and read on in its log."""
        if self._log is not None:
            self._history.follow(self._log)
            return
        run = self._history.run_record()
        if run is not None:
            resume.check_run(run, self._options.loaded, self._options.task_file, self._journal)
            self._run, self._log = run, self._history.fold(run)

    @contextmanager
    def _first_contact(self) -> Iterator[None]:
        """Say what is waited for if the store takes long, and nothing has been said of it."""

        def tell() -> None:
            if not self._troubles.seconds(STORE):
                at = self._settings.store.endpoint_url
                where = f"{self._store.url} at {at}" if at else self._store.url
                self._journal.tell("store.awaited", f"no answer yet from {where}; still waiting")

        timer = threading.Timer(HICCUP_S, tell)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _catch_up_if_stored(self) -> None:
        try:
            self._catch_up()
        except StoreError as error:
            self._troubles.begin(STORE, str(error))
        else:
            self._troubles.end(STORE)

    @contextmanager
    def _lease(self) -> Iterator[LeaseKeeper]:
        """The lease, held and renewed for the length of a `with`."""
        ttl_s = self._settings.liveness.lease_s
        if self._options.standby:
            lease = stand_by(
                self._registry,
                new_holder(),
                ttl_s=ttl_s,
                min_epoch=self._known_epoch,
                meanwhile=self._catch_up_if_stored,
                journal=self._journal,
            )
        else:
            lease = take(
                self._registry,
                new_holder(),
                ttl_s=ttl_s,
                min_epoch=self._known_epoch(),
                clock=self._clock,
                journal=self._journal,
            )
        keeper = LeaseKeeper(
            self._registry,
            lease,
            ttl_s=ttl_s,
            probe=partial(self._probe_store, lease),
            on_lost=self._inbox.put,
            clock=self._clock,
            journal=self._journal,
        )
        keeper.start()
        try:
            yield keeper
        finally:
            keeper.close()
            if self._run is None:  # it could not be created: nothing is left of the attempt
                with suppress(StoreError):
                    self._store.delete([ObjectKeys(self._settings.run.name).lease_probe])

    def _known_epoch(self) -> int:
        return self._log.epoch if self._log is not None else 0

    def _probe_store(self, lease: Lease) -> None:
        """See that the store takes writes; and, since nothing has been written for a while, that
        nobody else writes the log: a lease in another Redis is not seen in ours.

        Raises: StoreError; LeaseLostError.
        """
        keys = ObjectKeys(self._settings.run.name)
        self._store.put(
            keys.lease_probe, b"the coordinator writes this when it has nothing else to write"
        )
        there = self._history.read(self._log.seq + 1) if self._log is not None else None
        if there is not None and is_replaced(lease, there.record):
            raise LeaseLostError(
                f"{there.record.holder} has written record {there.record.seq} with epoch "
                f"{there.record.epoch}; ours is {lease.epoch}",
                hint="See that all coordinators use one Redis",
            )

    def _create(self, drafted: genesis.Draft) -> None:
        now = self._server_clock.now()
        outdone = self._options.loaded.outdone
        run = genesis.create(self._store, self._settings, drafted, now=now, outdone=outdone)
        if run is not None:  # else a coordinator on another Redis was faster: its run is the run
            self._journal.tell("run.created", f"{run.name} in {self._store.url}")
