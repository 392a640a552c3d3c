"""Whether the merged model is still a good one: judged by the losses that learners hand in.

A step is *bad* when even the least of its learners' losses lies beyond the healthy ones before it.
One bad round is chance; `health.bad_rounds` of them in a row set off what `health.rollback` says.
All of it is folded from the log, so a new coordinator judges as the one before it did.
"""

from __future__ import annotations

from statistics import median
from typing import Final

import msgspec

from ddl.config import HealthSettings
from ddl.protocol.records import Health

HEALTH: Final = "health"
"""Who writes the records that `health.rollback` sets off."""

LOSSES_KEPT: Final = 16
"""Healthy steps that a loss is compared with: their median, so that one lucky step is no measure."""

OUTER_KEPT: Final = 16
"""Steps whose agreement with the momentum is remembered, and how late they were."""

LOSSES_LEAST: Final = 4
"""Healthy steps without which nothing is judged."""


class Vitals(msgspec.Struct, kw_only=True):
    """What the log tells of the model's health.

    Attributes:
        losses: mean loss of the last healthy steps, the newest last.
        cosines: how far the last outer gradients went along with the momentum before them (see
            `Health.cos_prev`), the newest last.
        staleness: how many versions late, on average, what each of the last steps merged was.
        num_bad: bad steps in a row.
        healthy_version: the newest global version that is known to be good: learners have trained on
            it, and on all before it, with healthy losses.
        rolled_back_to: the version that the newest rollback made, -1 before the first.
    """

    losses: list[float] = []
    cosines: list[float] = []
    staleness: list[float] = []
    num_bad: int = 0
    healthy_version: int = 0
    rolled_back_to: int = -1

    def note_step(
        self,
        health: Health,
        *,
        staleness: float,
        version: int,
        num_fragments: int,
        settings: HealthSettings,
    ) -> None:
        """A step has made global version `version`, of contributions of this mean staleness.

        Its losses were had on versions before it. One cycle of all fragments back they surely are
        those of a model that learners have adopted, so that one is healthy if they are.
        """
        if health.cos_prev is not None:
            self.cosines = [*self.cosines, health.cos_prev][-OUTER_KEPT:]
        self.staleness = [*self.staleness, staleness][-OUTER_KEPT:]
        if settings.rollback != "off" and self._is_bad(health.loss_least, settings):
            self.num_bad += 1
            return
        self.num_bad = 0
        self.healthy_version = max(self.healthy_version, version - num_fragments)
        if health.loss_mean is not None:
            self.losses = [*self.losses, health.loss_mean][-LOSSES_KEPT:]

    def note_rollback(self, version: int, *, by_person: bool) -> None:
        """A rollback to a good version has made `version`.

        What a person goes back to may be much worse than the healthy steps since; what the run
        itself goes back to is one of them.
        """
        self.num_bad = 0
        self.cosines, self.staleness = [], []
        if by_person:
            self.losses = []
        self.healthy_version = self.rolled_back_to = version

    def note_release(self) -> None:
        """A person lets a held run go on: its losses are what is healthy from now on."""
        self.num_bad = 0
        self.losses = []

    def alarm(self, settings: HealthSettings) -> str:
        """Why the run should not go on as it is; empty if it may."""
        if settings.rollback == "off" or self.num_bad < settings.bad_rounds:
            return ""
        return (
            f"in {self.num_bad} rounds in a row the losses of all learners were more than "
            f"{settings.loss_jump_ratio:.0%} above {median(self.losses):.4g}, the healthy ones before"
        )

    @property
    def may_roll_back(self) -> bool:
        """Whether a healthy version was reached since the last rollback: the same way back a second
        time would only lead here again."""
        return self.healthy_version > self.rolled_back_to

    def _is_bad(self, loss: float | None, settings: HealthSettings) -> bool:
        if loss is None or len(self.losses) < LOSSES_LEAST:
            return False
        # above the worst of them, so that a run whose losses scatter by nature is not held for it
        return loss > max(self.losses) + settings.loss_jump_ratio * abs(median(self.losses))
