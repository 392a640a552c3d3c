"""The digits example: BatchNorm, experts, and adapters on a frozen base, as real runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from ddl.coordinator.evaluate import Evaluator, evaluate_versions
from ddl.coordinator.export import export_model
from ddl.coordinator.history import History
from ddl.coordinator.verify import verify_run
from ddl.store.local import LocalStore
from tests.processes import Fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


def trained(
    folder: Path, redis_url: str, *more: str, images: int, **args: str | float
) -> tuple[LocalStore, float, float]:
    """A run of two learners until it ends, its accuracy at version 0 and at the last one."""
    folder.mkdir()
    with Fleet(folder, redis_url, run=folder.name) as fleet:
        fleet.task = (EXAMPLE / "task.py").read_text()
        tables: dict[str, dict[str, object]] = {"task.args": {**args}, "stop": {"tokens": images}}
        fleet.write_run(**tables)
        fleet.coordinator()
        fleet.until(fleet.snapshot, "the run in Redis")
        for id_ in ("a", "b"):
            fleet.learner(id_, *more)
        for process in fleet.processes:
            assert process.wait(100) == 0
    store = LocalStore(folder / "store")
    run = History(store, folder.name).existing_run()
    found = verify_run(store, folder.name)
    assert found.num_differences == 0
    assert found.num_receipts > found.global_version  # both learners' work was merged
    first, last = evaluate_versions(
        store, run, [0, None], Evaluator(folder / "task.py", run.settings)
    )
    return store, first.measures["accuracy"], last.measures["accuracy"]


@pytest.mark.parametrize(
    ("model", "least"), [("conv", 96.0), pytest.param("experts", 75.0, marks=pytest.mark.slow)]
)
def test_learners_make_one_good_model(
    model: str, least: float, tmp_path: Path, redis_url: str
) -> None:
    """Statistics of BatchNorm are averaged with the weights that they belong to; an expert that saw
    no image at one learner is what the others made of it."""
    images = 25_000 if model == "conv" else 40_000
    store, first, last = trained(tmp_path / model, redis_url, images=images, model=model)
    assert first < 30 < least < last
    exported = export_model(store, model, tmp_path / "export")
    with safe_open(exported.path, "pt") as file:
        counters = [name for name in file.keys() if name.endswith("num_batches_tracked")]  # noqa: SIM118
        assert len(counters) == (3 if model == "conv" else 0)
        assert all(file.get_tensor(name) > 0 for name in counters)


@pytest.mark.slow
@pytest.mark.timeout(240)  # two runs, one after the other
def test_adapters_learn_a_new_task_on_a_frozen_base(tmp_path: Path, redis_url: str) -> None:
    """A model is trained, exported, and frozen under adapters that learn to read turned digits. Only
    the coordinator has the file; learners get the base from the run."""
    store, _, upright = trained(tmp_path / "base", redis_url, images=30_000, model="plain")
    assert upright > 90
    base = export_model(store, "base", tmp_path / "export").path
    store, first, last = trained(
        tmp_path / "lora",
        redis_url,
        "--arg",
        "base=",
        images=40_000,
        model="adapters",
        base=str(base),
        turned=True,
        lr=0.01,
    )
    assert first < 40 < 85 < last
    logs = [log.read_text() for log in (tmp_path / "lora").glob("*-learner-join.log")]
    assert len(logs) == 2
    assert all("4 frozen parameters differed from the run's" in log for log in logs)
    exported = export_model(store, "lora", tmp_path / "export-lora")
    with safe_open(base, "pt") as old, safe_open(exported.path, "pt") as new:
        assert (new.get_tensor("0.base.weight") == old.get_tensor("0.weight")).all()
        assert new.get_tensor("0.up.weight").abs().sum() > 0
