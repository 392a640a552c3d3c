"""What `outer.preset = "auto"` chooses: how hot the outer step is, and how often there is one at first.

Heat is lr / (1 - momentum): how far one contribution moves the model in the end. Early in a run the
learners' own learning rates are high, a fragment easily overshoots where the model is curved, and heat
above 1 costs more than it brings. Later they have fallen, what learners agree on is the long slow way
down, and momentum goes it faster. So momentum rises, until three quarters of the budget are used, to
1 - LEFT / N, where N is the number of outer steps that each fragment will see in all: fewer steps bear
less. With many outer steps the learning rate may be lower, and momentum higher from the start. Fewer
learners make a budget last for more outer steps, and N follows.

Three things hold momentum down. The end: in the last tenth of the budget it falls to nothing, for what
the model has gathered of it carries it past where learners agree, and no step comes after that could
bring it back. Contributions that come late were made before the last steps were seen, so that those are
made again: momentum then swings, and wider each time. And should the outer gradients turn against it,
that is overshooting.

The first versions come more often: while a model learns the most common things, learners part so fast
that what they learn in H steps hardly adds up, and what is lost there is not made good later. So versions
come as often as links bear it at first, and each a little later than the one before, until H is reached.

Measured in `examples/quality`; ARCHITECTURE.md has the tables. All is a pure function of the log: a new
coordinator chooses as the one before it did, and every change is a record.
"""

from __future__ import annotations

from statistics import fmean, mean, median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ddl.config import Settings
    from ddl.core.log import LogState

AUTO: Final = "auto"
"""Who writes the records with what was chosen; also the preset's name."""

FEW, MANY = 25.0, 50.0
"""Outer steps of a fragment in a short run, and in one that is long; in between all goes in proportion."""

LR: Final = (0.8, 0.6)
MOMENTUM_FIRST: Final = (0.2, 0.4)
"""In a short run, in a long one."""

LEFT: Final = 2.5
"""Momentum reaches back over no more than N / LEFT outer steps, nor over more than that part of those done so
far: the first outer gradient may be of hundreds of steps, and would be gone again and again."""

MOMENTUM_MAX, MOMENTUM_LATE = 0.97, 0.3
"""Where all comes in time, and where contributions are a version late or more; in between in proportion."""

RISEN: Final = 0.75
"""Share of a run after which momentum is as high as it gets."""

COOLING: Final = 0.1
"""Share of a run, its last, in which momentum falls to nothing."""

GROWTH: Final = 0.05
"""From one step on, each version of a fragment comes later than the one before by this part: at H = 24 it
takes 64 versions, about 460 steps, until they come every H steps."""

GROWTH_LATE: Final = 0.5
"""The same after a version whose contributions came late: the links do not bear it so often."""

IN_TIME: Final = 0.5
"""Median staleness up to which contributions have come in time."""

NOTCH: Final = 0.1
"""A change of lr or heat by a smaller part waits: each is a record, before the next version's."""


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
    """The outer step that suits the run now; None if it is about in force, or the preset is "fixed".

    Without a budget nobody knows how long the run will be: it is taken for a long one at its beginning.
    """
    outer = log.settings.outer
    if outer.preset != AUTO:
        return None
    used, steps = log.budget_ratio, _outer_steps(log)
    length = 1.0 if steps is None else min(1.0, max(0.0, (steps - FEW) / (MANY - FEW)))
    lr, first = (low + (high - low) * length for low, high in (LR, MOMENTUM_FIRST))
    last = MOMENTUM_MAX if steps is None else min(MOMENTUM_MAX, max(first, 1.0 - LEFT / steps))
    wanted = first + (last - first) * min(1.0, used / RISEN)
    wanted = min(wanted, max(first, 1.0 - LEFT / max(1.0, _outer_steps_done(log))))
    bearable = MOMENTUM_MAX - (MOMENTUM_MAX - MOMENTUM_LATE) * min(1.0, _staleness(log))
    trust = _trust(log.vitals.cosines)
    ending = min(1.0, (1.0 - used) / COOLING)
    momentum = trust * ending * min(wanted, bearable)
    same_heat = abs(momentum - outer.momentum) < NOTCH * (1.0 - outer.momentum)
    if same_heat and abs(lr - outer.lr) < NOTCH * outer.lr:
        return None
    why = _why(log, steps, trust, is_late=bearable < wanted, is_ending=ending < 1.0)
    return Choice(round(lr, 3), round(momentum, 3), why)


def every_steps(log: LogState) -> float:
    """Steps of a learner from one version of a fragment to its next, as things stand."""
    wanted = log.settings.round.every_steps
    return min(wanted, log.pace_steps) if log.settings.outer.preset == AUTO else wanted


def grown(pace_steps: float, *, staleness: float, num_fragments: int) -> float:
    """The pace after one more version of one of the fragments, of contributions of this median staleness:
    one learner with a slow link, of three or more, does not hold up the rest."""
    growth = GROWTH if staleness <= IN_TIME else GROWTH_LATE
    return pace_steps * (1.0 + growth / num_fragments)


def early_steps(settings: Settings) -> int:
    """Steps from a run's beginning until versions come every H steps, where all come in time."""
    is_auto = settings.outer.preset == AUTO
    return round((settings.round.every_steps - 1) / GROWTH) if is_auto else 0


def _outer_steps_done(log: LogState) -> float:
    """How many outer steps each fragment has seen."""
    return mean(head.merges for head in log.fragments)


def _outer_steps(log: LogState) -> float | None:
    """How many outer steps each fragment will have seen at the end; None if that is not known: without a
    budget, or before each has seen one."""
    is_known = all(head.merges for head in log.fragments) and log.budget_ratio
    return _outer_steps_done(log) / log.budget_ratio if is_known else None


def _staleness(log: LogState) -> float:
    """How many versions late contributions have been lately."""
    return fmean(log.vitals.staleness or [0.0])


def _trust(cosines: list[float]) -> float:
    """How much of the momentum the last steps bear: all of it while half of them go along with it."""
    return 1.0 + min(0.0, median(cosines)) if cosines else 1.0


def _why(
    log: LogState, steps: float | None, trust: float, *, is_late: bool, is_ending: bool
) -> str:
    stop = log.settings.stop
    if not (stop.tokens or stop.commits):
        why = "the run has no budget"
    elif steps is None:
        why = "the run begins"
    else:
        why = f"{log.budget_ratio:.0%} of about {steps:.0f} outer steps a fragment are done"
    if is_ending:
        why += "; momentum ends with the run"
    if is_late:
        why += f"; contributions are {_staleness(log):.1f} versions late"
    if round(trust - 1, 2) < 0:  # of less there is nothing to see
        why += f"; outer gradients point against momentum (cosine {trust - 1:.2f})"
    return why
