"""Health by the losses of learners: what is bad, how far back is healthy, when to raise an alarm."""

from __future__ import annotations

import pytest

from ddl.config import HealthSettings
from ddl.core.health import LOSSES_LEAST, Vitals
from ddl.protocol.records import Health

HOLD = HealthSettings()


def after(
    *losses: float | None, settings: HealthSettings = HOLD, vitals: Vitals | None = None
) -> Vitals:
    """Vitals after steps with these losses, two fragments, versions 1, 2, ..."""
    vitals = vitals or Vitals()
    for version, loss in enumerate(losses, 1):
        health = Health(loss_mean=loss, loss_least=loss)
        vitals.note_step(health, staleness=0.0, version=version, num_fragments=2, settings=settings)
    return vitals


def test_healthy_is_what_was_trained_on_with_healthy_losses() -> None:
    """One cycle of fragments before the newest healthy step; bad ones do not move it."""
    assert after(2.0, 2.0, 2.0, 2.0, 1.9).healthy_version == 3
    assert after(2.0, 2.0, 2.0, 2.0, 1.9, 9.0, 9.0).healthy_version == 3


@pytest.mark.parametrize(("loss", "is_bad"), [(2.4, False), (2.41, True), (0.1, False)])
def test_the_bound_is_a_ratio_above_the_median(loss: float, is_bad: bool) -> None:
    """20 % above the median of the last healthy steps; one of them that was lucky changes nothing."""
    assert after(2.0, 2.0, 0.5, 2.0, 2.0, loss).num_bad == int(is_bad)


def test_losses_below_zero_have_a_bound_above_them() -> None:
    """A likelihood in nats of a density may be negative: -2 is 20 % worse at -1.6."""
    assert after(-2.0, -2.0, -2.0, -2.0, -1.7).num_bad == 0
    assert after(-2.0, -2.0, -2.0, -2.0, -1.5).num_bad == 1


def test_nothing_is_judged_before_there_is_a_measure() -> None:
    """The first losses are healthy by definition, also when they rise."""
    assert after(*[1.0, 9.0, 99.0][:LOSSES_LEAST]).num_bad == 0
    assert after(None, None, None, None, None, 9.0).num_bad == 0


def test_an_alarm_takes_so_many_rounds_in_a_row() -> None:
    """Two bad ones are none; three are, and the sentence says what was measured."""
    good = [2.0] * 5
    assert after(*good, 9.0, 9.0).alarm(HOLD) == ""
    assert after(*good, 9.0, 9.0, 2.0, 9.0, 9.0).alarm(HOLD) == ""
    alarm = after(*good, 9.0, 9.0, 9.0).alarm(HOLD)
    assert alarm.startswith("in 3 rounds in a row the losses of all learners were more than 20%")
    assert after(*good, 9.0, 9.0, 9.0).alarm(HealthSettings(rollback="off")) == ""


def test_a_release_takes_the_losses_as_they_are() -> None:
    """Who lets a held run go on accepts its losses: they are the new measure."""
    vitals = after(*[2.0] * 5, 9.0, 9.0, 9.0)
    vitals.note_release()
    assert after(*[9.0] * 6, vitals=vitals).alarm(HOLD) == ""
    assert vitals.losses == [9.0] * 6


def test_a_person_may_go_back_to_much_worse_losses() -> None:
    """Who rolls back far takes the losses of then as the new measure, and the run is not held for it;
    it is, if they get worse still."""
    vitals = after(*[2.0] * 5)
    vitals.note_rollback(1, by_person=True)
    assert after(*[9.0] * 6, vitals=vitals).alarm(HOLD) == ""
    assert after(*[19.0] * 3, vitals=vitals).alarm(HOLD)


def test_a_rollback_helps_once() -> None:
    """Until a healthy version later than it is reached, there is no other way back."""
    vitals = after(*[2.0] * 8, 9.0, 9.0, 9.0)
    assert vitals.may_roll_back
    vitals.note_rollback(12, by_person=False)
    assert vitals.alarm(HOLD) == ""
    assert vitals.losses
    assert (vitals.healthy_version, vitals.num_bad, vitals.may_roll_back) == (12, 0, False)
    for version in (13, 14, 15):
        health = Health(loss_mean=2.0, loss_least=2.0)
        vitals.note_step(health, staleness=0.0, version=version, num_fragments=2, settings=HOLD)
    assert (vitals.healthy_version, vitals.may_roll_back) == (13, True)
