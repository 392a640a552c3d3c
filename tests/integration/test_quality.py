"""The quality tables: methods that must agree do, and a stopped table goes on."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import torch

from ddl.core import board, preset
from ddl.errors import ConfigError
from ddl.task import load_task
from examples.quality import digits, real, text
from examples.quality.cells import Cell, Method, Outcome, Scalar, read, run_all
from examples.quality.methods import train
from examples.quality.plot import draw
from tests.contexts import context

STEPS = 30


def test_a_table_can_be_drawn(tmp_path: Path) -> None:
    """Curves of the rows that have one, and every seed's end; of no other kind of file."""
    cell = Cell(method="decoupled", learners=2, steps=STEPS)
    curve = ((10, 3.0), (20, 2.5), (30, 2.25))
    ddl = [Outcome(cell=cell, tokens=30, heldout_loss=2.25, curve=curve)] * 2
    alone = [Outcome(cell=cell, tokens=30, heldout_loss=2.5)]
    file = tmp_path / "table.svg"
    draw(file, {"alone": alone, "ddl": ddl}, title="M = 2", unit="nats")
    assert "<svg" in file.read_text()
    with pytest.raises(ConfigError, match="is no plot"):
        draw(tmp_path / "table.txt", {"ddl": ddl}, title="", unit="nats")


def test_one_learner_with_outer_steps_that_change_nothing_is_plain_training() -> None:
    """One learner, outer learning rate 1 without momentum: the merged model is the learner's own, so it
    is as good as the same steps without ddl; only what is not merged yet at the end is missing."""
    alone = train(Cell(method="alone", learners=1, steps=STEPS))
    same: dict[str, Scalar] = {"outer.lr": 1.0, "outer.momentum": 0.0, "round.every_steps": 4}
    ours = train(Cell(method="decoupled", learners=1, steps=STEPS, settings=same))
    assert ours.tokens >= alone.tokens
    assert ours.versions > 16
    assert ours.heldout_loss == pytest.approx(alone.heldout_loss, rel=0.02)
    barely = Cell(method="decoupled", learners=1, steps=STEPS, settings=same | {"outer.lr": 1e-6})
    assert train(barely).heldout_loss > 1.3 * ours.heldout_loss


def test_synchronous_diloco_that_merges_all_the_time_learns_as_data_parallel_does() -> None:
    """H = 2 and an outer step that takes the mean: replicas never part by more than two steps."""
    cell = Cell(method="data-parallel", learners=2, steps=STEPS)
    parallel = train(cell)
    often: dict[str, Scalar] = {
        "outer.lr": 1.0,
        "outer.momentum": 0.0,
        "round.every_steps": 2,
        "round.overlap_steps": 1,
        "fragments.num": 2,
    }
    synchronous = train(msgspec.structs.replace(cell, method="synchronous", settings=often))
    assert synchronous.tokens == parallel.tokens
    assert synchronous.heldout_loss == pytest.approx(parallel.heldout_loss, rel=0.05)


def test_momentum_is_low_where_contributions_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload and a download take seven eighths of H each, and no round waits for versions to spread, so
    that most work is a version late: as many digits are right as with quick links. With the momentum that suits
    those, the run diverges."""
    monkeypatch.setattr(board, "SPREAD_FREE", math.inf)
    settings: dict[str, Scalar] = {"round.every_steps": 8, "fragments.num": 2}
    cell = Cell(
        method="decoupled", learners=2, steps=390, settings=settings, pace=(1.0, 1.13), lag=7.0
    )
    assert (digits.train(cell).accuracy or 0.0) > 97
    monkeypatch.setattr(preset, "MOMENTUM_LATE", preset.MOMENTUM_MAX)
    assert (digits.train(cell).accuracy or 0.0) < 90


def test_a_net_with_batchnorm_is_good_when_it_is_measured() -> None:
    """Without the statistics that learners hand in it would guess: 10 % are right by chance."""
    often: dict[str, Scalar] = {"round.every_steps": 8, "outer.lr": 0.7, "outer.momentum": 0.3}
    methods: list[Method] = ["decoupled", "synchronous"]
    for method in methods:
        cell = Cell(method=method, learners=2, steps=60, settings=often)
        found = digits.train(cell)
        assert found.accuracy is not None
        assert found.accuracy > 90, method


def test_processes_train_on_the_very_same() -> None:
    """`just quality real`: the task file has the start weights and batches of the other methods."""
    file = Path(real.__file__).with_name("task.py")
    made = load_task(file, context(seed=3, learner="learner-2"))
    for name, tensor in text.make_model(3).state_dict().items():
        assert torch.equal(made.model.state_dict()[name], tensor), name
    assert made.batches is not None
    for ours, theirs in zip(islice(made.batches, 3), text.batches(3, 1), strict=False):
        assert torch.equal(ours, theirs)


def finish(cell: Cell) -> Outcome:
    """In place of a training; it runs in another process."""
    return Outcome(cell=cell, tokens=1, heldout_loss=float(cell.seed))


def fail(cell: Cell) -> Outcome:
    raise RuntimeError(f"{cell.name} was trained again")


def test_a_stopped_table_goes_on(tmp_path: Path) -> None:
    """A cell with an outcome is not run again; every other cell has a file of its own."""
    cells = [Cell(method="decoupled", seed=seed) for seed in range(3)]
    assert len(list(run_all(cells[:2], tmp_path, train=finish, processes=1))) == 2
    with pytest.raises(RuntimeError, match=cells[2].name):
        list(run_all(cells, tmp_path, train=fail, processes=1))
    assert [read(cell, tmp_path) is not None for cell in cells] == [True, True, False]
    found = list(run_all(cells, tmp_path, train=finish, processes=1))
    assert sorted(outcome.heldout_loss for outcome in found) == [0.0, 1.0, 2.0]
    assert len({cell.name for cell in cells}) == 3
    changed = Cell(method="decoupled", settings={"codec.up": "int4"})
    assert changed.name != cells[0].name
