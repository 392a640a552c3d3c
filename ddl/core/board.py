"""The open rounds: opened by pace, judged by what is in, shown when they have changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ddl.core import events as e
from ddl.core import facts, preset, rounds
from ddl.core.inbox import Inbox
from ddl.core.log import LogState
from ddl.core.membership import Membership
from ddl.core.pace import Pace
from ddl.core.rounds import Decision, OpenRound
from ddl.protocol.records import Round

SPREAD_FREE: Final = 0.25
"""Adoption within this part of H steps holds nobody up: by then few rounds have opened."""

SPREAD_RATIO: Final = 4.0
"""A fragment's rounds open at most so many times H steps apart because its versions spread slowly."""

SPREAD_REST_RATIO: Final = 0.5
"""So much longer than half of the learners the rest may take to adopt a version before they are late."""


class Board:
    """All open rounds; owned and driven by the machine, which closes them.

    Attributes:
        rounds: by fragment, the oldest first.
        touched: fragments whose round may have changed, or gone, since it was last judged and shown.
        pace: what decides when the next one opens, and learns from those that closed.
    """

    def __init__(self, *, log: LogState, inbox: Inbox, membership: Membership, epoch: int) -> None:
        self.rounds: dict[int, OpenRound] = {}
        self.touched: set[int] = set()
        self.pace = Pace(
            epoch=epoch, num_fragments=len(log.fragments), last_fragment=log.last_fragment
        )
        self._log = log
        self._inbox = inbox
        self._membership = membership
        self._shown: tuple[Round, ...] | None = None
        self._has_opened = False

    @property
    def shown(self) -> tuple[Round, ...]:
        """The open rounds as last ordered to be shown, oldest first."""
        return self._shown or ()

    def touch_all(self) -> None:
        """Something has changed that concerns every round."""
        self.touched.update(self.rounds)

    def take_off(self, fragment: int) -> None:
        """The fragment's round, if there is one, is open no more."""
        if self.rounds.pop(fragment, None) is not None:
            self.touched.add(fragment)

    def put_back(self, round_: OpenRound) -> None:
        """Open again what was taken off to be merged, as it was."""
        under_way = sorted([round_, *self.rounds.values()], key=lambda r: r.launch)
        self.rounds = {r.fragment: r for r in under_way}
        self.touched.add(round_.fragment)

    # ---- opening ------------------------------------------------------------------------------

    def open_due(self, now: float, *, merging: OpenRound | None) -> None:
        """Open rounds while a slot is free and one is due; `merging` still holds its slot."""
        settings = self._log.settings.round
        busy = set(self.rounds)
        slots_used = sum(not r.extended for r in self.rounds.values())
        if merging is not None:
            busy.add(merging.fragment)
            slots_used += 1
        while slots_used < settings.in_flight:
            fragment = self._due_fragment(busy, now)
            if fragment is None:
                return
            self.rounds[fragment] = self.pace.open(
                fragment,
                version_before=self._log.fragments[fragment].version,
                line=self._log.line,
                now=now,
                deadline_s=rounds.deadline_s(settings, self._membership.step_s()),
            )
            self.touched.add(fragment)
            self._has_opened = True
            busy.add(fragment)
            slots_used += 1

    def _due_fragment(self, busy: set[int], now: float) -> int | None:
        """The fragment that a round may open for now, if there is one."""
        if self._log.budget_used:
            return None
        if self._membership.nobody_trains:
            return self._left_behind(busy)
        fragment = self.pace.due_fragment(busy) if self._pace_allows(now) else None
        return fragment if fragment is not None and now >= self._spread_by(fragment) else None

    def _spread_by(self, fragment: int) -> float:
        """From when on a round of a fragment may open, as far as its newest version is concerned: where
        versions spread slowly, when all train on it, or half do and the rest have had half as long again, or
        it takes too long. Before, what is handed in would be late by a version more each time."""
        opened_at, every_steps = self.pace.opened_at(fragment), self._log.settings.round.every_steps
        every_s = every_steps * (self._pace_step_s() or 0.0)
        if opened_at is None or self._membership.adoption_s() <= SPREAD_FREE * every_s:
            return -math.inf
        head, num_expected = self._log.fragments[fragment], len(self._membership.expected)
        adopted_at = self._membership.adopted_at(fragment, head.version, line=self._log.line)
        if len(adopted_at) == num_expected:
            return -math.inf
        at_last = opened_at + SPREAD_RATIO * every_s
        if 2 * len(adopted_at) < num_expected:
            return at_last
        half_at = adopted_at[(num_expected - 1) // 2]
        return min(at_last, half_at + SPREAD_REST_RATIO * (half_at - opened_at))

    def _pace_allows(self, now: float) -> bool:
        """Whether one more round may open now, as far as time is concerned."""
        settings = self._log.settings.round
        step_s, every_steps = self._pace_step_s(), preset.every_steps(self._log)
        if step_s is not None:
            return now >= self.pace.opens_at(every_steps, step_s, now)
        # with fewer learners than the quorum a round opens all the same: it waits, and says why
        enough = max(1, min(settings.quorum, len(self._membership.expected)))
        return self._membership.num_seasoned(every_steps) >= enough

    def _pace_step_s(self) -> float | None:
        """Seconds of a step that rounds are paced by; None before the first version. When of none the last
        hand-in was merged, what they say has to do: without a pace, work that expired for being late
        would be followed by more that is."""
        step_s = self._membership.step_s()
        if step_s is None and self.pace.has_opened and self._log.global_version:
            return self._membership.reported_step_s()
        return step_s

    def _left_behind(self, busy: set[int]) -> int | None:
        """A fragment whose quorum is there from those who trained last. Else what they handed in would
        wait for the next one who joins."""
        quorum = self._log.settings.round.quorum
        for fragment in range(len(self._log.fragments)):
            ready = sum(p.phase == "ready" for p in self._inbox.of(fragment))
            if ready >= quorum and fragment not in busy:
                return fragment
        return None

    # ---- waiting ------------------------------------------------------------------------------

    def judge(self, round_: OpenRound, now: float) -> Decision:
        """Note a quorum that is there, or there no more; say whether the round closes now."""
        settings = self._log.settings.round
        expected = self._membership.expected
        awaited = set(expected)
        fresh = carried = coming = 0
        for p in self._inbox.of(round_.fragment):
            is_own = p.handin.launch == round_.launch
            if p.phase == "ready":
                awaited.discard(p.handin.learner)
                fresh += is_own
                carried += not is_own
            elif p.phase != "asked":
                coming += is_own
        if fresh < settings.quorum:
            round_.quorum_at = round_.grace_until = None
        elif round_.quorum_at is None:
            step_s = self._membership.step_s() or self._membership.reported_step_s()
            round_.quorum_at = now
            round_.grace_until = self.pace.grace_end(round_, settings, now=now, step_s=step_s)
        decision = rounds.close_decision(
            round_,
            quorum=settings.quorum,
            live=len(expected),
            fresh=fresh,
            carried=carried,
            coming=coming,
            awaited=sorted(awaited),
            now=now,
        )
        round_.reason = decision.reason
        return decision

    def extend(self, round_: OpenRound, now: float) -> Iterator[e.Command]:
        """Let a round without a quorum wait on, without holding a slot; told the first time."""
        settings = self._log.settings.round
        round_.deadline_at = now + rounds.deadline_s(settings, self._membership.step_s())
        if round_.extended:
            return
        round_.extended = True
        yield facts.round_extended(round_)

    # ---- showing --------------------------------------------------------------------------------

    def show(self) -> Iterator[e.Command]:
        """Order the open rounds to be shown if they have changed."""
        if not self.touched and self._shown is not None:
            return
        expected = self._membership.expected
        for fragment in self.touched & self.rounds.keys():
            round_ = self.rounds[fragment]
            arrived, late = set(), set()
            for p in self._inbox.of(fragment):
                if p.phase == "ready":
                    arrived.add(p.handin.learner)
                if p.handin.launch != round_.launch:
                    late.add(p.handin.learner)
            round_.shown = round_.record(
                quorum=self._log.settings.round.quorum,
                arrived=sorted(arrived),
                awaited=sorted(expected - arrived),
                late=sorted(late),
                share=1.0 / len(expected) if expected else 0.0,
                held_by="" if self._log.state == "running" else f"the run is {self._log.state}",
            )
        self.touched.clear()
        shown = tuple([r.shown for r in self.rounds.values() if r.shown is not None])
        if shown != self._shown:
            yield e.ShowRounds(shown, opened=self._has_opened)
            self._shown = shown
            self._has_opened = False

    # ---- time -----------------------------------------------------------------------------------

    def instants(self, now: float) -> Iterator[float]:
        """When something may happen to rounds, or one may open, by time alone."""
        for round_ in self.rounds.values():
            yield from round_.instants()
        step_s = self._pace_step_s()
        if step_s is not None:
            yield self.pace.opens_at(preset.every_steps(self._log), step_s, now)
            due = self.pace.due_fragment(self.rounds)
            if due is not None:
                yield self._spread_by(due)

    def shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self.pace.shift(seconds)
        for round_ in self.rounds.values():
            round_.shift(seconds)
        self.touch_all()
