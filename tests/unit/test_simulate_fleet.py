"""Whole fleets: the paper's table, where its constants come from, and tapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ddl.errors import ConfigError
from ddl.simulate import steady
from ddl.simulate.fit import AWAY, fit
from ddl.simulate.fleet import deal, history, mean_abs_error, simulate, tape_of
from ddl.simulate.paper import CHIPS, TABLE_1, Figures, Place
from ddl.simulate.settings import METHODS, PAPER, Machines, Method, Study, Times, preset
from ddl.simulate.tape import Fault, Tape, load_tape, save_tape

TWO = Study(
    learners=(2,),
    horizon_s=1000,
    seeds=1,
    times=Times(step_s=10, down_s=15, up_s=5, restart_s=80),
    machines=(Machines(chips=20, slice_chips=1, mtbi_s=1e30, return_scale_s=1),),
)
TAPE = Tape(
    learners=2,
    horizon_s=1000,
    faults=(
        Fault(time_s=95, learner=0, duration_s=100),
        Fault(time_s=95, learner=1, duration_s=5000),
    ),
)


def test_nothing_fails() -> None:
    """Every method has all of it."""
    assert {(cell.goodput, cell.uptime) for cell in simulate(TWO)} == {(100.0, 100.0)}


def test_two_learners_with_a_failure_each() -> None:
    """As in the tests of one learner: 9,710 of 10,000; the other has nine slices from 115 s on.

    Both pause from 100 s to 115 s; while the first pauses again, the other one steps.
    """
    (cell,) = simulate(replace(TWO, methods=("decoupled",)), tape=TAPE)
    assert cell.goodput == pytest.approx((9710 + 1000 + 9 * 885) / 200)
    assert cell.uptime == pytest.approx(98.5)


def test_one_learner_has_the_failures_of_all() -> None:
    """Two slices at once cost one pause: 18 of 20 until 205 s, and 19 from 210 s on."""
    (cell,) = simulate(replace(TWO, methods=("data-parallel-elastic",)), tape=TAPE)
    assert cell.goodput == pytest.approx((20 * 100 + 18 * 90 + 19 * 790) / 200)
    assert cell.uptime == pytest.approx(98.0)


def test_faults_that_take_no_machine_away_change_nothing() -> None:
    """A tape of `ddl chaos` may hold them: links that are cut, uploads that are damaged, services."""
    others = (
        Fault(time_s=50, learner=0, kind="cut", duration_s=100),
        Fault(time_s=60, learner=1, kind="corrupt", duration_s=0),
        Fault(time_s=70, kind="kill-coordinator", duration_s=100),
    )
    more = replace(TAPE, faults=(*others, *TAPE.faults))
    assert simulate(TWO, tape=more) == simulate(TWO, tape=TAPE)


def test_a_stopped_machine_is_away_as_a_killed_one_is() -> None:
    """For as long as it is stopped."""
    stops = tuple(replace(fault, kind="stop") for fault in TAPE.faults)
    assert simulate(TWO, tape=replace(TAPE, faults=stops)) == simulate(TWO, tape=TAPE)


def test_a_tape_is_as_long_as_it_is() -> None:
    """Nothing is known of what failed after its end."""
    short = replace(TAPE, horizon_s=200)
    (cell,) = simulate(replace(TWO, methods=("decoupled",)), tape=short)
    assert cell.uptime == pytest.approx(100 * 185 / 200)


def test_a_tape_of_other_learners_is_refused() -> None:
    with pytest.raises(ConfigError, match="of 2 learners, not of 4"):
        simulate(replace(TWO, learners=(4,)), tape=TAPE)


@pytest.mark.parametrize("method", METHODS)
def test_a_tape_repeats_the_history_that_it_is_of(method: Method, tmp_path: Path) -> None:
    """To the last digit, through a file; spares or not, chips of two kinds and many speeds."""
    spot = preset("spot")
    (machines,) = spot.machines
    kinds = (machines, replace(machines, chips=64, slice_chips=4, speed=0.5, speed_spread=0.2))
    study = replace(spot, methods=(method,), learners=(4,), sizes=(1.0,), machines=kinds, seeds=1)
    place = Place(method, 4 if method == "decoupled" else 1, 576)
    drawn = history(study, place, 1.0, seed=0)
    assert len(drawn.tape.faults) > 20
    save_tape(tmp_path / "tape.json", tape_of(study))
    assert history(study, place, 1.0, seed=0, tape=load_tape(tmp_path / "tape.json")) == drawn


def test_what_is_no_tape_is_said(tmp_path: Path) -> None:
    file = tmp_path / "tape.json"
    with pytest.raises(ConfigError, match=r"tape\.json cannot be read"):
        load_tape(file)
    file.write_text('{"learners": 2}')
    with pytest.raises(ConfigError, match=r"tape\.json cannot be read.*--save-tape"):
        load_tape(file)
    with pytest.raises(ConfigError, match="cannot be written"):
        save_tape(tmp_path / "nowhere" / "tape.json", TAPE)
    with pytest.raises(ConfigError, match="the study has 3"):
        tape_of(TWO)


def test_histories_differ_by_their_seed_alone() -> None:
    study = replace(preset("lab"), seeds=1)
    place = Place("decoupled", 10, 28)
    assert history(study, place, 1.0, seed=3) == history(study, place, 1.0, seed=3)
    assert history(study, place, 1.0, seed=3) != history(study, place, 1.0, seed=4)


def test_slices_are_dealt_like_to_like() -> None:
    """Six fast and three slow ones to three learners: only the last one is slow."""
    kinds = (
        Machines(chips=12, slice_chips=2, mtbi_s=1, return_scale_s=1),
        Machines(chips=3, slice_chips=1, mtbi_s=1, return_scale_s=1, speed=0.5),
    )
    shares = deal(replace(TWO, machines=kinds), 3, 1.0, seed=0)
    assert [share.slices for share in shares] == [(3, 0), (3, 0), (0, 3)]
    assert [share.slowest for share in shares] == [1.0, 1.0, 0.5]
    assert [share.capacity for share in shares] == [6, 6, 1.5]
    with pytest.raises(ConfigError, match="10 learners cannot share 9 slices"):
        deal(replace(TWO, machines=kinds), 10, 1.0, seed=0)


def test_mixed_speeds_cost_a_group_but_not_learners_of_their_own() -> None:
    """Half of the chips at half speed: 20 chips at 0.5, of a capacity of 10 + 5."""
    half = replace(TWO.machines[0], chips=10)
    study = replace(TWO, machines=(half, replace(half, speed=0.5)))
    alone, elastic, decoupled = simulate(study)
    assert alone.goodput == elastic.goodput == pytest.approx(100 * 10 / 15)
    assert decoupled.goodput == pytest.approx(100)


# ---- the paper's table ----------------------------------------------------------------------------


def test_the_constants_come_from_the_rows_of_one_learner() -> None:
    """With all other rows left out the fit is what the preset holds; and so it is if they were others."""
    alone = {place: figures for place, figures in TABLE_1.items() if place.learners == 1}
    assert len(alone) == 10
    assert fit(alone) == preset(PAPER)
    wrong = {place: Figures(1.0, 1.0) for place in TABLE_1 if place not in alone}
    assert fit(wrong | alone) == preset(PAPER)


def test_other_rows_of_one_learner_give_other_constants() -> None:
    """A restart of 70 s would show as 73.3, ... in place of the paper's figures."""
    study = preset(PAPER)
    (machines,) = study.machines
    faster = replace(study.times, restart_s=70.0)
    made = {
        place: steady.rigid(machines, faster, size=place.chips / machines.chips)
        if place.method == "data-parallel"
        else figures
        for place, figures in TABLE_1.items()
    }
    assert fit(made).times.restart_s == 70.0


