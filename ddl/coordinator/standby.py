"""Waiting for the lease of a coordinator that works, to take over when it is gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from ddl.errors import RegistryError
from ddl.journal import Journal
from ddl.protocol.records import Lease
from ddl.registry.base import CoordinatorRegistry

LOOKS: Final = 10
"""Looks at the lease within one length of it: so much later than it runs out it may be taken."""


def stand_by(
    registry: CoordinatorRegistry,
    wanted: Lease,
    *,
    ttl_s: float,
    min_epoch: Callable[[], int],
    meanwhile: Callable[[], None],
    journal: Journal,
) -> Lease:
    """Wait until the lease is free, and take it. The run shows us as a standby meanwhile.

    Outages of Redis are sat out.

    Args:
        min_epoch: the highest epoch in the log, as far as it is known.
        meanwhile: called between two looks.
    Raises: RegistryError that no waiting mends; what `meanwhile` raises.
    """
    pause = threading.Event()  # never set: Ctrl-C ends the wait
    try:
        while True:
            try:
                reply = registry.take_lease(wanted, ttl_s=ttl_s, min_epoch=min_epoch())
                assert reply.lease is not None, "somebody holds it"
                if reply.held:
                    return reply.lease
                registry.stand_by(wanted.holder, ttl_s=ttl_s)
                text = f"standing by while {reply.lease.holder} works"
                journal.on_change("lease", "lease.awaited", text)
            except RegistryError as error:
                if not error.retryable:
                    raise
                journal.on_change("lease", "lease.awaited", f"standing by, though {error}")
            meanwhile()
            pause.wait(ttl_s / LOOKS)
    finally:
        journal.forget("lease")
        with contextlib.suppress(RegistryError):  # it runs out by itself
            registry.stand_by(wanted.holder, ttl_s=0.0)
