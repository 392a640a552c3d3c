"""The right to coordinate: taken at the start, renewed by a thread of its own, checked before each
record. For how long a holder may count on it is `ddl.core.tenure`'s to say.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from ddl.clock import Clock
from ddl.core.tenure import Tenure
from ddl.errors import LeaseLostError, RegistryError, StoreError
from ddl.journal import Journal
from ddl.places import is_provably_gone
from ddl.protocol.records import Fact, Lease, LogRecord
from ddl.registry.base import CoordinatorRegistry, LeaseReply

_LOOK_S: Final = 0.5
"""How often a lease that is held by another is looked at."""


def new_holder() -> Lease:
    """A lease to ask for. Its holder has a name that no other has: a process may hold several."""
    host, pid = socket.gethostname(), os.getpid()
    return Lease(holder=f"{host}-{pid}-{secrets.token_hex(4)}", epoch=0, host=host, pid=pid)


def take(
    registry: CoordinatorRegistry,
    wanted: Lease,
    *,
    ttl_s: float,
    min_epoch: int,
    clock: Clock,
    journal: Journal,
) -> Lease:
    """Take the lease. If another holds it, wait until it runs out, or is seen to be renewed.

    A holder that died without a word is so replaced within one `ttl_s`, or at once if it ran on this
    machine; one that lives shows it within a third of its own.
    Raises: LeaseLostError naming the living holder; RegistryError.
    """
    first = reply = registry.take_lease(wanted, ttl_s=ttl_s, min_epoch=min_epoch)
    holder = first.lease
    if not first.held and holder is not None and is_provably_gone(holder.host, holder.pid):
        registry.release_lease(holder)
        first = reply = registry.take_lease(wanted, ttl_s=ttl_s, min_epoch=min_epoch)
    first_at = clock.monotonic()
    pause = threading.Event()  # never set: Ctrl-C ends the wait
    while not reply.held:
        unrenewed_s = first.left_s - (clock.monotonic() - first_at)
        if reply.lease != first.lease or reply.left_s > unrenewed_s + _LOOK_S:
            raise LeaseLostError(
                f"another coordinator holds the run: {_name(reply)}",
                hint="Leave the run to it; with --standby this one waits, and takes over when it is gone",
            )
        journal.on_change(
            "lease",
            "lease.awaited",
            f"held by {_name(first)}; unless renewed, it runs out in {first.left_s:.0f} s",
        )
        pause.wait(_LOOK_S)
        reply = registry.take_lease(wanted, ttl_s=ttl_s, min_epoch=min_epoch)
    journal.forget("lease")
    assert reply.lease is not None
    return reply.lease


def is_replaced(lease: Lease, record: LogRecord) -> bool:
    """Whether a record that the holder of `lease` has not written shows that another coordinates.

    One of a lower epoch is a predecessor's last: it is followed when the holder writes the next.
    """
    return record.holder != lease.holder and record.epoch >= lease.epoch


class LeaseKeeper:
    """Renews a lease until it is closed, or lost for good.

    Args:
        lease: as taken, a moment ago.
        probe: writes a few bytes to the store, for when nothing else is written. Raises: StoreError;
            whatever else it raises ends the keeper.
        on_lost: called once, from the keeper's thread, with a LeaseLostError when another holds the
            lease, or with whatever else has ended the keeper.
    """

    def __init__(
        self,
        registry: CoordinatorRegistry,
        lease: Lease,
        *,
        ttl_s: float,
        probe: Callable[[], None],
        on_lost: Callable[[Exception], None],
        clock: Clock,
        journal: Journal,
    ) -> None:
        self.lease = lease
        self._registry = registry
        self._tenure = Tenure(length_s=ttl_s, now=clock.monotonic())
        self._probe = probe
        self._on_lost = on_lost
        self._clock = clock
        self._journal = journal
        self._changed = threading.Condition()
        self._over = False
        self._is_closed = False
        self._doubt = ""
        self._is_silent = False
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def start(self) -> None:
        """Start to renew."""
        self._journal.tell("lease.taken", f"epoch {self.lease.epoch}, as {self.lease.holder}")
        self._show("lease.taken", f"{self.lease.holder} coordinates, epoch {self.lease.epoch}")
        self._thread.start()

    def close(self) -> None:
        """Stop renewing and let go of the lease, so that another can take it at once.

        Safe to call again.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = self._over = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(RegistryError):  # it runs out by itself
            self._registry.release_lease(self.lease)
            self._show("lease.released", f"{self.lease.holder} coordinates no more")

    def silence(self) -> None:
        """Show nothing more: the run was removed, and Redis is to stay free of it."""
        self._is_silent = True

    def set_length(self, ttl_s: float) -> None:
        """Use another length from the next renewal on."""
        self._tenure.length_s = ttl_s

    def store_wrote(self, *, since: float | None = None) -> None:
        """The store took a write just now; from any thread.

        Args:
            since: monotonic instant at which it was sent, if it was a small one: for how long such a
                write takes is shown with the lease.
        """
        now = self._clock.monotonic()
        self._tenure.stored(now)
        if since is not None:
            self.lease = msgspec.structs.replace(self.lease, store_s=round(now - since, 4))

    @property
    def is_sure(self) -> bool:
        """Whether a record may be written now."""
        return not self._over and self._tenure.is_sure(self._clock.monotonic())

    def wait_sure(self) -> bool:
        """Block until a record may be written; False once closed or lost."""
        with self._changed:
            while not self._over and not self.is_sure:
                self._changed.wait(self._tenure.length_s)
            return not self._over

    def _keep(self) -> None:
        try:
            while not self._is_over_within(self._tenure.renew_every_s):
                if self._store_answers():
                    self._renew()
        except Exception as error:  # noqa: BLE001 - a thread has nobody above it: handed over
            self._on_lost(error)

    def _is_over_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._over, seconds)

    def _renew(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            reply = self._registry.renew_lease(self.lease, ttl_s=self._tenure.length_s)
        except RegistryError as error:
            self._note_doubt(f"the lease cannot be renewed: {error}")
            return
        with self._changed:
            if reply.held:
                self._tenure.renewed(asked_at)
            else:
                self._over = True
            self._changed.notify_all()
        if not reply.held:
            self._on_lost(LeaseLostError(f"another coordinator took over: {_name(reply)}"))
            return
        if reply.was_foreign:
            self._journal.tell(
                "lease.restored", "something else stood in Redis in place of the lease"
            )
        if self._doubt:
            self._doubt = ""
            self._journal.tell("lease.renewed", f"epoch {self.lease.epoch} goes on")
            self._show("lease.renewed", f"{self.lease.holder} coordinates again")

    def _store_answers(self) -> bool:
        """Whether the store took a write lately; writes one itself if nobody else has."""
        sent_at = self._clock.monotonic()
        if not self._tenure.should_probe(sent_at):
            return True
        try:
            self._probe()
        except StoreError as error:
            if self._tenure.may_renew(self._clock.monotonic()):
                return True
            self._note_doubt(f"the lease is let go: {error}")
            return False
        self.store_wrote(since=sent_at)
        return True

    def _note_doubt(self, text: str) -> None:
        """Say, once, why the lease is not renewed."""
        if text != self._doubt:
            self._doubt = text
            self._journal.tell("lease.unsure", text)
            self._show("lease.unsure", f"{self.lease.holder}: {text}")

    def _show(self, name: str, text: str) -> None:
        """Put it where those look who wonder what has become of the coordinator."""
        if self._is_silent:
            return
        with contextlib.suppress(RegistryError):  # it stands in the log, too
            self._registry.tell([Fact(at=self._registry.now(), name=name, text=text)])


def _name(reply: LeaseReply) -> str:
    if reply.lease is None:
        return "unknown (its lease has run out)"
    lease = reply.lease
    age_s = max(0.0, reply.now - lease.taken_at)
    return (
        f"{lease.holder} on host {lease.host}, process {lease.pid}, epoch {lease.epoch}, "
        f"for {age_s:.0f} s"
    )
