from __future__ import annotations

import math

import pytest
import torch

from ddl.learner.meters import LossMeter, StepClock, Transfers


def test_the_loss_is_a_moving_average() -> None:
    """0.9 old + 0.1 new: 2, then 0.9 * 2 + 0.1 * 1 = 1.9."""
    meter = LossMeter()
    assert meter.value() is None
    meter.add(torch.tensor(2.0, requires_grad=True) * 1)
    assert meter.value() == 2.0
    meter.add(1.0)
    assert meter.value() == pytest.approx(1.9)


def test_losses_that_are_not_finite_are_passed_over() -> None:
    """One bad step does not hide the loss for ever; the gate looks at weights, not at this."""
    meter = LossMeter()
    for loss in (1.0, math.nan, math.inf, 1.0):
        meter.add(loss)
    assert meter.value() == 1.0


def test_a_loss_keeps_no_graph() -> None:
    """What is kept for later must not hold a step's activations in memory."""
    meter = LossMeter()
    meter.add(torch.ones((), requires_grad=True) * 2)
    assert not any(loss.requires_grad for loss in meter._waiting if isinstance(loss, torch.Tensor))


def test_time_is_either_busy_or_stalled() -> None:
    """Training from 0 to 3, ddl from 3 to 4, training to 6: busy 5, stalled 1."""
    clock = StepClock(0.0)
    clock.begin(0.0)
    clock.enter(3.0)
    clock.leave(4.0)
    clock.enter(6.0)
    assert (clock.busy_s, clock.stall_s) == (5.0, 1.0)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_pause_is_no_part_of_a_step(ordered: bool) -> None:
    """Steps at 0 and 12 with 10 seconds of pause between them took 2 seconds."""
    clock = StepClock(0.0)
    clock.applied(0.0)
    clock.pause(4.0, ordered=ordered)
    clock.pause(6.0, ordered=ordered)
    assert clock.idle_s(11.0) == 1.0
    clock.applied(12.0)
    assert clock.step_s == pytest.approx(2.0)


def test_only_a_pause_of_the_run_is_not_lost_in_ddl() -> None:
    """Of 6 seconds in ddl, 3 passed while the run was paused and 2 while nobody coordinated."""
    clock = StepClock(0.0)
    clock.enter(1.0)
    clock.pause(3.0, ordered=True)
    clock.pause(2.0, ordered=False)
    clock.leave(7.0)
    assert (clock.busy_s, clock.stall_s, clock.paused_s) == (1.0, 3.0, 3.0)


def test_an_upload_shows_how_far_it_is() -> None:
    """3 of 10 bytes in 2 seconds; what was sent before does not count."""
    transfers = Transfers()
    transfers.add_up(100)
    transfers.begin_upload(10, now=5.0)
    transfers.add_up(3)
    shown = transfers.upload(now=7.0)
    assert shown is not None
    assert (shown.bytes, shown.done_bytes) == (10, 3)
    assert shown.bytes_per_s == pytest.approx(1.5)
    transfers.end_upload()
    assert transfers.upload(now=8.0) is None


def test_losses_of_another_model_are_forgotten() -> None:
    """After a re-align the average begins anew: what was learned of the old weights says nothing."""
    meter = LossMeter()
    meter.add(9.0)
    assert meter.value() == 9.0
    meter.add(8.0)
    meter.restart()
    assert meter.value() is None
    meter.add(2.0)
    assert meter.value() == 2.0
