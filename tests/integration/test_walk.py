"""The walk of a user: separate processes, one Redis, one directory; deaths, a restart, a late joiner."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from ddl.embedded import EmbeddedRedis
from tests.processes import Fleet, kill

# many processes that each import torch: a busy machine takes its time
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def fleet(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Fleet]:
    with Fleet(tmp_path, own_redis.url) as fleet:
        yield fleet


@pytest.mark.parametrize("num_fragments", [1, 2])
def test_a_run_survives_its_processes(fleet: Fleet, num_fragments: int) -> None:
    """A learner and the coordinator are killed; the rest goes on, and a late joiner contributes."""
    fleet.write_run(fragments={"num": num_fragments}, round={"in_flight": num_fragments})
    coordinator = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    first, second = fleet.learner("first"), fleet.learner("second")
    fleet.until_version(3)
    _share_of(fleet, "first")
    _share_of(fleet, "second")

    kill(first)
    before = fleet.version()
    fleet.until_version(before + 3)
    fleet.until(lambda: _state(fleet, "first") == "gone", "the killed learner is seen as gone")
    assert second.poll() is None

    kill(coordinator)
    standing = fleet.version()
    steps = _steps(fleet, "second")
    fleet.until(lambda: _steps(fleet, "second") > steps + 20, "the learner trains on alone")
    assert fleet.version() == standing
    fleet.coordinator()
    fleet.until_version(standing + 3)

    late = fleet.learner("late")
    _share_of(fleet, "late")
    assert late.poll() is None
    ledger = fleet.until(fleet.snapshot, "a snapshot").ledger
    assert ledger.merged > 0
    assert ledger.refused == 0

    stop = fleet.ddl("stop", fleet.address)
    assert stop.wait(timeout=30) == 0
    for process in (second, late):
        assert process.wait(timeout=30) == 0
    _exports_equal_the_log(fleet)


def test_sigterm_drains_and_sigint_leaves(fleet: Fleet) -> None:
    """SIGTERM: exit code 75, seen as left at once. Ctrl-C: 130, and no trouble of the run. The coordinator's
    Ctrl-C: 130."""
    fleet.write_run()
    coordinator = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    drained, interrupted = fleet.learner("drained"), fleet.learner("interrupted")
    fleet.until_version(2)
    fleet.until(lambda: _steps(fleet, "drained") and _steps(fleet, "interrupted"), "both train")
    drained.send_signal(signal.SIGTERM)
    assert drained.wait(timeout=30) == 75
    assert _state(fleet, "drained") == "left"
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(timeout=30) == 130
    assert _state(fleet, "interrupted") == "left"
    shown = fleet.until(fleet.snapshot, "a snapshot")
    assert not [trouble.what for trouble in shown.troubles if trouble.learners]
    coordinator.send_signal(signal.SIGINT)
    assert coordinator.wait(timeout=30) == 130


def test_an_id_comes_back_at_once_and_is_refused_while_it_lives(fleet: Fleet) -> None:
    """A second process of a living id is told who holds it; after a kill it is let in at once, long
    before the dead one counts as gone."""
    fleet.write_run(liveness={"gone_s": 600.0})
    fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    first = fleet.learner("same")
    fleet.until(lambda: _steps(fleet, "same"), "it trains")
    second = fleet.learner("same")
    assert second.wait(timeout=30) == 4
    told = fleet.log(3)
    assert f"pid {first.pid}" in told
    assert "Traceback" not in told
    kill(first)
    third = fleet.learner("same")
    fleet.until(lambda: _incarnation(fleet, "same") > 1, "the new life is in")
    assert third.poll() is None


def _state(fleet: Fleet, learner: str) -> str:
    view = fleet.view(learner)
    return view.state if view else ""


def _steps(fleet: Fleet, learner: str) -> int:
    view = fleet.view(learner)
    return view.step if view else 0


def _incarnation(fleet: Fleet, learner: str) -> int:
    view = fleet.view(learner)
    return view.incarnation if view else 0


def _share_of(fleet: Fleet, learner: str) -> None:
    def share() -> bool:
        view = fleet.view(learner)
        return view is not None and view.share_ratio > 0

    fleet.until(share, f"work of {learner} is merged")


def _exports_equal_the_log(fleet: Fleet) -> None:
    """Two exported versions hold, fragment by fragment, the very bytes that the log names."""
    store = fleet.folder / "store"
    run = json.loads((store / fleet.run / "run.json").read_text())
    records = [json.loads(p.read_text()) for p in sorted((store / fleet.run / "commits").iterdir())]
    last = records[-1]["global_version"]
    for version in (last, last - 1):
        out = fleet.folder / f"export-{version}"
        command = (
            "export",
            f"{store.as_uri()}/{fleet.run}",
            "--out",
            str(out),
            "--at",
            str(version),
        )
        assert fleet.ddl(*command).wait(timeout=60) == 0
        (exported,) = out.glob("*.safetensors")
        refs = dict(enumerate(run["fragments"]))
        for record in records:
            if record["global_version"] <= version:
                refs |= {f["fragment"]: f["published"] for f in record["fragments"]}
        with safe_open(exported, framework="pt") as whole:
            for ref in refs.values():
                with safe_open(store / ref["key"], framework="pt") as fragment:
                    for name in fragment.keys():  # noqa: SIM118 - no mapping
                        assert whole.get_tensor(name).equal(fragment.get_tensor(name)), name
