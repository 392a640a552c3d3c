"""What Redis shows of the run: kept equal to the log, through outages, losses and rebuilds.

Everything here is derived. What could not be shown because Redis was away stays noted, newest state
only, and is shown when it is back; when Redis has lost the run, all of it is written anew.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import Final

from ddl.clock import Clock
from ddl.core.events import Show
from ddl.core.facts import identity
from ddl.core.log import LogState
from ddl.errors import LeaseLostError, RegistryError
from ddl.protocol.records import (
    Fact,
    FragmentState,
    Handin,
    HandinId,
    Order,
    Receipt,
    Round,
    RunEntry,
    RunRecord,
)
from ddl.registry.base import CoordinatorRegistry, Poll, shared_settings

ROUNDS_GAP_S: Final = 0.25
"""Who has arrived is for people to see: it is shown no more often than this. Rounds that open, and
the end of the last one, are shown at once."""

FACTS_KEPT: Final = 256
"""Facts that wait for Redis to come back; older ones are dropped."""


class Mirror:
    """Used by one thread. Changes are noted by the methods of that name, and shown by `flush`.

    Args:
        log: the folded log, owned and changed by the core.
        epoch: the lease's.
        store_url: where learners find the store.
    Attributes:
        reachable: while this is False, `flush` does not try; set by whoever hears Redis answer.
    """

    def __init__(
        self,
        registry: CoordinatorRegistry,
        *,
        run: RunRecord,
        log: LogState,
        epoch: int,
        store_url: str,
        clock: Clock,
    ) -> None:
        self.reachable = True
        self._registry = registry
        self._run = run
        self._log = log
        self._epoch = epoch
        self._store_url = store_url
        self._clock = clock
        self._lost = True
        self._boot = ""
        self._shown_seq = -1
        self._shown_at = float("-inf")
        self._fragments: dict[int, FragmentState] = {}
        self._receipts: list[Receipt] = []
        self._settings_changed = False
        self._rounds: tuple[Round, ...] = ()
        self._rounds_shown = True
        self._rounds_shown_at = float("-inf")
        self._wake = False
        self._orders: dict[str, Order] = {}
        self._orders_to_show: set[str] = set()
        self._asked: dict[HandinId, Handin] = {}
        self._answered: list[str] = []
        self._forgotten: dict[str, int] = {}
        self._facts: deque[Fact] = deque(maxlen=FACTS_KEPT)
        self._told: set[tuple[float, str, str]] | None = None

    # ---- notes ------------------------------------------------------------------------------

    def note_record(self, show: Show) -> None:
        """A record was applied to the log."""
        self._fragments |= {state.fragment: state for state in show.fragments}
        self._receipts += show.receipts
        self._settings_changed |= show.settings_changed
        for receipt in show.receipts:
            self._asked.pop(receipt.id, None)

    def note_rounds(self, rounds: tuple[Round, ...], *, wake: bool) -> None:
        """The open rounds are these now; `wake` learners to look at them."""
        self._rounds = rounds
        self._rounds_shown = False
        self._wake |= wake

    def note_order(self, learner: str, order: Order | None) -> None:
        """An order stands for this learner from now on; None withdraws it."""
        if order is None:
            self._orders.pop(learner, None)
        else:
            self._orders[learner] = order
        self._orders_to_show.add(learner)

    def note_forgotten(self, learner: str, incarnation: int) -> None:
        """This learner has been away for so long that Redis need not know it any more."""
        self._orders.pop(learner, None)
        self._forgotten[learner] = incarnation

    def note_asked(self, handin: Handin) -> None:
        """This payload is to be put again."""
        self._asked[handin.id] = handin

    def note_answer(self, request_id: str) -> None:
        """This request has been dealt with."""
        self._answered.append(request_id)

    def note_fact(self, fact: Fact) -> None:
        """Something happened that people may read of."""
        self._facts.append(fact)

    def notice_loss(self, poll: Poll, *, asked_at: float) -> bool:
        """Whether Redis has lost what we showed; the next `flush` then rebuilds it.

        It was flushed, another server stands in its place, or a copy that lagged behind. A reading
        begun before the last record was shown (`asked_at`, monotonic) tells nothing, and a loss is
        told once.
        """
        if self._lost or asked_at <= self._shown_at:
            return False
        self._lost = poll.boot != self._boot or poll.head_seq < self._shown_seq
        return self._lost

    # ---- showing ----------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the newest record and all receipts are shown."""
        return not self._lost and self._shown_seq == self._log.seq

    def flush(self) -> RegistryError | None:
        """Show all that is noted; the error if Redis could not be reached before all was shown.

        Raises: LeaseLostError: a higher epoch was given out.
        """
        if not self.reachable:
            return None
        try:
            if self._lost:
                self._rebuild()
            self._show_record()
            self._show_rounds()
            self._show_words()
        except RegistryError as error:
            self.reachable = False
            return error
        return None

    def _rebuild(self) -> None:
        boot = secrets.token_hex(8)
        log = self._log
        self._require(
            self._registry.rebuild(
                self._epoch,
                self._entry(boot),
                log.head(),
                [log.fragment_state(p) for p in range(len(log.fragments))],
                [account.last for account in log.accounts.values()],
            )
        )
        self._boot, self._lost = boot, False
        self._record_shown()
        # a rebuild clears these two
        self._rounds_shown = not self._rounds
        self._orders_to_show = set(self._orders)

    def _show_record(self) -> None:
        if self._shown_seq == self._log.seq:
            return
        self._require(
            self._registry.commit(
                self._epoch,
                self._log.head(),
                tuple(self._fragments.values()),
                tuple(self._receipts),
                self._entry(self._boot) if self._settings_changed else None,
                after=self._shown_seq,
            )
        )
        self._record_shown()

    def _record_shown(self) -> None:
        self._shown_seq, self._shown_at = self._log.seq, self._clock.monotonic()
        self._fragments.clear()
        self._receipts.clear()
        self._settings_changed = False

    def _show_rounds(self) -> None:
        now = self._clock.monotonic()
        urgent = self._wake or not self._rounds
        if self._rounds_shown or not (urgent or now >= self._rounds_shown_at + ROUNDS_GAP_S):
            return
        self._require(self._registry.set_rounds(self._epoch, self._rounds, wake=self._wake))
        self._rounds_shown, self._rounds_shown_at, self._wake = True, now, False

    def _show_words(self) -> None:
        for learner in sorted(self._orders_to_show):
            order = self._orders.get(learner)
            self._require(self._registry.set_order(self._epoch, learner, order))
            self._orders_to_show.discard(learner)
        while self._asked:
            id_, handin = next(iter(self._asked.items()))
            self._require(self._registry.ask_again(self._epoch, handin))
            del self._asked[id_]
        while self._forgotten:
            learner, incarnation = next(iter(self._forgotten.items()))
            self._require(self._registry.forget_learner(self._epoch, learner, incarnation))
            del self._forgotten[learner]
        while self._answered:
            self._require(self._registry.remove_request(self._epoch, self._answered[0]))
            del self._answered[0]
        if self._facts:
            self._tell()

    def _tell(self) -> None:
        """Each fact once: not what an earlier coordinator has told of the same instant, nor what was
        told by a call whose answer was lost."""
        told = self._told
        if told is None:
            told = {identity(fact) for fact in self._registry.told()}
        self._told = None  # until it is known that the call was made
        self._registry.tell([fact for fact in self._facts if identity(fact) not in told])
        self._told = told
        self._facts.clear()

    def _entry(self, boot: str) -> RunEntry:
        return RunEntry(
            run=self._run,
            store_url=self._store_url,
            boot=boot,
            settings=shared_settings(self._log.settings),
        )

    def _require(self, unfenced: bool) -> None:
        if not unfenced:
            raise LeaseLostError("another coordinator was given a higher epoch")
