"""A real learner and a real coordinator with `codec.down = "int4-step"`, and what comes after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ddl
from ddl.coordinator.export import export_model
from ddl.coordinator.fork import fork_run
from ddl.coordinator.history import History
from ddl.coordinator.verify import verify_run
from ddl.learner import session
from ddl.store.base import Progress, Store
from ddl.store.local import LocalStore
from ddl.store.open_url import open_url
from ddl.task import load_task
from tests.contexts import context
from tests.coordinating import RUN, options, running, write_run
from tests.stores import HookedStore

COMMITS = 12
Spoil = Callable[[str, bytearray], bytearray]


class WatchedStore(HookedStore):
    """Notes what is read, and spoils what the test says."""

    def __init__(self, store: Store, spoil: Spoil) -> None:
        super().__init__(store)
        self.read: list[str] = []
        self._spoil = spoil

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        self.read.append(key)
        return self._spoil(key, super().get(key, progress=progress))

    def num_read(self, kind: str) -> int:
        return sum(f"/{kind}/" in key for key in self.read)


Train = Callable[[Spoil], WatchedStore]


@pytest.fixture
def toml(tmp_path: Path, redis_url: str) -> Path:
    return write_run(
        tmp_path,
        redis_url=redis_url,
        codec={"up": "int4", "down": "int4-step"},
        stop={"commits": COMMITS},
        keep={"contributions": "all", "versions": 100},
    )


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def trained(toml: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Train:
    """Runs the whole run with one learner; gives the store as it was to the learner."""
    monkeypatch.setenv("DDL_SPOOL", str(tmp_path / "spool"))

    def train(spoil: Spoil) -> WatchedStore:
        stores: list[WatchedStore] = []

        def watched(*args: Any, **kwargs: Any) -> WatchedStore:
            stores.append(WatchedStore(open_url(*args, **kwargs), spoil))
            return stores[-1]

        monkeypatch.setattr(session, "open_url", watched)
        model = model_of(toml)
        step = threading.Event()
        with running(options(toml)) as coordinator:
            address = f"{redis_url}?run={RUN}"
            with ddl.Learner.join(address, model=model, id="a") as learner:
                lots = torch.Generator().manual_seed(1)
                while not learner.should_stop:
                    step.wait(0.01)
                    with torch.no_grad():
                        for value in model.parameters():
                            if value.requires_grad:
                                value.sub_(0.01 * torch.randn(value.shape, generator=lots))
                    learner.step(tokens=10)
            assert coordinator.wait() == "finished"
        (store,) = stores
        return store

    return train


def model_of(toml: Path) -> torch.nn.Module:
    """The run's model, with weights that are not the run's."""
    other = context(seed=99, purpose="evaluate", learner=None)
    return load_task(toml.parent / "task.py", other).model


def test_a_learner_reads_one_model_and_then_steps(
    trained: Train, store: LocalStore, tmp_path: Path
) -> None:
    """Of the fragments it reads version 0 alone; and all that is made of such a run later (replay,
    export, fork) finds the published weights, with the master beside them."""
    watched = trained(lambda _, data: data)
    assert watched.num_read("fragments") == 2
    # the last versions may come when the run has ended already
    assert COMMITS - 2 <= watched.num_read("steps") <= COMMITS
    found = verify_run(store, RUN, replay=True)
    assert found.num_differences == 0, found.differences
    assert found.replay is not None
    assert (found.replay.num_equal, found.replay.num_skipped) == (COMMITS, 0)
    history = History(store, RUN)
    log = history.fold(history.existing_run())
    assert all(head.step is not None and head.outer is not None for head in log.fragments)

    exported = load_file(export_model(store, RUN, tmp_path / "out").path)
    fork_run(store, RUN, "child", at=None, changes={}, now=0.0)
    child = load_file(export_model(store, "child", tmp_path / "out").path)
    assert exported.keys() == child.keys()
    assert all(torch.equal(exported[name], value) for name, value in child.items())


@pytest.mark.parametrize("damage", ["flipped", "cut", "another step"])
def test_a_step_that_does_not_lead_to_the_version_costs_a_whole_download(
    damage: str, trained: Train, store: LocalStore
) -> None:
    """And nothing else: the learner is never off the published bytes, or its next contribution would
    be refused as not aligned."""
    earlier: dict[str, bytearray] = {}

    def spoil(key: str, data: bytearray) -> bytearray:
        if "/steps/" not in key:
            return data
        before = earlier.setdefault(key.split("/")[2], bytearray(data))
        if damage == "another step":
            return bytearray(before)
        if damage == "cut":
            return data[:-7]
        data[-9] ^= 1
        return data

    watched = trained(spoil)
    assert watched.num_read("fragments") > 2 + COMMITS // 2
    found = verify_run(store, RUN)
    assert found.num_differences == 0, found.differences
    history = History(store, RUN)
    log = history.fold(history.existing_run())
    assert all(row.refused.steps == 0 for row in log.ledger)
