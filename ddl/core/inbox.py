"""Contributions on their way to a receipt: judged, fetched, asked for again, settled.

States of a pending contribution: *fetching* (ordered) -> *ready* -> *merging*, or *asked* (damaged
or missing, and the learner is to put it again; or the store did not answer; fetched anew after a
while) -> gone with its receipt in the log. A fate that is decided before any merge waits in
`unlogged` until a record takes it along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, ValuesView
from typing import Final, Literal

from ddl.core import events as e
from ddl.core import facts, selection
from ddl.core.log import LogState
from ddl.core.membership import Membership
from ddl.core.selection import Verdict
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import Fate, Handin, HandinId, Order, Receipt

RECEIPTS_WAIT_S: Final = 2.0
"""How long a fate may wait for a `step` record to travel with."""

ASK_ATTEMPTS: Final = 5
"""How often a living learner may put a damaged or missing payload again before it is given up."""

REFETCH_BEATS: Final = 2.0
"""Beats until a payload that was asked for is looked at again."""


class Pending:
    """A contribution without a receipt. `norm` is the L2 norm of its movement, once known; `ready_at` is
    since when it can be merged."""

    __slots__ = ("asked", "fetch_at", "fetch_s", "handin", "norm", "phase", "ready_at")

    def __init__(self, handin: Handin) -> None:
        self.handin = handin
        self.phase: Literal["fetching", "asked", "ready", "merging"] = "fetching"
        self.norm: float | None = None
        self.asked = 0
        self.fetch_at = 0.0
        self.fetch_s = 0.0
        self.ready_at = 0.0


class Inbox:
    """All contributions without a receipt in the log; owned and driven by the machine.

    Attributes:
        pending: those that may still be merged.
        unlogged: fates that wait for a record, and since when the oldest does.
    """

    def __init__(self, *, log: LogState, membership: Membership, keys: ObjectKeys) -> None:
        self.pending: dict[HandinId, Pending] = {}
        self.unlogged: dict[HandinId, Receipt] = {}
        self.unlogged_since = 0.0
        self._log = log
        self._membership = membership
        self._keys = keys
        self._by_fragment: list[dict[HandinId, Pending]] = [{} for _ in log.fragments]
        self._asked: dict[HandinId, Pending] = {}

    def of(self, fragment: int) -> ValuesView[Pending]:
        """Pending contributions of one fragment."""
        return self._by_fragment[fragment].values()

    # ---- events -----------------------------------------------------------------------------

    def announce(self, handin: Handin, now: float) -> Iterator[e.Command]:
        """Let a hand-in in, or settle it; one that is known already changes nothing."""
        id_ = handin.id
        if id_ in self.pending or id_ in self.unlogged:
            return
        verdict = selection.admission(handin, log=self._log, keys=self._keys)
        if verdict == "ignore":
            return
        member = self._membership.members.get(handin.learner)
        if verdict is None and member is not None and member.aside_reason:
            verdict = Verdict("refused", f"set aside until it re-aligns: {member.aside_reason}")
        if verdict is not None:
            yield from self.settle(handin, verdict, now)
            return
        pending = Pending(handin)
        self.pending[id_] = self._by_fragment[handin.fragment][id_] = pending
        yield e.Fetch(handin)

    def fetched(self, event: e.Fetched, now: float) -> Iterator[e.Command]:
        """Take the outcome of a `Fetch`."""
        pending = self.pending.get(event.id)
        if pending is None or pending.phase != "fetching":
            return
        if event.outcome == "ok":
            pending.phase = "ready"
            pending.norm = event.norm
            pending.fetch_s = event.seconds
            pending.ready_at = now
        elif event.outcome == "refused":
            yield from self.settle(pending.handin, Verdict("refused", event.reason), now)
        elif event.outcome == "unavailable":  # not the learner's fault: only look again later
            self._fetch_later(pending, now + self._log.settings.liveness.beat_s)
        else:
            yield from self._ask_again(pending, event.outcome, event.reason, now)

    def _ask_again(
        self, pending: Pending, outcome: Literal["damaged", "missing"], reason: str, now: float
    ) -> Iterator[e.Command]:
        handin = pending.handin
        member = self._membership.members.get(handin.learner)
        # a living process has it, itself or in its predecessor's spool; a learner that has not been
        # heard yet may live
        away = member is not None and not member.present
        if away or pending.asked >= ASK_ATTEMPTS:
            fate: Fate = "lost" if outcome == "missing" else "refused"
            yield from self.settle(handin, Verdict(fate, reason), now)
            return
        pending.asked += 1
        self._fetch_later(pending, now + REFETCH_BEATS * self._log.settings.liveness.beat_s)
        yield e.AskAgain(handin)
        yield facts.contribution_asked_again(handin, outcome, reason)

    def _fetch_later(self, pending: Pending, instant: float) -> None:
        pending.phase = "asked"
        pending.fetch_at = instant
        self._asked[pending.handin.id] = pending

    def refetch(self, now: float) -> Iterator[e.Command]:
        """Look again at payloads that have had time to be put."""
        for pending in [p for p in self._asked.values() if now >= p.fetch_at]:
            del self._asked[pending.handin.id]
            pending.phase = "fetching"
            yield e.Fetch(pending.handin)

    def expire(self, fragment: int, now: float) -> Iterator[e.Command]:
        """Settle what has become too old now that the fragment has moved on."""
        for pending in list(self.of(fragment)):
            verdict = selection.expiry(pending.handin, log=self._log)
            if verdict is not None:
                yield from self.settle(pending.handin, verdict, now)

    # ---- receipts -----------------------------------------------------------------------------

    def settle(self, handin: Handin, verdict: Verdict, now: float) -> Iterator[e.Command]:
        """Decide a fate; its receipt counts once it is in the log."""
        if not self.unlogged:
            self.unlogged_since = now
        self.unlogged[handin.id] = self.receipt(handin, verdict)
        yield from self._drop(handin.id)
        yield facts.contribution_settled(handin, verdict)
        member = self._membership.members.get(handin.learner)
        refusals_max = self._log.settings.gate.refusals_max
        if (
            verdict.fate == "refused"
            and member is not None
            and not member.barred
            and member.record.incarnation == handin.incarnation
            and member.count_refusal(verdict.reason, refusals_max=refusals_max)
        ):
            order = Order(kind="realign", incarnation=handin.incarnation, reason=verdict.reason)
            yield e.GiveOrder(member.id, order)

    def receipt(
        self, handin: Handin, verdict: Verdict, *, weight: float = 0.0, version: int = 0
    ) -> Receipt:
        """The receipt of a contribution that is about to get this fate."""
        pending = self.pending.get(handin.id)
        head = self._log.fragments[handin.fragment]
        return Receipt(
            learner=handin.learner,
            incarnation=handin.incarnation,
            fragment=handin.fragment,
            seq=handin.seq,
            fate=verdict.fate,
            reason=verdict.reason,
            weight=weight,
            norm=pending.norm if pending else None,
            version=version,
            staleness=selection.staleness(handin, head.version),
            steps=handin.steps,
            tokens=handin.tokens,
        )

    def take_logged(self, receipts: Iterable[Receipt]) -> Iterator[e.Command]:
        """These receipts stand in the log: what they are for is done with."""
        for receipt in receipts:
            id_ = receipt.id
            self.unlogged.pop(id_, None)
            yield from self._drop(id_)

    def _drop(self, id_: HandinId) -> Iterator[e.Command]:
        if self.pending.pop(id_, None) is not None:
            del self._by_fragment[id_.fragment][id_]
            self._asked.pop(id_, None)
            yield e.Drop(id_)

    # ---- time -----------------------------------------------------------------------------------

    def instants(self) -> Iterator[float]:
        """When something may happen to what waits here by time alone."""
        if self.unlogged:
            yield self.unlogged_since + RECEIPTS_WAIT_S
        for pending in self._asked.values():
            yield pending.fetch_at

    def shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self.unlogged_since += seconds
        for pending in self.pending.values():
            pending.ready_at += seconds
        for pending in self._asked.values():
            pending.fetch_at += seconds
