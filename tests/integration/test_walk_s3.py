"""The same walk as between machines: S3, a Redis with a password, nothing shared but these two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddl.embedded import EmbeddedRedis
from tests.fault_proxy import Fault, FaultProxy
from tests.processes import Fleet, kill
from tests.redis_servers import admin
from tests.servers import S3Server

PASSWORD = "not-to-be-seen"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def proxy(weed: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(weed.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def fleet(
    tmp_path: Path, own_redis: EmbeddedRedis, weed: S3Server, proxy: FaultProxy
) -> Iterator[Fleet]:
    with admin(own_redis.url) as client:
        client.config_set("requirepass", PASSWORD)
    url = own_redis.url.replace("redis://", f"redis://:{PASSWORD}@")
    with Fleet(tmp_path, url, apart=True, environment=weed.environment) as fleet:
        fleet.write_run(
            store={
                "url": f"s3://{weed.bucket}/{tmp_path.name}",
                "endpoint_url": proxy.endpoint_url,
            },
            keep={"contributions": "all"},
        )
        yield fleet


def test_the_walk_between_machines(fleet: Fleet, proxy: FaultProxy) -> None:
    """A learner and the coordinator are killed, a late one joins, the bucket fails in between."""
    coordinator = fleet.coordinator()
    fleet.until(fleet.snapshot, "the run is in Redis")
    first = fleet.learner("first")
    fleet.learner("second")
    fleet.until_version(2)

    kill(first)
    fleet.until_version(fleet.version() + 2)

    _fail_for_a_while(proxy)
    fleet.until(lambda: not _left(proxy), "every fault has happened", within_s=90)
    fleet.until_version(fleet.version() + 2, within_s=90)

    kill(coordinator)
    fleet.coordinator()
    fleet.until_version(fleet.version() + 2)
    fleet.learner("late")
    fleet.until(lambda: _share(fleet, "late") > 0, "work of the late one is merged")

    assert fleet.ddl("stop", fleet.address).wait(timeout=30) == 0
    for process in fleet.processes[2:]:
        process.wait(timeout=60)
    verify = fleet.ddl("verify", fleet.address, "--replay")
    assert verify.wait(timeout=120) == 0, "nothing was lost or damaged, and merges can be repeated"
    ledger = fleet.until(fleet.snapshot, "a snapshot").ledger
    assert ledger.refused == ledger.lost == 0
    for log in fleet.folder.glob("*.log"):
        assert PASSWORD not in log.read_text(), f"the password stands in {log.name}"
        assert "Traceback" not in log.read_text(), log.name


def _fail_for_a_while(proxy: FaultProxy) -> None:
    """Throttling, server errors, bodies cut in the middle, replies lost, a store that stalls."""
    proxy.inject(
        Fault(method="PUT", contains="contributions/", status=503, code="SlowDown", times=3)
    )
    proxy.inject(Fault(method="GET", contains="fragments/", cut_after=300, times=3))
    proxy.inject(Fault(method="PUT", contains="commits/", status=500, code="InternalError"))
    proxy.inject(Fault(method="PUT", contains="commits/", cut=True, forward=True))
    proxy.inject(
        Fault(method="GET", contains="contributions/", status=429, headers={"Retry-After": "1"})
    )
    proxy.inject(Fault(method="PUT", contains="fragments/", cut=True, times=2))


def _left(proxy: FaultProxy) -> list[Fault]:
    return [fault for fault in proxy._faults if fault.times > 0]


def _share(fleet: Fleet, learner: str) -> float:
    view = fleet.view(learner)
    return view.share_ratio if view else 0.0