@pytest.mark.parametrize("chips", CHIPS)
def test_the_closed_form_is_what_the_simulation_settles_at(chips: int) -> None:
    study = replace(preset(PAPER), methods=METHODS[:2], sizes=(chips / CHIPS[0],), seeds=1)
    (machines,) = study.machines
    rigid, elastic = simulate(replace(study, horizon_s=1e6))
    expected = steady.rigid(machines, study.times, size=study.sizes[0])
    assert rigid.goodput == rigid.uptime == pytest.approx(expected.goodput, abs=0.7)
    expected = steady.elastic(
        machines, study.times, size=study.sizes[0], away_s=AWAY * machines.return_scale_s
    )
    assert elastic.goodput == pytest.approx(expected.goodput, abs=0.5)
    assert elastic.uptime == pytest.approx(expected.uptime, abs=0.5)


def test_the_paper_s_rule_of_thumb() -> None:
    """goodput(M, N) is goodput(k M, k N)."""
    study = replace(preset(PAPER), methods=("decoupled",))
    two = simulate(replace(study, learners=(2,), sizes=(2.0,)))[0]
    eight = simulate(replace(study, learners=(8,), sizes=(8.0,)))[0]
    assert two.goodput == pytest.approx(eight.goodput, abs=0.7)


def test_the_error_is_over_cells_that_the_paper_has() -> None:
    cells = simulate(
        replace(TWO, sizes=(1.0, 2.0)),
        beside={Place("decoupled", 2, 20): Figures(97.0, 100.0)},
    )
    assert mean_abs_error(cells) == pytest.approx(3.0)
    assert [cell.paper_goodput for cell in cells] == [None, None, None, None, 97.0, None]
    assert mean_abs_error(simulate(TWO)) is None
