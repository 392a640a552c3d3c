"""What `outer.preset = "auto"` chooses: when it changes the outer step, to what, and why."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest

from ddl.config import OuterSettings, Settings, StopSettings
from ddl.core import heat
from ddl.core.log import LogState
from ddl.protocol.records import Health
from tests.core_records import apply, genesis, other_record, receipt, step_record


def auto(**stop: int) -> LogState:
    """A new run of two fragments whose outer step is chosen; a merge of both is 800 tokens."""
    settings = Settings(outer=OuterSettings(preset="auto"), stop=StopSettings(**stop))
    return genesis(settings)


def follow(log: LogState) -> Mapping[str, object]:
    """Put what is chosen into force; the changes, empty if nothing was chosen."""
    choice = heat.choose(log)
    if choice is None:
        return {}
    apply(
        log,
        other_record(log, "settings", changes=choice.changes, who=heat.AUTO, why=choice.why),
    )
    return choice.changes


def merge(log: LogState, *, cosine: float | None = None) -> None:
    """A version of the fragment that has fewer of them."""
    fragment = int(log.fragments[0].version > log.fragments[1].version)
    receipts = (receipt(log, fragment=fragment),)
    apply(log, step_record(log, fragment, receipts, health=Health(cos_prev=cosine)))


def momentum(log: LogState) -> float:
    return log.settings.outer.momentum


def test_a_fixed_outer_step_is_left_alone() -> None:
    """Whatever it is: that is what the preset says."""
    log = genesis(
        Settings(outer=OuterSettings(preset="fixed", lr=5.0), stop=StopSettings(commits=2))
    )
    merge(log)
    assert heat.choose(log) is None


@pytest.mark.parametrize("budget", [{"tokens": 40 * 800}, {"commits": 80}, {"commits": 40_000_000}])
def test_momentum_rises_with_the_budget_used(budget: dict[str, int]) -> None:
    """From where it begins to nearly where it ends, by notches, at one learning rate; each change says
    how much is used. A budget that has hardly begun moves nothing."""
    log = auto(**budget)
    assert follow(log) == {"outer.lr": heat.LR, "outer.momentum": heat.MOMENTUM_FIRST}
    seen = [momentum(log)]
    for _ in range(80):
        merge(log, cosine=0.4)
        if follow(log):
            seen.append(momentum(log))
        assert heat.choose(log) is None, "what was chosen is in force"
    assert log.settings.outer.lr == heat.LR
    if log.budget_ratio < 0.01:
        assert seen == [heat.MOMENTUM_FIRST]
        return
    assert log.budget_ratio == 1.0
    rises = [after - before for before, after in pairwise(seen)]
    assert all(heat.NOTCH - 0.01 <= rise <= heat.NOTCH + 0.02 for rise in rises)
    assert heat.MOMENTUM_LAST - heat.NOTCH < seen[-1] <= heat.MOMENTUM_LAST


def test_the_reason_says_how_much_of_which_budget() -> None:
    """A sentence for people, who find it in the log beside the change."""
    log = auto(commits=4)
    merge(log)
    choice = heat.choose(log)
    assert choice is not None
    assert choice.why == "25% of the budget is used"


def test_without_a_budget_momentum_stays_where_it_begins() -> None:
    """Nobody knows whether the run has just begun or is nearly over."""
    log = auto()
    assert heat.choose(log) == (heat.LR, heat.MOMENTUM_FIRST, "the run has no budget")
    follow(log)
    for _ in range(50):
        merge(log, cosine=0.4)
        assert heat.choose(log) is None


def test_momentum_falls_when_outer_gradients_turn_against_it() -> None:
    """Half of the last steps against it is the measure, not one; it rises again when they have passed."""
    log = auto(commits=100)
    for _ in range(50):
        merge(log, cosine=0.4)
        follow(log)
    before = momentum(log)
    merge(log, cosine=-0.9)
    assert not follow(log)
    for _ in range(16):
        merge(log, cosine=-0.5)
        follow(log)
    assert momentum(log) == pytest.approx(0.5 * before, abs=0.1)
    choice = heat.choose(
        msgspec.structs.replace(
            log, settings=Settings(outer=OuterSettings(preset="auto"), stop=log.settings.stop)
        )
    )
    assert choice is not None
    assert choice.why.endswith("outer gradients point against momentum (cosine -0.50)")
    for _ in range(16):
        merge(log, cosine=0.4)
        follow(log)
    assert momentum(log) > before
