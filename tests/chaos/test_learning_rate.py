"""The learning rate follows the run's clock, whatever is adopted and whoever restarts."""

from __future__ import annotations

import signal

import pytest

from ddl.task import Progress
from tests.chaos.chaos_task import END, FLOOR, TOKENS, factor
from tests.chaos.forked import ChaosFleet

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


def test_adoptions_and_a_restart_do_not_show_in_it(fleet: ChaosFleet) -> None:
    """T09: step by step the series of an unbroken run without adoptions, floor included."""
    steady = fleet.begin()
    fleet.until_steps("steady", 50)
    steady.send_signal(signal.SIGTERM)
    assert steady.wait(timeout=60) == 75
    half = len(_rates(fleet))
    fleet.learner("steady")
    fleet.until(lambda: len(_rates(fleet)) > END // TOKENS + 20, "the schedule has ended")
    assert fleet.version() >= 10
    rates = _rates(fleet)
    assert half < len(rates)
    initial = rates[END // TOKENS][1] / FLOOR
    expected = [
        (
            tokens,
            initial * factor(Progress(tokens=tokens, fraction=0, global_version=0, local_steps=0)),
        )
        for tokens in range(0, len(rates) * TOKENS, TOKENS)
    ]
    assert [tokens for tokens, _ in rates] == [tokens for tokens, _ in expected]
    assert [lr for _, lr in rates] == pytest.approx([lr for _, lr in expected], rel=1e-12)


def _rates(fleet: ChaosFleet) -> list[tuple[int, float]]:
    """(the run's clock, learning rate) of each step."""
    return [(tokens, rate) for tokens, rate, _ in fleet.trace("steady")]
