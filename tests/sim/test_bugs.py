"""The swarm finds mistakes: each planted one within 300 seeds, by what it does to a run."""

from __future__ import annotations

import re

import pytest

from ddl.sim.world import simulate
from tests.sim.bugs import BUGS, Bug

SEEDS = 300


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some history breaks, and the sentence that says why is about the mistake. The seed that broke
    last time is tried first; without the mistake it is sound, as are all of them."""
    bug.plant(monkeypatch)
    outcomes = (simulate(seed) for seed in [bug.seed, *range(SEEDS)])
    found = next((outcome for outcome in outcomes if outcome.violation), None)
    assert found is not None, f"{bug.name} is not found within {SEEDS} seeds"
    assert re.search(bug.sign, found.violation), found
