"""Simulated runs of `ddl`: its own rules over links of given speed, on fleets that fail as told."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ddl import config
from ddl.config import Scalar, Settings
from ddl.errors import ConfigError
from ddl.simulate.fleet import simulate
from ddl.simulate.protocol.pipe import Pipe
from ddl.simulate.protocol.sweep import of_runs, simulate_runs
from ddl.simulate.protocol.tally import RunCell
from ddl.simulate.settings import Machines, Protocol, Study, Times, preset
from ddl.simulate.tape import Fault, Tape

SETTINGS = config.replace(
    Settings(),
    {
        "fragments.num": 4,
        "round.every_steps": 8,
        "round.grace_ratio": 0.5,
        "outer.preset": "fixed",  # one pace from the beginning
    },
)
FAST = Protocol(
    parameters=4_000_000, latency_s=0.001, horizon_s=200.0, settings=SETTINGS
)  # 4 MB a fragment: 0.03 s on a learner's link
STUDY = Study(
    learners=(2,),
    times=Times(step_s=1, down_s=1, up_s=1, restart_s=1),
    machines=(Machines(chips=2, slice_chips=1, mtbi_s=1e15, return_scale_s=1),),
)


def ran(
    *,
    learners: int = 2,
    tape: Tape | None = None,
    changes: dict[str, Scalar] | None = None,
    **given: Any,
) -> RunCell:
    """A run of learners of one chip each: a step a second, a round every other second."""
    (machines,) = STUDY.machines
    study = replace(
        STUDY,
        learners=(learners,),
        machines=(replace(machines, chips=learners),),
        protocol=replace(FAST, **given),
    )
    (run,) = simulate_runs(study, {k: [v] for k, v in (changes or {}).items()}, tape=tape)
    return run


def test_a_pipe_takes_one_transfer_after_the_other() -> None:
    """8 Mbit/s are 1 MB/s; what the process has queued ends with it."""
    pipe = Pipe(8.0)
    assert pipe.send(1_000_000, now=10.0) == 1.0
    assert pipe.send(500_000, now=10.5) == 1.0
    assert pipe.send(500_000, now=20.0) == 0.5
    assert pipe.num_bytes == 2_000_000
    pipe.reset()
    assert pipe.send(1_000_000, now=20.1) == 1.0


def test_where_nothing_fails_all_is_merged() -> None:
    """But for the seconds until the learners have the model, and the steps of the last rounds."""
    run = ran()
    assert run.goodput > 98
    assert run.uptime > 98
    assert run.goodput - 5 < run.merged < run.goodput
    assert run.merged_tokens == pytest.approx(run.merged / 100 * 2 * 200)
    assert run.round_every_s == pytest.approx(2.0, abs=0.1)
    assert set(run.fates) == {"merged"}
    assert run.staleness == 0
    assert run.shares == pytest.approx((50, 50), abs=1)
    assert (run.starts, run.coordinators) == (2, 1)


def test_bytes_are_those_of_contributions_and_versions() -> None:
    """fp32: 4 MB a hand-in, and as much for weights and momentum each; 4.25 bits instead of 32.

    A learner takes four fragments to begin with, and then every version.
    """
    run = ran()
    handed_in = run.fates["merged"]
    rates = run.bytes_per_s
    assert rates.coordinator_down * 200 / 4e6 == pytest.approx(handed_in, abs=2)
    assert rates.learner_up * 200 / 4e6 == pytest.approx(handed_in / 2, abs=1)
    assert rates.coordinator_up * 200 / 8e6 == pytest.approx(run.rounds, abs=1)
    assert rates.learner_down * 200 / 4e6 == pytest.approx(run.rounds + 4, abs=2)
    small = ran(changes={"codec.up": "int4", "codec.down": "int4-step"}).bytes_per_s
    assert small.learner_up == pytest.approx(rates.learner_up * 4.25 / 32, rel=0.05)
    assert small.learner_down < 0.2 * rates.learner_down


def test_a_slow_uplink_makes_work_late_but_loses_nothing() -> None:
    """Half a megabyte a second: a hand-in takes 8 s, four rounds' time; training goes on."""
    quick, slow = ran(), ran(up_mbit=4.0)
    assert slow.goodput == pytest.approx(quick.goodput, abs=0.5)
    assert slow.rounds < 0.6 * quick.rounds
    assert set(slow.fates) == {"merged"}
    assert slow.bytes_per_s.learner_up <= 0.51e6


