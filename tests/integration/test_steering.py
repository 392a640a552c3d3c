"""People steer a run of real processes: pause, rollback, drain, kick; and a standby takes over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddl.coordinator.verify import verify_run
from ddl.embedded import EmbeddedRedis
from ddl.protocol.keys import ObjectKeys
from ddl.store.local import LocalStore
from tests.commands import Ddl
from tests.processes import Fleet, kill

LEASE_S = 3.0


@pytest.fixture
def fleet(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Fleet]:
    with Fleet(tmp_path, own_redis.url) as fleet:
        fleet.write_run(
            keep={"versions": 1000},
            liveness={
                "beat_s": 0.2,
                "suspect_s": 3.0,
                "gone_s": 6.0,
                "lease_s": LEASE_S,
            },
        )
        yield fleet


def steps(fleet: Fleet, learner: str) -> int:
    view = fleet.view(learner)
    return view.step if view else 0


def state(fleet: Fleet, learner: str) -> str:
    view = fleet.view(learner)
    return view.state if view else ""


def paused_s(fleet: Fleet, learner: str) -> float:
    view = fleet.view(learner)
    return view.paused_s if view else 0.0


def run_state(fleet: Fleet) -> str:
    shown = fleet.snapshot()
    return shown.run.state if shown else ""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_is_steered(fleet: Fleet, ddl: Ddl) -> None:
    """Paused, both learners stand still and go on; rolled back, both re-align and are merged again;
    drained, one leaves with 75 and may return; kicked, it leaves with 4 and may not until allowed."""
    fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    fleet.ddl("learner", "join", "run.toml", "--task", "task.py", "--id", "a", "--threads", "1")
    fleet.learner("b")
    fleet.until(lambda: all(steps(fleet, name) for name in "ab"), "both train")
    fleet.until_version(4)

    assert ddl("pause", fleet.address, "--why", "a look at it").code == 0
    fleet.until(lambda: all(state(fleet, n) == "paused" for n in "ab"), "both stand still")
    standing = steps(fleet, "a"), steps(fleet, "b"), fleet.version()
    assert run_state(fleet) == "paused"
    fleet.until(
        lambda: all(paused_s(fleet, n) > 1.0 for n in "ab"), "the pause is told as it lasts"
    )
    assert ddl("set", fleet.address, "outer.lr=0.5").code == 0
    assert (steps(fleet, "a"), steps(fleet, "b"), fleet.version()) == standing
    assert ddl("resume", fleet.address).code == 0
    fleet.until_version(standing[2] + 2)
    fleet.until(lambda: steps(fleet, "a") > standing[0] and steps(fleet, "b") > standing[1], "go")

    before = fleet.snapshot()
    assert before is not None
    told = ddl("rollback", fleet.address, "--to", "2")
    assert told.code == 0, told.err
    after = fleet.snapshot()
    assert after is not None
    assert after.run.line == 1
    fleet.until_version(after.run.global_version + 4)
    fleet.until(lambda: all(state(fleet, n) == "training" for n in "ab"), "both train again")

    drained, kicked = fleet.processes[2], fleet.processes[1]
    assert ddl("learner", "drain", fleet.address, "b", "--why", "needed elsewhere").code == 0
    assert drained.wait(timeout=30) == 75
    assert ddl("learner", "kick", fleet.address, "a", "--reason", "its data is wrong").code == 0
    assert kicked.wait(timeout=30) == 4
    said = fleet.log(2)
    assert f"`ddl learner allow '{fleet.address}' a` lets it in again" in said
    assert "kicked: its data is wrong (by " in said
    assert "it cannot go on" not in said
    again = fleet.learner("a")
    assert again.wait(timeout=60) == 4
    assert not (fleet.folder / "store" / ObjectKeys(fleet.run).join("a", 2)).exists()
    assert "its data is wrong" in fleet.log(len(fleet.processes))
    assert ddl("learner", "allow", fleet.address, "a").code == 0
    fleet.learner("a")
    version = fleet.version()
    fleet.until_version(version + 3)
    assert ddl("stop", fleet.address).code == 0
    store = LocalStore(fleet.folder / "store")
    found = verify_run(store, fleet.run)
    assert found.differences == ()
    undone = f"{round(found.ledger.merged - found.progress):,} undone by rollbacks"
    assert fleet.processes[0].wait(timeout=30) == 0
    assert undone in fleet.log(1).splitlines()[-1]
    assert undone in ddl("verify", f"{store.url}/{fleet.run}").out


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_learners_lose_no_step_while_a_standby_takes_over(fleet: Fleet) -> None:
    """The coordinator is killed; within two leases the standby has merged something, and meanwhile
    the learners have trained as fast as before, with next to no time spent inside ddl."""
    first = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    for name in "ab":
        fleet.learner(name)
    fleet.coordinator("--standby")
    fleet.until(lambda: all(steps(fleet, name) > 20 for name in "ab"), "both train")
    fleet.until(lambda: bool((s := fleet.snapshot()) and s.coordinator.standbys), "a standby")
    fleet.until_version(fleet.version() + 4)

    before = pace(fleet, 2.0)
    kill(first)
    killed_at = time.monotonic()
    version, stalled = fleet.version(), {n: stall_s(fleet, n) for n in "ab"}
    begun = {name: steps(fleet, name) for name in "ab"}
    fleet.until_version(version + 1, within_s=2 * LEASE_S)
    took_s = time.monotonic() - killed_at
    rates = {name: (steps(fleet, name) - begun[name]) / took_s for name in "ab"}
    print(f"took over in {took_s:.1f} s; steps/s {before} before, {rates} meanwhile")
    assert took_s <= 2 * LEASE_S
    for name in "ab":
        assert rates[name] > 0.6 * before[name]
        assert stall_s(fleet, name) - stalled[name] < 0.1 * took_s


def pace(fleet: Fleet, seconds: float) -> dict[str, float]:
    """Steps per second of each learner, measured for a while."""
    begun, begun_at = {name: steps(fleet, name) for name in "ab"}, time.monotonic()
    fleet.until(lambda: time.monotonic() - begun_at > seconds, "some time")
    took_s = time.monotonic() - begun_at
    return {name: (steps(fleet, name) - begun[name]) / took_s for name in "ab"}


def stall_s(fleet: Fleet, learner: str) -> float:
    view = fleet.view(learner)
    assert view is not None
    return view.stall_s
