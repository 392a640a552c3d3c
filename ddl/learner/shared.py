"""What the four threads of a learner share, under one lock.

The training thread asks the machine for a plan and carries it out; the beat, up and down threads
tell it what happened. All of them touch the machine, the staged fragments and the waiting hand-ins
only while they hold `changed`; none of them does I/O or tensor work meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ddl.core.learner import LearnerMachine
from ddl.learner.meters import LossMeter, StepClock, Transfers
from ddl.protocol.records import Handin, HandinId


@dataclass(frozen=True, slots=True)
class StagedFragment:
    """A version in host memory: fp32 parameters, buffers in their own type."""

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(slots=True)
class Shared:
    """One learner's state between its threads.

    Attributes:
        machine: the rules.
        staged: by fragment, what the machine knows as staged.
        stored: contributions whose payload is in the store and whose receipt is not known; every
            beat repeats their announcements.
        skipped: steps that the optimizer left out, all together.
        fatal: what ended a background thread; the training thread raises it at its next step.
        leaving: set once; every wait of every thread ends on it.
    """

    machine: LearnerMachine
    loss: LossMeter
    clock: StepClock
    transfers: Transfers
    staged: dict[int, StagedFragment] = field(default_factory=dict)
    stored: dict[HandinId, Handin] = field(default_factory=dict)
    skipped: int = 0
    fatal: BaseException | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)
    leaving: threading.Event = field(default_factory=threading.Event)

    def fail(self, error: BaseException) -> None:
        """End the learner with this error, from any thread; the first one counts."""
        with self.changed:
            self.fatal = self.fatal or error
            self.changed.notify_all()

    def raise_fatal(self) -> None:
        """Raise in the training thread what ended a background thread."""
        if self.fatal is not None:
            raise self.fatal


def backoff_s(attempt: int, least: float = 0.2, most: float = 10.0) -> float:
    """Seconds to wait before try number `attempt` (from 1) of what may mend itself."""
    return min(most, least * 2.0 ** (attempt - 1))
