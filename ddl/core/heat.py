"""The outer step of `outer.preset = "auto"`: how hot it is, from where the run stands.

Heat is lr / (1 - momentum): how far one contribution moves the model in the end. What a fragment's
learners agree on after their steps is about where it should go, so the learning rate stays near 1
(RDA lengthens steps, so a little below it). Beyond that, early and late differ: while the learners'
own learning rates are high a fragment overshoots where the model is curved, and momentum makes that
worse; later they are low, what learners agree on is the long slow way down, and momentum goes it
faster. So momentum rises with the share of the budget that is used. It falls again should the outer
gradients turn against it, the sign of overshooting.

Measured in `examples/quality`; ARCHITECTURE.md has the tables. All is a pure function of the log: a new
coordinator chooses as the one before it did, and every change is a record.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ddl.core.log import LogState

AUTO: Final = "auto"
"""Who writes the records with what was chosen; also the preset's name."""

CHOSEN: Final = frozenset({"outer.lr", "outer.momentum"})
"""The settings that it changes, as nobody else may meanwhile."""

LR: Final = 0.8

MOMENTUM_FIRST: Final = 0.2
MOMENTUM_LAST: Final = 0.9
"""Momentum at the beginning of a run, and at the end of its budget."""

NOTCH: Final = 0.05
"""A smaller change of momentum waits: each is a record in the log, before the next version's."""


class Choice(NamedTuple):
    """An outer step other than the one in force, and the sentence that says why."""

    lr: float
    momentum: float
    why: str

    @property
    def changes(self) -> dict[str, bool | int | float | str]:
        """For a `settings` record."""
        return {"outer.lr": self.lr, "outer.momentum": self.momentum}


def choose(log: LogState) -> Choice | None:
    """The outer step that suits the run now; None if it is in force, or the preset is "fixed".

    Without a budget nobody knows how long the run will be: momentum then stays where it begins.
    """
    outer = log.settings.outer
    if outer.preset != AUTO:
        return None
    used, trust = log.budget_ratio, _trust(log.vitals.cosines)
    wanted = trust * (MOMENTUM_FIRST + (MOMENTUM_LAST - MOMENTUM_FIRST) * used)
    if outer.lr == LR and abs(wanted - outer.momentum) < NOTCH:
        return None
    stop = log.settings.stop
    budgeted = stop.tokens or stop.commits
    why = f"{used:.0%} of the budget is used" if budgeted else "the run has no budget"
    if trust < 1:
        why += f"; outer gradients point against momentum (cosine {median(log.vitals.cosines):.2f})"
    return Choice(LR, round(wanted, 2), why)


def _trust(cosines: list[float]) -> float:
    """How much of the momentum the last steps bear: all of it while half of them go along with it."""
    return 1.0 + min(0.0, median(cosines)) if cosines else 1.0
