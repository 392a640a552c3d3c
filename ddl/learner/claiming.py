"""The claiming thread: keeps units of data claimed ahead of the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from ddl.data.claims import Claims
from ddl.errors import DdlError, RegistryError
from ddl.learner.session import Session
from ddl.learner.shared import Shared
from ddl.protocol.units import Repeat

LEAST_GAP_S: Final = 0.05
"""Shortest time between two calls, however short the units are."""

BEATS: Final = 2.0
"""Beats between two calls when nothing has changed: one hears of what is in the log, and claims again
what a Redis that was lost does not know."""

FIRST_ANSWER_S: Final = 5.0
"""How long a learner that joins waits for its first claims before it reads without."""


NEVER_S: Final = 1e9
"""Longer than any run: nobody is taken for gone."""


@runtime_checkable
class Claiming(Protocol):
    """Batches that a learner can claim units for, such as `ddl.data.Units`."""

    def bind(self, *, learner: str, incarnation: int, share: Callable[[], float]) -> Claims | None:
        """Read what is claimed through these claims from now on; None: it claims nothing.

        `share`: the learner's part of a global batch, now.
        """
        ...

    def places(self) -> dict[int, int]:
        """Rows read of each ticket that is begun."""
        ...

    def unit_of(self, ticket: int) -> tuple[int, int]:
        """(epoch, unit) of a ticket."""
        ...


class ClaimThread(threading.Thread):
    """Takes the claims' calls to Redis and back, until told to leave."""

    def __init__(self, session: Session, shared: Shared, batches: Claiming, claims: Claims) -> None:
        super().__init__(name="ddl-claim", daemon=True)
        self._session = session
        self._shared = shared
        self._batches = batches
        self._claims = claims
        self._ending = threading.Event()
        self._judges_from = float("-inf")

    def wait_ready(self) -> None:
        """Wait for the first answer, `FIRST_ANSWER_S` at most: a learner that joins may."""
        self._claims.wait_answered(FIRST_ANSWER_S)

    def finish(self, *, handed_in: bool) -> None:
        """End after one last call. Called by the training thread, once it reads no more.

        `handed_in`: what was learned from the rows read is on its way, so nobody need read them
        again.
        """
        self._claims.leave(self._batches.places() if handed_in else {})
        self._ending.set()

    def run(self) -> None:
        shared, claims = self._shared, self._claims
        try:
            while True:
                answered = self._exchange()
                if self._ending.is_set() and (not answered or claims.all_told):
                    return
                beat_s = shared.machine.settings.liveness.beat_s
                self._ending.wait(LEAST_GAP_S if answered else beat_s)
                claims.wait(BEATS * beat_s)
        except DdlError as error:
            shared.fail(error)

    def _exchange(self) -> bool:
        """Make a call; False if it is to be made again. Raises: RefusedError, RegistryError."""
        session = self._session
        gone_s = self._shared.machine.settings.liveness.gone_s
        now = session.clock.monotonic()
        reply = None
        try:
            reply = session.registry.exchange_units(
                session.record,
                self._claims.call(),
                gone_s=gone_s if now >= self._judges_from else NEVER_S,
            )
        except RegistryError as error:  # the beat thread tells that Redis is away
            if not error.retryable:
                raise
        if reply is None:
            # everybody's beats are old when Redis comes back: give them time before judging by them
            self._judges_from = now + gone_s
            return False
        self._claims.answer(reply)
        for repeat in reply.repeated:
            self._tell(repeat)
        return True

    def _tell(self, repeat: Repeat) -> None:
        epoch, unit = self._batches.unit_of(repeat.ticket)
        self._session.tell(
            "unit.repeated",
            f"unit {unit} is read more than once in epoch {epoch}: {_WHY[repeat.reason]}",
            learner=self._session.learner,
            unit=unit,
            epoch=epoch,
            reason=repeat.reason,
        )


def claim_for(session: Session, shared: Shared, batches: object) -> ClaimThread | None:
    """Bind batches that can be claimed for, and begin to claim; None for any others."""
    if not isinstance(batches, Claiming):
        return None
    claims = batches.bind(
        learner=session.learner,
        incarnation=session.incarnation,
        share=lambda: shared.machine.share,
    )
    if claims is None:
        return None
    thread = ClaimThread(session, shared, batches, claims)
    thread.start()
    return thread


_WHY: Final = {
    "returned": "whoever had begun it has gone",
    "late": "this learner was away, and another one reads it too",
    "unclaimed": "it was read without Redis, and another learner reads it too",
}
