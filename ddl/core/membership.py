"""Who is in the run, and what may be expected of them. Judged by Redis server time alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from ddl.config import LivenessSettings
from ddl.core.rounds import Ema
from ddl.protocol.records import LearnerRecord, LearnerState, Receipt

PRESENT: Final[frozenset[LearnerState]] = frozenset(
    {"joining", "training", "stalled", "suspect", "draining", "paused", "aside"}
)
"""States of a learner that is there, or may be."""

LEFT_S: Final = 600.0
"""How long a learner that has said goodbye is shown; what it told stays among the events."""

VERSIONS_KEPT: Final = 8
"""Versions per fragment of which it is known when they were made."""

NOTHING: Final = (-1, 0.0)
"""What who joins has adopted of a fragment, and when."""


class Member:
    """One learner as the coordinator sees it; owned and changed by `Membership`.

    `aside_reason`: why its hand-ins are refused until it has re-aligned more often than
    `aside_realigns`; empty if they are not. `refusals` counts those since the last merge.
    `barred`: it was kicked, and no round waits for it.
    `adopted`: by fragment, the version that it holds, and when it was first heard to.
    `adoption_s`: how long after it was made it is heard to hold a version, in the mean.
    """

    __slots__ = (
        "adopted",
        "adoption_s",
        "aside_realigns",
        "aside_reason",
        "barred",
        "beat_at",
        "last_merged",
        "record",
        "refusals",
        "since_at",
        "state",
        "stepped_at",
    )

    def __init__(self, record: LearnerRecord, beat_at: float) -> None:
        self.record = record
        self.beat_at = beat_at
        self.stepped_at = beat_at
        self.state: LearnerState = "joining"
        self.since_at = beat_at
        self.last_merged = False
        self.refusals = 0
        self.aside_reason = ""
        self.aside_realigns = 0
        self.barred = False
        self.adopted = {p: (version, beat_at) for p, version in enumerate(record.held)}
        self.adoption_s = Ema()

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def expected(self) -> bool:
        """Whether a round may wait for this learner."""
        return self.state == "training" and self.record.store_down_s == 0

    @property
    def present(self) -> bool:
        """Whether its process may still be there to answer."""
        return self.state in PRESENT

    def came_to(self, state: LearnerState, now: float, liveness: LivenessSettings) -> float:
        """When it came into a state that `judge` finds at `now` for the first time."""
        match state:
            case "left":
                return self.beat_at
            case "suspect":
                return self.beat_at + liveness.suspect_s
            case "gone":
                return self.beat_at + liveness.gone_s
        return now

    def hear(self, record: LearnerRecord, at: float) -> None:
        """Take a newer record of the same incarnation."""
        if record.step > self.record.step or record.state != self.record.state:
            self.stepped_at = at
        self.record = record
        self.beat_at = max(self.beat_at, at)

    def judge(self, now: float, liveness: LivenessSettings) -> LearnerState:
        """The state that follows from what was heard, and since when."""
        age_s = now - self.beat_at
        if self.record.state == "left":
            return "left"
        if age_s > liveness.gone_s:
            return "gone"
        if age_s > liveness.suspect_s:
            return "suspect"
        if self.record.state != "training":
            return self.record.state
        if self.aside_reason or self.barred:
            return "aside"
        if now - self.stepped_at > stall_limit_s(self.record.step_s, liveness):
            return "stalled"
        return "training"

    def count_refusal(self, reason: str, *, refusals_max: int) -> bool:
        """Note a refused contribution; True when that sets the learner aside."""
        self.refusals += 1
        if self.aside_reason or self.refusals < refusals_max:
            return False
        self.aside_reason = reason
        self.aside_realigns = self.record.realigns
        return True

    def may_return(self) -> bool:
        """Whether a learner that was set aside has re-aligned; it is let in again then."""
        if not self.aside_reason or self.record.realigns <= self.aside_realigns:
            return False
        self.aside_reason = ""
        self.refusals = 0
        return True


class Membership:
    """All learners that have been heard of, and those that rounds wait for.

    Attributes:
        members: by id, the newest incarnation of each.
        expected: ids of those that a round may wait for.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.expected: set[str] = set()
        self._made_at: dict[tuple[int, int], float] = {}

    def hear(self, record: LearnerRecord, at: float) -> tuple[Member | None, bool]:
        """Take a learner's record; return its member and whether this incarnation is new.

        The member is None if a newer incarnation is known: the record is then of no interest.
        """
        member = self.members.get(record.id)
        if member is None or record.incarnation > member.record.incarnation:
            member = self.members[record.id] = Member(record, at)
            self.expected.discard(record.id)
            return member, True
        if record.incarnation < member.record.incarnation:
            return None, False
        if record.held != member.record.held:
            self._note_adoptions(member, record.held, at)
        member.hear(record, at)
        self._note_expected(member)
        return member, False

    def judge(self, member: Member, now: float, liveness: LivenessSettings) -> LearnerState | None:
        """Judge one learner anew; return the state before if it has changed, else None."""
        state = member.judge(now, liveness)
        if state == member.state:
            return None
        before, member.state = member.state, state
        member.since_at = member.came_to(state, now, liveness)
        self._note_expected(member)
        return before

    def lapsed(self, now: float, liveness: LivenessSettings) -> list[Member]:
        """Learners that have been away for so long that they will not come back by themselves, and
        those whose goodbye is `LEFT_S` old."""
        limits_s = {
            "gone": liveness.max_offline_s,
            "left": min(LEFT_S, liveness.max_offline_s),
        }
        return [
            member
            for member in self.members.values()
            if now - member.since_at > limits_s.get(member.state, float("inf"))
        ]

    def forget(self, member: Member) -> None:
        """Drop a learner. Should it beat again, it is met like a new one."""
        del self.members[member.id]

    def take_version(self, fragment: int, version: int, now: float) -> None:
        """A version of a fragment was made: from now on learners adopt it."""
        self._made_at[fragment, version] = now
        self._made_at.pop((fragment, version - VERSIONS_KEPT), None)

    def take_receipt(self, receipt: Receipt) -> None:
        """Remember of a logged fate what later judgements need."""
        member = self.members.get(receipt.learner)
        if member is not None and member.record.incarnation == receipt.incarnation:
            member.last_merged = receipt.fate == "merged"
            if member.last_merged:
                member.refusals = 0

    def held(self) -> frozenset[tuple[int, int]]:
        """(fragment, version) of all that learners which are there have adopted."""
        return frozenset(
            (fragment, version)
            for member in self.members.values()
            if member.present
            for fragment, version in enumerate(member.record.held)
        )

    def adopted_at(self, fragment: int, version: int, *, line: int) -> list[float]:
        """When those of the expected learners that train on this version of a fragment, or on a newer one,
        were first heard to; the earliest first."""
        on_line = (m for id_ in self.expected if (m := self.members[id_]).record.line == line)
        held = (member.adopted.get(fragment, NOTHING) for member in on_line)
        return sorted(at for held_version, at in held if held_version >= version)

    def adoption_s(self) -> float:
        """Seconds from a version until it is heard that an expected learner trains on it: their median."""
        known = [
            s for id_ in self.expected if (s := self.members[id_].adoption_s.value) is not None
        ]
        return median(known) if known else 0.0

    def step_s(self) -> float | None:
        """Seconds of a step: the median over expected learners whose last hand-in was merged."""
        expected = [self.members[id_] for id_ in self.expected]
        known = [m.record.step_s for m in expected if m.last_merged and m.record.step_s]
        return median(known) if known else None

    def reported_step_s(self) -> float | None:
        """Seconds of a step before anything was merged: the median over all who report one."""
        known = [m.record.step_s for m in self.members.values() if m.record.step_s]
        return median(known) if known else None

    @property
    def nobody_trains(self) -> bool:
        """Whether all that were heard of are gone, or hand in their last on their way out."""
        return (
            not self.expected
            and bool(self.members)
            and all(m.state == "draining" or not m.present for m in self.members.values())
        )

    def num_seasoned(self, steps: float) -> int:
        """How many expected learners have taken at least `steps` steps."""
        return sum(self.members[id_].record.step >= steps for id_ in self.expected)

    def shift(self, seconds: float) -> None:
        """Move all instants, after the server's clock has jumped."""
        self._made_at = {version: at + seconds for version, at in self._made_at.items()}
        for member in self.members.values():
            member.beat_at += seconds
            member.stepped_at += seconds
            member.since_at += seconds
            member.adopted = {p: (v, at + seconds) for p, (v, at) in member.adopted.items()}

    def _note_adoptions(self, member: Member, held: Sequence[int], at: float) -> None:
        for fragment, version in enumerate(held):
            if version != member.adopted.get(fragment, NOTHING)[0]:
                member.adopted[fragment] = (version, at)
                made_at = self._made_at.get((fragment, version))
                if made_at is not None:
                    member.adoption_s.add(at - made_at)

    def _note_expected(self, member: Member) -> None:
        if member.expected:
            self.expected.add(member.id)
        else:
            self.expected.discard(member.id)


def stall_limit_s(step_s: float | None, liveness: LivenessSettings) -> float:
    """How long a living learner may go without an applied step before no round waits for it.

    Ten of its own steps, at least `suspect_s`: a first step with compilation, an evaluation or a
    checkpoint between steps is ordinary.
    """
    return max(liveness.suspect_s, 10.0 * (step_s or 0.0))
