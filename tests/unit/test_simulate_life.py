"""One simulated learner, worked out by hand: 10 slices of a chip, steps of 10 s, down 15 s, up 5 s."""

from __future__ import annotations

import math
from random import Random

import pytest

from ddl.simulate.life import Life, Share, live, union_s
from ddl.simulate.settings import Machines, Times
from ddl.simulate.tape import Fault, Lots, Played, away_s

TIMES = Times(step_s=10, down_s=15, up_s=5, restart_s=80)
HORIZON_S = 1000.0


def fault(time_s: float, duration_s: float, *, machine: int = 0) -> Fault:
    return Fault(time_s=time_s, learner=0, duration_s=duration_s, machine=machine)


def lived(
    *faults: Fault,
    slices: tuple[int, ...] = (10,),
    slowest: float = 1.0,
    elastic: bool = True,
    spares: bool = False,
) -> Life:
    share = Share(slices=slices, slice_chips=(1,) * len(slices), slowest=slowest, capacity=10)
    return live(share, Played(faults), TIMES, horizon_s=HORIZON_S, elastic=elastic, spares=spares)


def spans(life: Life) -> list[tuple[float, float]]:
    return [(spell.start, spell.end) for spell in life.spells]


def test_without_failures_every_second_is_useful() -> None:
    life = lived()
    assert life.work == 10 * HORIZON_S
    assert spans(life) == [(0, HORIZON_S)]


def test_one_failure_of_an_elastic_learner() -> None:
    """Noticed with the step at 100 s; nine slices from 115 s; back at 200 s, noticed at 205 s."""
    life = lived(fault(95, 100))
    assert spans(life) == [(0, 100), (115, 205), (210, HORIZON_S)]
    assert [spell.chips for spell in life.spells] == [10, 9, 10]
    assert life.work == 10 * 100 + 9 * 90 + 10 * 790


def test_one_failure_where_spares_stand_in() -> None:
    """A restart of 80 s after the step at 100 s, and all ten slices again."""
    life = lived(fault(95, 100), elastic=False, spares=True)
    assert spans(life) == [(0, 100), (180, HORIZON_S)]
    assert life.work == 10 * 920


def test_one_failure_where_all_wait_for_the_slice() -> None:
    """It is back at 200 s; only then the restart begins."""
    assert spans(lived(fault(95, 100), elastic=False)) == [(0, 100), (280, HORIZON_S)]


def test_failures_in_one_step_cost_one_pause() -> None:
    """Three in the first step; two of them come back together, at 65 s in the middle of a step."""
    life = lived(fault(1, 52), fault(2, 53), fault(3, 5000))
    assert spans(life) == [(0, 10), (25, 65), (70, HORIZON_S)]
    assert life.work == 10 * 10 + 7 * 40 + 9 * 930


def test_a_failure_in_a_pause_is_noticed_after_the_next_step() -> None:
    assert spans(lived(fault(5, 5000), fault(12, 5000))) == [(0, 10), (25, 35), (50, HORIZON_S)]


def test_a_learner_without_slices_waits_for_the_first() -> None:
    """Its only one is away from 10 s to 110 s; the pause to take it in follows."""
    assert spans(lived(fault(5, 100), slices=(1,))) == [(0, 10), (115, HORIZON_S)]


def test_a_slice_of_another_kind_is_lost_where_there_is_none_left_of_its_own() -> None:
    life = lived(fault(5, 5000, machine=1), fault(6, 5000, machine=1), slices=(2, 1))
    assert life.work == 3 * 10 + 1 * (HORIZON_S - 25)


def test_the_slowest_slice_sets_the_step() -> None:
    """At half speed a step takes 20 s, and each chip does half of what one of speed 1 does."""
    life = lived(fault(25, 5000), slowest=0.5)
    assert spans(life) == [(0, 40), (55, HORIZON_S)]
    assert life.work == 0.5 * (10 * 40 + 9 * 945)


def test_what_happens_after_the_horizon_does_not_count() -> None:
    """Steps from 25 s on end 5 s after it; a failure in that step is on no tape."""
    life = lived(fault(5, 5000), fault(HORIZON_S + 3, 1))
    assert spans(life)[-1] == (25.0, HORIZON_S)
    assert [entry.time_s for entry in life.faults] == [5]


def test_the_union_of_spells_counts_each_second_once() -> None:
    assert union_s([[(0, 10), (20, 30)], [(5, 12), (25, 26)], []]) == 12 + 10


@pytest.mark.parametrize(
    ("shape", "exponent", "share", "seconds"),
    [
        (1.0, 1.0, 0.5, 100 * math.log(2)),
        (1.0, 2.0, 0.25, 100 * math.log(2)),  # (1 - 1/2)^2
        (2.0, 1.0, 0.5, 100 * math.sqrt(math.log(2))),
        (1.0, 1.0, 0.0, 0.0),
    ],
)
def test_absences_are_an_exponentiated_weibull(
    shape: float, exponent: float, share: float, seconds: float
) -> None:
    machines = Machines(
        chips=1,
        slice_chips=1,
        mtbi_s=1,
        return_scale_s=100,
        return_shape=shape,
        return_exponent=exponent,
    )
    assert away_s(machines, share) == pytest.approx(seconds)


def test_chips_fail_once_in_their_mtbi_and_each_kind_at_its_own_rate() -> None:
    """100 slices of 2 chips, 1,000 s each: one every 5 s. A quarter is of the kind that fails thrice
    as often: so are half of the failures."""
    calm = Machines(chips=150, slice_chips=2, mtbi_s=1500, return_scale_s=1)
    hasty = Machines(chips=50, slice_chips=2, mtbi_s=500, return_scale_s=1)
    lots, present = Lots([calm, hasty], Random(1)), [75, 25]
    now, of_kind = 0.0, [0, 0]
    for _ in range(4000):
        now = lots.next_at(now, present)
        of_kind[lots.take(present)[0]] += 1
    assert now / 4000 == pytest.approx(5, rel=0.05)
    assert of_kind[1] / 4000 == pytest.approx(0.5, abs=0.03)
