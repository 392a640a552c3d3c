"""What `outer.preset = "auto"` chooses: when it changes the outer step, to what, and why."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from ddl import config
from ddl.config import OuterSettings, Settings, StopSettings
from ddl.core import preset
from ddl.core.log import LogState
from ddl.protocol.records import Health
from tests.core_records import apply, genesis, other_record, receipt, step_record


def auto(**stop: int) -> LogState:
    """A new run of two fragments whose outer step is chosen; a merge of both is 800 tokens."""
    settings = Settings(outer=OuterSettings(preset="auto"), stop=StopSettings(**stop))
    return genesis(settings)


def follow(log: LogState) -> Mapping[str, object]:
    """Put what is chosen into force; the changes, empty if nothing was chosen."""
    choice = preset.choose(log)
    if choice is None:
        return {}
    apply(
        log,
        other_record(log, "settings", changes=choice.changes, who=preset.AUTO, why=choice.why),
    )
    return choice.changes


def merge(log: LogState, *, cosine: float | None = None, staleness: int = 0) -> None:
    """A version of the fragment that has fewer of them."""
    fragment = int(log.fragments[0].version > log.fragments[1].version)
    receipts = (receipt(log, fragment=fragment, staleness=staleness),)
    apply(log, step_record(log, fragment, receipts, health=Health(cos_prev=cosine)))


def momentum(log: LogState) -> float:
    return log.settings.outer.momentum


def test_a_fixed_outer_step_is_left_alone() -> None:
    """Whatever it is: that is what the preset says."""
    log = genesis(
        Settings(outer=OuterSettings(preset="fixed", lr=5.0), stop=StopSettings(commits=2))
    )
    merge(log)
    assert preset.choose(log) is None


@pytest.mark.parametrize(
    ("budget", "lr", "first", "last"),
    [
        ({"commits": 2 * 10}, 0.8, 0.2, 0.75),
        ({"commits": 2 * 25}, 0.8, 0.2, 0.9),
        ({"tokens": 800 * 25}, 0.8, 0.2, 0.9),
        ({"commits": 2 * 40}, 0.68, 0.32, 0.9375),
        ({"tokens": 800 * 40}, 0.68, 0.32, 0.9375),
        ({"commits": 2 * 200}, 0.6, 0.4, preset.MOMENTUM_MAX),
    ],
)
def test_momentum_rises_until_the_end_comes_near(
    budget: dict[str, int], lr: float, first: float, last: float
) -> None:
    """The more outer steps there will be, the lower the learning rate and the higher momentum, which falls to
    nothing in the last tenth; what is in force is never far from it, and changes only where it is."""
    log = auto(**budget)
    follow(log)
    changes = 0
    while not log.budget_used:
        merge(log, cosine=0.4)
        changes += bool(follow(log))
        assert preset.choose(log) is None, "what was chosen is in force"
        if log.global_version >= 4:
            wanted = first + (last - first) * min(1.0, log.budget_ratio / 0.75)
            wanted = min(wanted, max(first, 1 - 2.5 / (log.global_version / 2)))
            wanted *= min(1.0, (1.0 - log.budget_ratio) / 0.1)
            assert momentum(log) == pytest.approx(wanted, abs=0.1 * (1 - wanted) + 0.03)
            assert log.settings.outer.lr == pytest.approx(lr, rel=0.12)
    assert momentum(log) == pytest.approx(0.0, abs=0.1)
    assert changes < 50


def test_momentum_rises_no_faster_than_outer_steps_come() -> None:
    """A first outer gradient of hundreds of steps took half of a small run's budget: momentum that rose with
    it went the same way again and again, and the run was held. It has to be gone by then."""
    log = auto(tokens=800 * 4)
    seen = []
    for _ in range(6):  # of two fragments: three outer steps each, three quarters of the budget
        merge(log, cosine=0.4)
        follow(log)
        seen.append(momentum(log))
    assert max(seen[1:]) == pytest.approx(0.2, abs=0.08)
    assert log.budget_ratio == 0.75


def test_the_reason_says_how_far_the_run_is() -> None:
    """A sentence for people, who find it in the log beside the change."""
    log = auto(commits=40)
    begins = preset.choose(log)
    assert begins == (0.6, 0.4, "the run begins")
    for _ in range(10):
        merge(log)
    choice = preset.choose(log)
    assert choice is not None
    assert choice.why == "25% of about 20 outer steps a fragment are done"


def test_without_a_budget_momentum_stays_where_it_begins() -> None:
    """Nobody knows whether the run has just begun or is nearly over."""
    log = auto()
    assert preset.choose(log) == (0.6, 0.4, "the run has no budget")
    follow(log)
    for _ in range(50):
        merge(log, cosine=0.4)
        assert preset.choose(log) is None


def test_momentum_falls_when_outer_gradients_turn_against_it() -> None:
    """Half of the last steps against it is the measure, not one; it rises again when they have passed."""
    log = auto(commits=300)
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
    choice = preset.choose(
        msgspec.structs.replace(
            log,
            settings=Settings(
                outer=OuterSettings(preset="auto", momentum=0.9), stop=log.settings.stop
            ),
        )
    )
    assert choice is not None
    assert choice.why.endswith("outer gradients point against momentum (cosine -0.50)")
    for _ in range(16):
        merge(log, cosine=0.4)
        follow(log)
    assert momentum(log) > before


@pytest.mark.parametrize(("cosine", "is_told"), [(-0.004, False), (-0.006, True)])
def test_momentum_that_about_holds_is_no_reason(cosine: float, is_told: bool) -> None:
    """Nobody is told of a cosine of -0.00."""
    log = auto(commits=100)
    for _ in range(16):
        merge(log, cosine=cosine)
    choice = preset.choose(log)
    assert choice is not None
    assert choice.why.endswith("against momentum (cosine -0.01)") == is_told
    assert ("against momentum" in choice.why) == is_told


@pytest.mark.parametrize(("every", "most"), [(4, 0.8025), (2, 0.635), (1, 0.3)])
def test_late_contributions_bear_little_momentum(every: int, most: float) -> None:
    """Momentum 0.9 with contributions a version late made a run of the digits diverge. From 0.97 where all
    come in time it goes to 0.3 where all are late: here one of 4, one of 2, each. It is free again when
    they are in time."""
    log = auto(commits=1085)
    for turn in range(960):
        merge(log, cosine=0.4, staleness=turn % every == 0)
        follow(log)
    assert momentum(log) == pytest.approx(most, abs=0.1 * (1 - most))
    other = Settings(outer=OuterSettings(momentum=0.0), stop=log.settings.stop)
    choice = preset.choose(msgspec.structs.replace(log, settings=other))
    assert choice is not None
    assert choice.why.endswith(f"contributions are {1 / every:.1f} versions late")
    for _ in range(16):
        merge(log, cosine=0.4)
        follow(log)
    assert momentum(log) > 0.9


def test_one_slow_link_does_not_hold_up_the_rest() -> None:
    """One of three contributions is late: the pace grows as if none was; with two it grows faster."""
    for late, pace in ((1, 1.025), (2, 1.25)):
        log = auto()
        receipts = tuple(
            msgspec.structs.replace(receipt(log, staleness=3 * (n < late)), learner=f"l{n}")
            for n in range(3)
        )
        apply(log, step_record(log, 0, receipts))
        assert preset.every_steps(log) == pytest.approx(pace)


def test_the_first_versions_come_more_often_where_links_bear_it() -> None:
    """H = 24, two fragments: from every step on each version of a fragment comes about 5 % later than the
    one before it, half as late again when contributions come late, until it is 24 steps; with a fixed preset
    always as the settings say."""
    log = auto()
    assert preset.every_steps(log) == 1.0
    merge(log)
    assert preset.every_steps(log) == pytest.approx(1.025)
    merge(log)
    assert preset.every_steps(log) == pytest.approx(1.025 * 1.025)
    merge(log, staleness=1)
    assert preset.every_steps(log) == pytest.approx(1.025 * 1.025 * 1.25)
    fixed = config.replace(log.settings, {"outer.preset": "fixed"})
    assert preset.every_steps(msgspec.structs.replace(log, settings=fixed)) == 24.0
    versions, steps = 0, 0.0
    log = auto()
    while preset.every_steps(log) < 24:
        steps += preset.every_steps(log) / 2
        merge(log)
        versions += 1
    assert (versions, round(steps)) == (129, 464)
    merge(log)
    assert preset.every_steps(log) == 24.0
    sooner = config.replace(log.settings, {"round.every_steps": 8})
    assert preset.every_steps(msgspec.structs.replace(log, settings=sooner)) == 8.0
