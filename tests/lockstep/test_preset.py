"""Whole runs whose outer step is chosen as they go on: the log tells it all, and a new coordinator agrees."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from ddl.config import OuterSettings, Scalar, StopSettings
from ddl.core import events as e
from ddl.core import preset
from ddl.core.log import LogState
from ddl.protocol import wire
from ddl.protocol.records import Request
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.tasks import ConstantGradient

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])
CYCLES = 12


def started(num_fragments: int, lr: float = 0.125) -> Run:
    """Two learners, an automatic outer step, and a budget of `CYCLES` versions of every fragment."""
    settings = settings_of(
        num_fragments,
        outer=OuterSettings(preset="auto"),
        stop=StopSettings(commits=CYCLES * num_fragments),
    )
    run = Run(settings, infos(num_fragments))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=lr))
    return run


def finish(run: Run) -> None:
    assert run.time.run(10_000.0, until=lambda: run.log.state == "stopped")
    checked(run)


@ONE_AND_MANY
def test_the_outer_step_is_chosen_as_the_budget_is_used(num_fragments: int) -> None:
    """Momentum rises as far as so few outer steps bear, and falls when the run is about to end, in records
    that say who chose and why."""
    run = started(num_fragments)
    finish(run)
    chosen = [r for r in run.records() if r.kind == "settings"]
    assert all(r.who == preset.AUTO for r in chosen)
    assert chosen[0].why == "the run begins"
    assert "of about 12 outer steps a fragment are done" in chosen[-1].why
    known = [r for r in chosen[1:] if "momentum ends with the run" not in r.why]
    momenta = [float(r.changes["outer.momentum"]) for r in known]  # once it is known how many
    assert momenta == sorted(momenta)
    assert 0.2 <= momenta[0] <= 0.3
    assert 0.65 <= momenta[-1] <= round(1 - 2.5 / CYCLES, 3)
    assert all(after - before >= 0.099 * (1 - before) for before, after in pairwise(momenta))
    ending = [float(r.changes["outer.momentum"]) for r in chosen[len(known) + 1 :]]
    assert ending == sorted(ending, reverse=True)
    assert ending[-1] < momenta[-1] - 0.05


@ONE_AND_MANY
def test_the_log_alone_tells_every_outer_step(num_fragments: int) -> None:
    """Replayed by hand: each step with the settings that the log has in force before it makes the very
    weights that were published. All contributions of a round are equal, so their merge is any of them:
    n/8 in every element, n steps."""
    run = started(num_fragments)
    finish(run)
    log = LogState.genesis(run.record)
    theta, buffer = [0.0] * num_fragments, [0.0] * num_fragments
    for record in run.records():
        if record.kind == "step":
            outer, p = log.settings.outer, record.fragments[0].fragment
            weights = {r.learner: (r.steps, r.weight) for r in record.receipts}
            total = sum(weight for _, weight in weights.values())
            gradient = sum(w * n / 8 for n, w in weights.values()) / total
            buffer[p] = outer.momentum * buffer[p] + gradient
            theta[p] -= outer.lr * (gradient + outer.momentum * buffer[p])
        log.apply(record, wire.digest(run.services.log[record.seq]))
    for p in range(num_fragments):
        (spec,) = run.layout.by_fragment[p]
        assert torch.allclose(run.model()[spec.name], torch.full((2, 3), theta[p]), rtol=1e-4)


@ONE_AND_MANY
def test_a_new_coordinator_chooses_as_the_one_before_it(num_fragments: int) -> None:
    """It takes over what stands in the log, and goes on from there: nothing is chosen twice."""
    run = started(num_fragments)
    run.go(commits=CYCLES * num_fragments // 2)
    assert run.coordinator is not None
    run.coordinator.die()
    before = [r.seq for r in run.records() if r.kind == "settings"]
    run.start_coordinator()
    assert [r.seq for r in run.records() if r.kind == "settings"] == before
    finish(run)
    momenta = [r.changes["outer.momentum"] for r in run.records() if r.kind == "settings"]
    assert len(momenta) > len(before)
    assert all(after != before for before, after in pairwise(momenta))


def test_a_person_takes_the_outer_step_over_by_saying_so() -> None:
    """A change of lr alone would not last, and is refused with what to do; with the preset it stands."""
    run = started(1)
    run.go(commits=3)

    def ask(id_: str, changes: dict[str, Scalar]) -> str:
        coordinator = run.coordinator
        assert coordinator is not None
        request = Request(id=id_, kind="set", who="ann", why="", changes=changes)
        coordinator.tell(e.Requested(request))
        assert run.time.run(30.0, until=lambda: id_ in coordinator.answers)
        return coordinator.answers[id_]

    assert ask("1", {"outer.lr": 0.1}) == (
        'refused: outer.lr is chosen by outer.preset = "auto"; to choose it yourself, '
        "set outer.preset=fixed along with it"
    )
    assert ask("2", {"outer.lr": 0.1, "outer.preset": "fixed"}) == "done"
    finish(run)
    assert run.log.settings.outer.lr == 0.1
    assert [r.who for r in run.records() if r.kind == "settings"][-1] == "ann"