def test_a_learner_that_dies_costs_its_own_share_alone() -> None:
    """Gone from 100 s to 152 s, and then for as long as it needs to have the model anew."""
    fault = Fault(time_s=99.5, learner=1, duration_s=50)
    run = ran(tape=Tape(learners=2, horizon_s=200, faults=(fault,)))
    assert run.starts == 3
    assert run.uptime == ran().uptime
    assert run.goodput == pytest.approx(ran().goodput - 100 * 52 / 400, abs=1)
    assert run.shares[0] > 55


def test_goodput_is_the_fleet_s_but_for_what_joining_takes() -> None:
    """Each process steps a second or two after its start, and its last step may be cut short."""
    (machines,) = STUDY.machines
    failing = replace(machines, chips=4, mtbi_s=40, return_scale_s=10)
    study = replace(STUDY, learners=(4,), machines=(failing,), protocol=FAST)
    (run,) = simulate_runs(study, {})
    (cell,) = simulate(replace(of_runs(study), seeds=1))
    assert run.starts > 10
    assert run.start_s is not None
    lost = 100 * run.starts * (run.start_s + 1.5) / (4 * 200)
    assert cell.goodput - lost < run.goodput < cell.goodput


def test_a_coordinator_that_dies_stops_nobody() -> None:
    """Rounds come later; every step is trained as before, and what was handed in is merged."""
    steady, shaken = ran(), ran(coordinator_mtbi_s=40.0, coordinator_away_s=5.0)
    assert shaken.coordinators > 2
    assert shaken.goodput == steady.goodput
    assert shaken.rounds < steady.rounds
    assert set(shaken.fates) == {"merged"}


def test_a_quorum_that_is_not_there_merges_nothing() -> None:
    run = ran(changes={"round.quorum": 3})
    assert run.goodput > 98
    assert (run.rounds, run.merged, run.fates) == (0, 0.0, {})


def test_a_model_of_one_fragment_has_one_round_at_a_time() -> None:
    """Its number of fragments is the default for its size, whatever may be in flight."""
    settings = config.replace(SETTINGS, {"fragments.num": 0})
    run = ran(parameters=1000, settings=settings)
    assert run.round_every_s == pytest.approx(8.0, abs=0.3)


def test_the_first_versions_come_more_often_where_the_run_chooses_so() -> None:
    """By our own core, as in a real run: from one step on versions come ever later until, after 167 of
    them in 140 steps, each of four fragments has one every 8 steps; at a steady pace 70 come meanwhile."""
    settings = config.replace(SETTINGS, {"outer.preset": "auto"})
    steady, early = ran().rounds, ran(settings=settings).rounds
    assert early - steady == pytest.approx(167 - 70, abs=8)


def test_a_budget_ends_a_run() -> None:
    """Learners are told, and step no more."""
    run = ran(changes={"stop.commits": 10})
    assert run.rounds == 10
    assert run.goodput < 30


def test_a_run_is_the_same_every_time() -> None:
    assert ran(step_spread=0.1) == ran(step_spread=0.1)


def test_quorum_one_without_grace_merges_one_learner_s_fresh_work() -> None:
    """The paper's Table 5 in kind: grace lets nearly all in, at no loss of goodput."""
    study = preset("paper-table5")
    study = replace(study, protocol=replace(study.protocol, horizon_s=150.0))
    alone, graced = simulate_runs(study, {"round.quorum": [1], "round.grace_ratio": [0.0, 0.5]})
    assert alone.fresh < 1.5
    assert alone.alone > 80
    assert graced.fresh > 6
    assert graced.alone < 10
    assert graced.goodput == pytest.approx(alone.goodput, abs=0.5)


def test_every_combination_is_run() -> None:
    study = replace(STUDY, learners=(1, 2), protocol=replace(FAST, horizon_s=10.0))
    runs = simulate_runs(study, {"round.quorum": [1, 2], "codec.up": ["fp32", "int4"]})
    assert [(run.learners, *run.settings.values()) for run in runs] == [
        (learners, quorum, codec)
        for learners in (1, 2)
        for quorum in (1, 2)
        for codec in ("fp32", "int4")
    ]


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="overlap_steps"):
        ran(changes={"round.overlap_steps": 8})
