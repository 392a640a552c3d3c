"""Where tickets come from: a static share of them, or claims (`ddl.data.claims`)."""

from __future__ import annotations

from typing import Any, Protocol

from ddl.protocol.units import Grant


class Tickets(Protocol):
    """Hands out tickets without end; used by the training thread, and never waits."""

    def take(self) -> Grant:
        """The next ticket to read; it is held from now on."""
        ...

    def begin(self, ticket: int) -> None:
        """Rows of this ticket are about to be trained on."""
        ...

    def finish(self, ticket: int) -> None:
        """All rows of this ticket were trained on."""
        ...

    def is_lost(self, ticket: int) -> bool:
        """Whether another learner has this ticket now: then stop reading it."""
        ...

    def state(self) -> dict[str, Any]:
        """What a next life has to know, as JSON."""
        ...


class Shard:
    """Every n-th ticket from the k-th on: what `n` readers that never come or go share evenly.

    Attributes:
        next: the ticket to be taken next.
    """

    def __init__(self, k: int, n: int) -> None:
        self.next = k
        self._step = n

    def take(self) -> Grant:
        ticket, self.next = self.next, self.next + self._step
        return Grant(ticket, 0)

    def begin(self, ticket: int) -> None:
        """Nobody asks."""

    def finish(self, ticket: int) -> None:
        """Nobody counts."""

    def is_lost(self, ticket: int) -> bool:  # noqa: ARG002
        return False

    def state(self) -> dict[str, Any]:
        return {"next": self.next}
