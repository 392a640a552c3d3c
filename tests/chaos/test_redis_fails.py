"""Redis is killed, emptied, full, read-only or silent; learners train on, and nothing counts twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from ddl.embedded import EmbeddedRedis
from tests.chaos.books import check_books
from tests.chaos.forked import ChaosFleet
from tests.chaos.gate import Gate
from tests.redis_servers import admin

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def killed(server: EmbeddedRedis) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def silent(server: EmbeddedRedis) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    yield
    os.kill(server.pid, signal.SIGCONT)


@contextmanager
def full(server: EmbeddedRedis) -> Iterator[None]:
    with admin(server.url) as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


@contextmanager
def read_only(server: EmbeddedRedis) -> Iterator[None]:
    """Demoted to a replica of a server that is not there."""
    with admin(server.url) as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


FAULTS: dict[str, Callable[[EmbeddedRedis], AbstractContextManager[None]]] = {
    "cannot be reached": killed,
    "did not answer": silent,
    "out of memory": full,
    "read-only": read_only,
}
"""What a learner says of it -> how it is done."""


def test_redis_fails_in_every_way_in_turn(fleet: ChaosFleet, server: EmbeddedRedis) -> None:
    """T32, T37: each state has its own sentence; training goes on meanwhile, rounds afterwards."""
    steady = fleet.begin()
    fleet.learner("second")
    fleet.until_merged("second")
    for number, (sentence, fault) in enumerate(FAULTS.items(), start=1):
        with fault(server):
            fleet.until(
                lambda sentence=sentence: sentence in fleet.log_of(steady),  # type: ignore[misc]
                f"it is noticed: {sentence}",
            )
            fleet.until_steps("steady")
            fleet.until_steps("second")
        fleet.until(
            lambda number=number: fleet.log_of(steady).count("registry.back") == number,  # type: ignore[misc]
            f"it is over: {sentence}",
        )
        fleet.until_grown(3)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def test_redis_is_emptied(fleet: ChaosFleet, server: EmbeddedRedis) -> None:
    """T23: FLUSHALL in mid-run: all of it is written anew from the log and from what learners hold."""
    fleet.begin()
    fleet.learner("second")
    fleet.until_merged("second")
    boot = _boot(fleet)
    for _ in range(3):
        with admin(server.url) as client:
            client.flushall()
        boot = _until_other_boot(fleet, boot)
        fleet.until_merged("steady")
        fleet.until_merged("second")
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


@pytest.mark.parametrize("action", ["pause", "exit"])
def test_redis_is_gone_for_too_long(fleet: ChaosFleet, server: EmbeddedRedis, action: str) -> None:
    """After `max_offline_s` a learner stands still until Redis is back, or ends with 75."""
    steady = fleet.begin(
        liveness={"max_offline_s": 1.0, "offline_action": action},
    )
    server.kill()
    if action == "exit":
        assert steady.wait(timeout=60) == 75
        server.start()
        fleet.learner("steady")
    else:
        fleet.until(lambda: "learner.paused" in fleet.log_of(steady), "it stands still")
        standing = fleet.steps("steady")
        server.start()
        fleet.until(lambda: fleet.steps("steady") > standing, "it trains again")
    fleet.until_grown(3)
    fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look(), killed=("steady",))


def test_a_learner_without_redis_follows_the_log(fleet: ChaosFleet, server: EmbeddedRedis) -> None:
    """Cut off from Redis alone it reads the records from the store, and announces on its return."""
    fleet.begin(round={"staleness_max": 30})
    with Gate(server.port) as gate:
        failpoint = fleet.fail("followed", nth=3)
        far = fleet.learner("far", via=f"redis://127.0.0.1:{gate.port}/0")
        fleet.until_merged("far")
        gate.shut()
        fleet.until(lambda: "registry.lost" in fleet.log_of(far), "it notices")
        fleet.until_grown(3)
        fleet.until(lambda: failpoint.reached, "it has read three records")
        fleet.until_steps("far")
        gate.open()
        fleet.until(lambda: "registry.back" in fleet.log_of(far), "it is back")
        fleet.until_merged("far")
        fleet.finish()
    check_books(fleet.store, fleet.run, fleet.look())


def _until_other_boot(fleet: ChaosFleet, boot: str) -> str:
    fleet.until(lambda: _boot(fleet) not in ("", boot), "the run is in Redis again")
    return _boot(fleet)


def _boot(fleet: ChaosFleet) -> str:
    entry = fleet.look().entry
    return entry.boot if entry else ""
