"""Who is in the run, and what may be expected of them. Judged by Redis server time alone."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from ddl.config import LivenessSettings
from ddl.protocol.records import LearnerRecord, LearnerState


class Member:
    """One learner as the coordinator sees it; owned and changed by the machine."""

    __slots__ = (
        "aside_reason",
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

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def expected(self) -> bool:
        """Whether a round may wait for this learner."""
        return self.state == "training" and self.record.store_down_s == 0

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
        if self.aside_reason:
            return "aside"
        if now - self.stepped_at > stall_limit_s(self.record.step_s, liveness):
            return "stalled"
        return "training"


def stall_limit_s(step_s: float | None, liveness: LivenessSettings) -> float:
    """How long a living learner may go without an applied step before no round waits for it.

    Ten of its own steps, at least `suspect_s`: a first step with compilation, an evaluation or a
    checkpoint between steps is ordinary.
    """
    return max(liveness.suspect_s, 10.0 * (step_s or 0.0))


def median_step_s(members: Iterable[Member]) -> float | None:
    """Seconds of a step: the median over expected learners whose last hand-in was merged."""
    known = [m.record.step_s for m in members if m.expected and m.last_merged and m.record.step_s]
    return median(known) if known else None
