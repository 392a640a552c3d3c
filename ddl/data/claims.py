"""The tickets that one learner has claimed, between its training thread and the one that asks.

The training thread takes, begins and finishes; another thread takes a `UnitCall` to Redis and back
whenever something has changed. The training thread never waits for that: when nothing is claimed, it
takes a ticket without asking, from the next epoch's worth of tickets and by a lot of its own, so
that learners who are cut off rarely choose the same. What nobody else has read when Redis answers
again counts as finished like any other; the rest is counted as repeated.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ddl.data.order import shuffled
from ddl.protocol.units import Grant, Holding, How, Reading, UnitCall, UnitReply

AHEAD_MAX = 256
"""Units shorter than the way to Redis and back are claimed by ever more at a time, up to this."""


class Claims:
    """Claims of one life of a learner on one data set. Safe to use from two threads.

    Args:
        name, plan, num_units: of the data set.
        life: names this life of this learner; seeds what it takes without asking.
        ahead: tickets claimed beyond those that were taken.
        kept: tickets that a former life had begun, and how it held them.
        finished: tickets that it had finished, perhaps without telling; each with whether it was
            claimed.
    """

    def __init__(
        self,
        *,
        name: str,
        plan: str,
        num_units: int,
        life: str,
        ahead: int = 2,
        kept: Iterable[tuple[int, How]] = (),
        finished: Iterable[tuple[int, bool]] = (),
    ) -> None:
        self._name = name
        self._plan = plan
        self._lots = shuffled(num_units, name, life)
        self._changed = threading.Condition()
        self._held = {t: Holding(ticket=t, begun=True, how=how) for t, how in kept}
        self._queue: deque[Grant] = deque()
        self._finished = {t: Reading(ticket=t, claimed=claimed) for t, claimed in finished}
        self._lost: set[int] = set()
        self._ahead = ahead
        self._grown = False
        self._highest = max([*self._held, *self._finished], default=-1)
        self._unasked: set[int] = set()
        self._known_begun: set[int] = set()
        self._number = 0
        self._call: UnitCall | None = None
        self._answered = False
        self._dirty = True
        self._leaving = False

    # ---- the training thread --------------------------------------------------------------------

    def take(self) -> Grant:
        """The next claimed ticket; without one, a ticket that was not claimed."""
        with self._changed:
            self._note_change()
            if self._queue:
                return self._queue.popleft()
            if not self._grown:  # once an answer: while Redis is away it would grow for nothing
                self._ahead = min(2 * self._ahead, AHEAD_MAX)
                self._grown = True
            ticket = self._draw()
            self._held[ticket] = Holding(ticket=ticket, begun=False, how="unclaimed")
            return Grant(ticket, 0)

    def begin(self, ticket: int) -> None:
        """Rows of a ticket that was taken are about to be trained on."""
        with self._changed:
            held = self._held.get(ticket)
            if held is not None and not held.begun:
                self._held[ticket] = Holding(ticket=ticket, begun=True, how=held.how)
                self._note_change()

    def finish(self, ticket: int) -> None:
        """All rows of a ticket were trained on; one that was lost is not finished by us."""
        with self._changed:
            held = self._held.pop(ticket, None)
            self._known_begun.discard(ticket)
            if held is not None:
                self._queue = deque(g for g in self._queue if g.ticket != ticket)
                self._finished[ticket] = Reading(ticket=ticket, claimed=held.how != "unclaimed")
                self._note_change()

    def is_lost(self, ticket: int) -> bool:
        """Whether a ticket that was taken is another learner's by now, or finished."""
        with self._changed:
            return ticket in self._lost

    def state(self) -> dict[str, Any]:
        """What a next life has to know: `kept` and `finished` of its claims. JSON."""
        with self._changed:
            return {
                "kept": [
                    [ticket, "kept" if ticket in self._known_begun else held.how]
                    for ticket, held in self._held.items()
                    if held.begun
                ],
                "finished": [[r.ticket, r.claimed] for r in self._finished.values()],
            }

    def leave(self, places: Mapping[int, int]) -> None:
        """Take no more. The call to come gives back what was not begun; what was is held on to, for
        the next life, and `places` tells how many of its rows another learner need not read."""
        with self._changed:
            self._leaving = True
            self._queue.clear()
            self._held = {
                t: Holding(ticket=t, begun=True, rows=places.get(t, 0), how=held.how)
                for t, held in self._held.items()
                if held.begun
            }
            self._note_change()

    # ---- the thread that asks -------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to tell or to ask for, `timeout_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._dirty, timeout_s)

    def wait_answered(self, timeout_s: float) -> bool:
        """Wait for the first answer; whether it has come."""
        with self._changed:
            return self._changed.wait_for(lambda: self._answered, timeout_s)

    @property
    def all_told(self) -> bool:
        """Whether nothing has changed since the last call that was answered."""
        with self._changed:
            return self._call is None and not self._dirty

    def call(self) -> UnitCall:
        """What to tell and to ask; the same again until it is answered."""
        with self._changed:
            if self._call is None:
                self._number += 1
                self._dirty = False
                self._call = UnitCall(
                    name=self._name,
                    plan=self._plan,
                    number=self._number,
                    held=tuple(self._held.values()),
                    finished=tuple(self._finished.values()),
                    want=0 if self._leaving else max(0, self._ahead - len(self._queue)),
                )
            return self._call

    def answer(self, reply: UnitReply) -> None:
        """Take the answer to `call`. Meanwhile the training thread may have gone on."""
        with self._changed:
            call, self._call = self._call, None
            assert call is not None
            lost = set(reply.lost)
            for holding in call.held:
                if holding.ticket in lost:
                    self._lose(holding)
                else:
                    self._confirm(holding)
            self._queue = deque(g for g in self._queue if g.ticket not in self._lost)
            for ticket in reply.settled:
                self._finished.pop(ticket, None)
            for grant in reply.granted:
                self._highest = max(self._highest, grant.ticket)
                if not self._leaving:
                    self._enter(grant)
            self._answered = True
            self._grown = False
            self._changed.notify_all()

    def _lose(self, told: Holding) -> None:
        held = self._held.get(told.ticket)
        if held is None:  # finished meanwhile
            if told.begun and told.how != "kept":
                del self._finished[told.ticket]  # counted as repeated already
            return
        self._lost.add(told.ticket)
        if held.begun == told.begun:
            del self._held[told.ticket]
            self._known_begun.discard(told.ticket)
        # else it was begun since: the next call tells so, to be counted

    def _confirm(self, told: Holding) -> None:
        held = self._held.get(told.ticket)
        if held is None:
            return
        if told.ticket in self._lost:  # free again, but its reader has dropped it: give it back
            del self._held[told.ticket]
            return
        self._held[told.ticket] = msgspec.structs.replace(held, how="claimed")
        if told.begun:
            self._known_begun.add(told.ticket)

    def _enter(self, grant: Grant) -> None:
        """Queue what was granted, unless we took it ourselves while the answer was on its way."""
        if grant.ticket not in self._held and grant.ticket not in self._finished:
            self._held[grant.ticket] = Holding(ticket=grant.ticket, begun=False, rows=grant.rows)
            self._lost.discard(grant.ticket)
            self._queue.append(grant)

    # ---- small things ---------------------------------------------------------------------------

    def _note_change(self) -> None:
        self._dirty = True
        self._changed.notify_all()

    def _draw(self) -> int:
        """A ticket to take without asking: one of an epoch's worth above all that were granted."""
        first = self._highest + 1
        while True:
            for place in self._lots.tolist():
                ticket: int = first + place
                if ticket not in self._unasked:
                    self._unasked.add(ticket)
                    return ticket
            first += len(self._lots)
