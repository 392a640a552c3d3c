"""What a registry does when its server is not well: each state has its own error and its cure."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest

from ddl.config import Settings
from ddl.embedded import EmbeddedRedis
from ddl.errors import RegistryError, RegistryFullError, RegistryUnavailableError
from ddl.registry.base import settings_digest
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl.registry.reader import RedisReader
from ddl.registry.redis import RedisServer
from tests.contract.registry_records import (
    RUN,
    entry,
    handin,
    head,
    learner,
    lease,
    receipt,
    state,
    states,
)
from tests.redis_servers import admin

KNOWN = settings_digest(Settings())
FAILS_WITHIN_S = 3.5


@pytest.fixture
def coordinator(own_redis: EmbeddedRedis) -> Iterator[RedisCoordinator]:
    """The coordinator of a run that a server of our own knows."""
    with closing(RedisCoordinator(own_redis.url, RUN)) as coordinator:
        coordinator.rebuild(1, entry(), head(), states(), [])
        yield coordinator


@pytest.fixture
def one(coordinator: RedisCoordinator, own_redis: EmbeddedRedis) -> Iterator[RedisLearner]:
    """A learner that has joined that run."""
    with closing(RedisLearner(own_redis.url, RUN)) as one:
        one.register(learner(), gone_s=15, takeover=False)
        yield one


def eventually(call: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Repeat a call until it stops raising RegistryUnavailableError."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            call()
        except RegistryUnavailableError:
            assert time.monotonic() < deadline
        else:
            return


def test_a_restarted_server_is_found_again_without_a_word(
    own_redis: EmbeddedRedis, coordinator: RedisCoordinator, one: RedisLearner
) -> None:
    """Old connections are cut, the next call makes new ones; what was kept is there."""
    while one.wait_news(0):
        pass
    one.beat(learner(), [], settings_digest=KNOWN)
    own_redis.restart()
    assert one.beat(learner(step=2), [], settings_digest=KNOWN).registered
    assert coordinator.poll().learners == {"ada": learner(step=2)}
    assert not one.wait_news(0.1)


def test_a_dead_server_is_reported_at_once_and_by_name(
    own_redis: EmbeddedRedis, coordinator: RedisCoordinator, one: RedisLearner
) -> None:
    """Calls and waits alike; after its return everything goes on."""
    own_redis.kill()
    started = time.monotonic()
    for call in (
        lambda: one.beat(learner(), [], settings_digest=KNOWN),
        lambda: one.wait_news(5.0),
        coordinator.poll,
    ):
        with pytest.raises(RegistryUnavailableError, match="cannot be reached") as caught:
            call()
        assert own_redis.url in str(caught.value)
        assert caught.value.retryable
    assert time.monotonic() - started < FAILS_WITHIN_S
    own_redis.start()
    assert one.beat(learner(), [], settings_digest=KNOWN).boot == "boot-1"


def test_a_frozen_server_fails_a_call_within_3_s(
    own_redis: EmbeddedRedis, coordinator: RedisCoordinator
) -> None:
    """It takes connections but never answers: no hidden retries make the wait longer."""
    os.kill(own_redis.pid, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(RegistryUnavailableError, match="did not answer in time"):
        coordinator.poll()
    assert time.monotonic() - started < FAILS_WITHIN_S
    os.kill(own_redis.pid, signal.SIGCONT)
    eventually(coordinator.poll)


def test_a_wait_on_a_server_that_freezes_ends_on_time(
    own_redis: EmbeddedRedis, one: RedisLearner
) -> None:
    """The wait keeps its own time; it is the next call that finds the server silent."""
    while one.wait_news(0):
        pass
    timer = threading.Timer(0.3, os.kill, (own_redis.pid, signal.SIGSTOP))
    timer.start()
    started = time.monotonic()
    assert not one.wait_news(1.0)
    assert time.monotonic() - started == pytest.approx(1.0, abs=0.6)
    timer.join()
    os.kill(own_redis.pid, signal.SIGCONT)


def test_a_link_cut_while_idle_does_not_shorten_a_wait(
    own_redis: EmbeddedRedis, one: RedisLearner
) -> None:
    """Proxies drop idle links: the wait goes on over a new one, and still hears."""
    while one.wait_news(0):
        pass
    with admin(own_redis.url) as client:

        def cut_all() -> None:
            client.client_kill_filter(_type="normal", skipme=True)

        def cut_then_wake() -> None:
            cut_all()
            client.xadd("ddl:{demo}:news", {"what": "head"})

        timer = threading.Timer(0.2, cut_all)
        timer.start()
        started = time.monotonic()
        assert not one.wait_news(1.0)
        assert time.monotonic() - started == pytest.approx(1.0, abs=0.5)
        timer.join()
        timer = threading.Timer(0.2, cut_then_wake)
        timer.start()
        assert one.wait_news(10.0)
        timer.join()


def test_a_full_server_refuses_a_write_as_a_whole_and_reads_go_on(
    own_redis: EmbeddedRedis, coordinator: RedisCoordinator, one: RedisLearner
) -> None:
    """Nothing is half written; the lease can still be kept; once there is room all goes on."""
    held = coordinator.take_lease(lease(), ttl_s=10, min_epoch=0).lease
    assert held is not None
    one.announce(handin(), incarnation=1)
    before = coordinator.poll()
    commit = (held.epoch, head(1), [state(0, 1)], [receipt(handin())])
    with admin(own_redis.url) as client, closing(RedisReader(own_redis.url, RUN)) as reader:
        client.set("ballast", b"x" * 4_000_000)
        coordinator.set_rounds(held.epoch, [], wake=False)
        client.config_set("maxmemory", 3_000_000)
        for write in (
            lambda: one.beat(learner(step=1), [], settings_digest=KNOWN),
            lambda: one.announce(handin(fragment=1), incarnation=1),
            lambda: coordinator.commit(*commit),
        ):
            with pytest.raises(RegistryFullError, match="Redis is out of memory") as caught:
                write()
            assert caught.value.retryable
        telling = msgspec.structs.replace(held, store_s=0.25)
        assert coordinator.renew_lease(telling, ttl_s=10).held
        assert coordinator.poll()._replace(now=0) == before._replace(now=0)
        full = reader.view()
        assert full.head == head(0)
        assert full.used_bytes > full.max_bytes == 3_000_000
        client.config_set("maxmemory", 0)
        assert coordinator.commit(*commit)
        assert reader.view().head == head(1)


def test_a_demoted_server_is_named_and_left(
    own_redis: EmbeddedRedis, coordinator: RedisCoordinator, one: RedisLearner
) -> None:
    """Writes say that it is a replica, and leave no old connection to it behind."""
    with admin(own_redis.url) as client:
        client.config_set("repl-ping-replica-period", 3600)
        client.execute_command("REPLICAOF", "127.0.0.1", unused_port())
        client.config_set("replica-serve-stale-data", "yes")
        connected = len(client.client_list())
        with pytest.raises(RegistryUnavailableError, match="is a read-only replica"):
            one.beat(learner(), [], settings_digest=KNOWN)
        with pytest.raises(RegistryUnavailableError, match="is a read-only replica"):
            coordinator.commit(1, head(1), [], [])
        assert len(client.client_list()) == connected - 2
        client.config_set("replica-serve-stale-data", "no")
        with pytest.raises(RegistryUnavailableError, match="has no primary now"):
            coordinator.poll()
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert one.beat(learner(), [], settings_digest=KNOWN).registered


def test_a_server_that_cannot_save_is_named(own_redis: EmbeddedRedis, one: RedisLearner) -> None:
    """After a failed background save the server refuses writes; that is said in plain words."""
    with admin(own_redis.url) as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 100000")
        (own_redis.folder / "dump.rdb").mkdir()  # no file can take this name now
        deadline = time.monotonic() + 10
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] != "err":
            assert time.monotonic() < deadline
        with pytest.raises(RegistryUnavailableError, match="cannot save to its disk"):
            one.beat(learner(), [], settings_digest=KNOWN)


def test_a_password_is_asked_for_and_never_shown(own_redis: EmbeddedRedis) -> None:
    """Missing or wrong: not a thing to retry, and the cure is named."""
    with admin(own_redis.url) as client:
        client.config_set("requirepass", "open-sesame")
    host = own_redis.url.removeprefix("redis://")
    for url in (own_redis.url, f"redis://:guess-1@{host}", f"redis://:guess-1@{host}?protocol=3"):
        with closing(RedisServer(url)) as server:
            with pytest.raises(RegistryError, match="refuses the user name or password") as caught:
                server.call("TIME")
            assert not caught.value.retryable
            assert "guess-1" not in f"{caught.value} {caught.value!r} {server!r}"
    with closing(RedisServer(f"redis://:open-sesame@{host}")) as server:
        assert server.call("PING")


def test_a_user_without_rights_is_told_so(own_redis: EmbeddedRedis) -> None:
    """An access list that forbids scripts is named, not taken for an outage."""
    with admin(own_redis.url) as client:
        client.execute_command("ACL", "SETUSER", "eve", "on", ">pw", "~*", "+@all", "-@scripting")
    url = own_redis.url.replace("redis://", "redis://eve:pw@")
    with closing(RedisLearner(url, RUN)) as eve:
        with pytest.raises(RegistryError, match="does not let this user do that") as caught:
            eve.beat(learner(), [], settings_digest=KNOWN)
        assert not caught.value.retryable


def test_what_no_server_answers_is_unreachable() -> None:
    """A closed port fails at once, with the address and what to check."""
    server = RedisServer(f"redis://127.0.0.1:{unused_port()}/0")
    started = time.monotonic()
    with pytest.raises(RegistryUnavailableError, match="DDL_REDIS"):
        server.call("TIME")
    assert time.monotonic() - started < 1.0


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
