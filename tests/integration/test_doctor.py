"""`ddl doctor` against real servers: planted faults are found and named, healthy set-ups are not."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddl.clock import SystemClock
from ddl.config import StoreSettings
from ddl.doctor import Check, Target, accelerator, control, examine, machine
from ddl.doctor.torch_facts import Device, TorchFacts
from ddl.embedded import EmbeddedRedis
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.wire import canonical
from ddl.registry.coordinator import RedisCoordinator
from ddl.store.open_url import open_url
from tests.contract import registry_records as records
from tests.fault_proxy import Fault, FaultProxy
from tests.redis_servers import admin
from tests.servers import BUCKET, CREDENTIALS, S3Server
from tests.tcp_proxy import tcp_proxy

NOBODY = 65534
ALWAYS = float("inf")


class ClockAhead(SystemClock):
    """A machine whose clock is set wrong."""

    def wall(self) -> float:
        return super().wall() + 90.0


@pytest.fixture
def healthy(own_redis: EmbeddedRedis, tmp_path: Path) -> Target:
    """A Redis that keeps its data, a directory, and room for a spool."""
    return Target(
        redis_url=own_redis.url,
        store_url=(tmp_path / "store").as_uri(),
        spool=tmp_path / "spool",
        environment={},
        torch=False,
    )


@pytest.fixture
def no_redis(tmp_path: Path) -> Target:
    """A directory and a spool; the Redis is not what the test is about."""
    return Target(
        redis_url=None,
        store_url=(tmp_path / "store").as_uri(),
        spool=tmp_path / "spool",
        environment={},
        torch=False,
    )


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that this process may read and not write, whoever runs the tests."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o555)
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield folder
    os.seteuid(before)
    folder.rmdir()


def but(target: Target, **changes: Any) -> Target:
    """`target` with fields changed."""
    return Target(**{**vars(target), **changes})


def on_s3(target: Target, server: S3Server, *, endpoint_url: str = "", **more: Any) -> Target:
    """`target` with its store in the server's bucket."""
    settings = StoreSettings(endpoint_url=endpoint_url or server.endpoint_url)
    changes = {"environment": server.environment, "store_url": f"s3://{server.bucket}/doctor"}
    return but(target, store=settings, **{**changes, **more})


def find(target: Target, name: str) -> Check:
    """The worst check of that name."""
    found = [check for check in examine(target) if check.name == name]
    return max(found, key=lambda check: ("ok", "warn", "fail").index(check.status))


def not_ok(target: Target) -> list[Check]:
    return [check for check in examine(target) if check.status != "ok"]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---- healthy set-ups ----------------------------------------------------------------------------


def test_a_directory_and_a_redis_that_keeps_its_data(healthy: Target) -> None:
    """Nothing to say, torch included; and nothing is left in either of them."""
    assert not_ok(but(healthy, torch=True, bandwidth_bytes=1 << 20)) == []
    assert healthy.redis_url is not None
    assert healthy.store_url is not None
    with admin(healthy.redis_url) as client:
        assert client.keys("*") == []
    assert list(open_url(healthy.store_url).list("")) == []
    assert not healthy.spool.exists()


def test_a_bucket_behind_credentials_and_a_redis_with_a_password(
    healthy: Target, own_redis: EmbeddedRedis, weed: S3Server
) -> None:
    """SeaweedFS, which checks signatures, under a prefix; another database of the server."""
    with admin(own_redis.url) as client:
        client.config_set("requirepass", "sesame-1234")
    url = f"redis://:sesame-1234@127.0.0.1:{own_redis.port}/3"
    assert not_ok(on_s3(but(healthy, redis_url=url), weed, bandwidth_bytes=1 << 20)) == []


def test_another_bucket_and_a_redis_that_saves_snapshots(
    healthy: Target, own_redis: EmbeddedRedis, moto_server: S3Server
) -> None:
    """moto's server; no append-only file, but the snapshots that a Redis makes by default."""
    with admin(own_redis.url) as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1 300 100")
    assert not_ok(on_s3(healthy, moto_server)) == []


def test_a_hosted_redis_with_few_rights(
    healthy: Target, own_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """A user with the keys ddl:* alone and without CONFIG; a store in a folder with a blank."""
    with admin(own_redis.url) as client:
        client.execute_command(
            "ACL", "SETUSER", "ddl", "on", ">sesame", "~ddl:*", "+@all", "-@admin", "-@dangerous",
            "+info",
        )  # fmt: skip
    url = f"redis://ddl:sesame@127.0.0.1:{own_redis.port}/0?protocol=3"
    store_url = (tmp_path / "my store").as_uri()
    assert not_ok(but(healthy, redis_url=url, store_url=store_url)) == []


def test_a_store_without_the_newer_checksums(healthy: Target, weed: S3Server) -> None:
    """They are found to be refused, which is no fault, since none are sent (T12)."""
    with FaultProxy(weed.endpoint_url, refuse_checksums=True) as proxy:
        target = on_s3(healthy, weed, endpoint_url=proxy.endpoint_url)
        assert not_ok(target) == []
        assert "ddl sends none (cannot write _probe/" in find(target, "store.checksums").text


def test_a_run_is_found_by_its_join_address(healthy: Target, tmp_path: Path) -> None:
    """Redis tells where the store is; the store holds the very run that Redis knows."""
    store_url = (tmp_path / "runs").as_uri()
    entry = msgspec.structs.replace(records.entry(), store_url=store_url)
    store = open_url(store_url)
    store.put(ObjectKeys(records.RUN).run_record, canonical(entry.run))
    assert healthy.redis_url is not None
    RedisCoordinator(healthy.redis_url, records.RUN).rebuild(
        1, entry, records.head(), records.states(), []
    )
    joining = but(healthy, run=records.RUN, store_url=None)
    assert not_ok(joining) == []
    assert store_url in find(joining, "redis.run").text

    store.delete([ObjectKeys(records.RUN).run_record])
    missing = find(joining, "store.run")
    assert (missing.status, "does not hold the run" in missing.text) == ("fail", True)


# ---- Redis --------------------------------------------------------------------------------------


def test_redis_is_down(healthy: Target) -> None:
    """One line says so, and no other line speaks of Redis."""
    target = but(healthy, redis_url=f"redis://127.0.0.1:{closed_port()}/0")
    found = [check for check in examine(target) if check.name.startswith("redis.")]
    assert [(check.name, check.status) for check in found] == [("redis.reach", "fail")]
    assert "cannot be reached" in found[0].text


def test_redis_refuses_the_password(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """It is said, and the password is not."""
    with admin(own_redis.url) as client:
        client.config_set("requirepass", "sesame-1234")
    found = find(
        but(healthy, redis_url=f"redis://:wrong-5678@127.0.0.1:{own_redis.port}"), "redis.reach"
    )
    assert (found.status, "refuses the user name or password" in found.text) == ("fail", True)
    assert "wrong-5678" not in repr(found)


@pytest.mark.parametrize(("maxmemory", "status"), [("0", "warn"), ("512mb", "fail")])
def test_redis_may_drop_keys(
    healthy: Target, own_redis: EmbeddedRedis, maxmemory: str, status: str
) -> None:
    """The policy of a cache is named, with the command that changes it (T32)."""
    with admin(own_redis.url) as client:
        client.config_set("maxmemory", maxmemory)
        client.config_set("maxmemory-policy", "allkeys-lru")
    found = find(healthy, "redis.eviction")
    assert found.status == status
    assert "allkeys-lru" in found.text
    assert "CONFIG SET maxmemory-policy noeviction" in found.cure


def test_redis_is_nearly_full(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """Less than a run may take is left."""
    with admin(own_redis.url) as client:
        used = int(client.info()["used_memory"])
        client.config_set("maxmemory", used + 8 * 1024**2)
    found = find(healthy, "redis.memory")
    assert (found.status, "Raise maxmemory" in found.cure) == ("warn", True)


def test_redis_is_full(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """Writes are refused, and the memory is said to be the reason."""
    with admin(own_redis.url) as client:
        client.config_set("maxmemory", "100kb")
    assert "out of memory" in find(healthy, "redis.writes").text
    assert find(healthy, "redis.memory").status == "fail"


def test_redis_keeps_nothing(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """Neither an append-only file nor snapshots: a warning, for a run survives it."""
    with admin(own_redis.url) as client:
        client.config_set("appendonly", "no")
    found = find(healthy, "redis.persistence")
    assert (found.status, "appendonly yes" in found.cure) == ("warn", True)


def test_redis_cannot_save(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """Its working folder has gone: saving has failed, and the setting that stops writes acts."""
    with admin(own_redis.url) as client:
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
        shutil.rmtree(own_redis.folder)
        client.bgsave()
        deadline = time.monotonic() + 10
        while client.info()["rdb_last_bgsave_status"] == "ok":
            assert time.monotonic() < deadline
    assert "cannot save to its disk" in find(healthy, "redis.writes").text
    assert find(healthy, "redis.persistence").status == "fail"
    own_redis.folder.mkdir()
    with admin(own_redis.url) as client:
        client.config_set("save", "")  # or it would not end before it has saved


def test_redis_is_a_replica(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """It answers, and takes no writes."""
    with admin(own_redis.url) as client:
        client.replicaof("127.0.0.1", str(closed_port()))
    found = find(healthy, "redis.writes")
    assert (found.status, "read-only replica" in found.text) == ("fail", True)


def test_redis_is_too_old(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """What it says of itself is changed on the way."""
    with admin(own_redis.url) as client:
        said = str(client.info()["redis_version"]).encode()
    old = b"5.0.14"[: len(said)]
    words = {
        b"redis_version:" + said: b"redis_version:" + old,
        b"valkey_version": b"walkey_version",
    }
    with tcp_proxy(own_redis.port, replace=words) as port:
        found = find(but(healthy, redis_url=f"redis://127.0.0.1:{port}/0"), "redis.version")
    assert (found.status, old.decode() in found.text) == ("fail", True)


def test_redis_is_far_away(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """An answer takes a fifth of a second and more."""
    with tcp_proxy(own_redis.port, delay_s=1.1 * control.LATENCY_WARN_S) as port:
        found = find(but(healthy, redis_url=f"redis://127.0.0.1:{port}/0"), "redis.latency")
    assert found.status == "warn"


def test_redis_allows_few_connections(healthy: Target, own_redis: EmbeddedRedis) -> None:
    """As small hosted servers do."""
    with admin(own_redis.url) as client:
        client.config_set("maxclients", 12)
    assert "of maxclients 12" in find(healthy, "redis.clients").text


@pytest.mark.parametrize(
    ("missing", "name", "said"),
    [("-@scripting", "redis.writes", "does not let this user"), ("-info", "redis.info", "unknown")],
)
def test_redis_lacks_a_right(
    healthy: Target, own_redis: EmbeddedRedis, missing: str, name: str, said: str
) -> None:
    """Of a user who may do less than all."""
    with admin(own_redis.url) as client:
        client.execute_command("ACL", "SETUSER", "ddl", "on", "nopass", "~*", "+@all", missing)
    url = f"redis://ddl:any@127.0.0.1:{own_redis.port}/0"
    found = find(but(healthy, redis_url=url), name)
    assert found.status != "ok"
    assert said in found.text


def test_the_clock_of_this_machine_is_wrong(healthy: Target) -> None:
    """By how much, and in which direction."""
    found = find(but(healthy, clock=ClockAhead()), "redis.clock")
    assert (found.status, "90.0 s ahead of the server's" in found.text) == ("warn", True)


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("redis://10.1.2.3:6379/0", "warn"),
        ("redis://:sesame@redis.example.org/0", "warn"),
        ("rediss://:sesame@redis.example.org/0", "ok"),
        ("redis://127.0.0.1/0", "ok"),
        ("redis://[::1]:6379/0", "ok"),
        ("unix:///run/redis.sock", "ok"),
    ],
)
def test_what_can_be_overheard(url: str, status: str) -> None:
    """Plain connections to other machines, with and without a password; never told which."""
    found = control.link(url)
    assert found.status == status
    assert "sesame" not in repr(found)


def test_a_run_that_redis_does_not_know(healthy: Target) -> None:
    """By a join address that is a fault: nobody can say where its store is."""
    found = {check.name: check for check in not_ok(but(healthy, run="demo", store_url=None))}
    assert "has" not in found["redis.run"].cure
    assert "ddl coordinator start" in found["redis.run"].cure
    assert "no object store is named" in found["store.open"].text
    assert find(but(healthy, run="demo"), "redis.run").status == "ok"


# ---- the store ----------------------------------------------------------------------------------


def test_the_bucket_is_missing(no_redis: Target, moto_server: S3Server) -> None:
    """Told apart from a denied write (T55). SeaweedFS would make the bucket."""
    found = find(on_s3(no_redis, moto_server, store_url="s3://not-there/x"), "store.access")
    assert (found.status, "'not-there' does not exist" in found.text) == ("fail", True)


def test_the_secret_is_wrong(no_redis: Target, weed: S3Server) -> None:
    """The credentials are named as the reason, and not shown."""
    wrong = {**CREDENTIALS, "AWS_SECRET_ACCESS_KEY": "wrong-secret-0123456789"}
    found = find(on_s3(no_redis, weed, environment=wrong), "store.access")
    assert (found.status, "credentials are not accepted" in found.text) == ("fail", True)
    assert "wrong-secret" not in repr(found)


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("put", Fault(method="PUT")),
        ("get", Fault(method="GET", contains="_probe/")),
        ("list", Fault(method="GET", contains="list-type=2")),
        ("delete", Fault(method="DELETE")),
    ],
)
def test_a_right_is_missing(no_redis: Target, weed: S3Server, step: str, fault: Fault) -> None:
    """The step that failed is named, and the rights that are needed (T55)."""
    fault.status, fault.code, fault.times = 403, "AccessDenied", ALWAYS
    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.inject(fault)
        found = find(on_s3(no_redis, weed, endpoint_url=proxy.endpoint_url), "store.access")
    assert found.status == "fail"
    assert found.text.startswith(f"{step}: cannot")
    assert "s3:PutObject" in found.cure


def test_the_endpoint_is_down(no_redis: Target, weed: S3Server) -> None:
    """Within the patience that was asked for, and no more than one line."""
    nowhere = f"http://127.0.0.1:{closed_port()}"
    target = on_s3(no_redis, weed, endpoint_url=nowhere, patience_s=1.0)
    found = [check for check in examine(target) if check.name.startswith("store.")]
    assert [(check.name, check.status) for check in found] == [("store.access", "fail")]
    assert f"{nowhere} cannot be reached" in found[0].text


@pytest.mark.parametrize(
    ("endpoint_url", "cure"),
    [
        ("minio.example.org:9000", "https://minio.example.org:9000"),
        (f"https://s3.example.org/{BUCKET}", "Use https://s3.example.org, and s3://"),
        (f"https://{BUCKET}.s3.example.org", "Use https://s3.example.org"),
    ],
)
def test_the_endpoint_cannot_work(no_redis: Target, endpoint_url: str, cure: str) -> None:
    """Without its scheme, with the bucket in its path or its name: the cure is the address (T55)."""
    settings = StoreSettings(endpoint_url=endpoint_url)
    found = find(but(no_redis, store=settings, store_url=f"s3://{BUCKET}/x"), "store.open")
    assert found.status == "fail"
    assert cure in found.cure


def test_this_machines_clock_is_off_by_more_than_the_store_allows(
    no_redis: Target, weed: S3Server
) -> None:
    """The clock is named, and by how much it is off (T14)."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 1200))
    skewed = Fault(status=403, code="RequestTimeTooSkewed", headers={"Date": date}, times=ALWAYS)
    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.inject(skewed)
        found = find(on_s3(no_redis, weed, endpoint_url=proxy.endpoint_url), "store.access")
    assert "clock is 20.0 minutes behind" in found.text
    assert "set-ntp" in found.cure


def test_the_stores_clock_is_told(no_redis: Target, weed: S3Server) -> None:
    """Long before the store refuses this machine."""
    found = find(on_s3(no_redis, weed, clock=ClockAhead()), "store.clock")
    assert found.status == "warn"
    assert "s ahead of the store's" in found.text


def test_the_store_ignores_conditions(no_redis: Target, moto_server: S3Server) -> None:
    """Whole objects and objects in parts: both are written twice."""
    with FaultProxy(moto_server.endpoint_url) as proxy:
        proxy.inject(Fault(drop_headers=("If-None-Match",), times=ALWAYS))
        target = on_s3(no_redis, moto_server, endpoint_url=proxy.endpoint_url)
        found = {check.name: check for check in not_ok(target)}
    assert found["store.create-once"].status == "fail"
    assert "ignores If-None-Match" in found["store.create-once"].text
    assert "ignores If-None-Match when the parts" in found["store.large"].text


def test_the_store_has_no_multipart(no_redis: Target, weed: S3Server) -> None:
    """A function that is lacking is said to be, with what was asked."""
    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.inject(
            Fault(
                method="POST", contains="uploads", status=501, code="NotImplemented", times=ALWAYS
            )
        )
        found = find(on_s3(no_redis, weed, endpoint_url=proxy.endpoint_url), "store.large")
    assert (found.status, "lacks a function" in found.text) == ("fail", True)


def test_ranges_are_ignored(no_redis: Target, moto_server: S3Server) -> None:
    """It works, and costs: a warning (T47)."""
    with FaultProxy(moto_server.endpoint_url) as proxy:
        proxy.inject(Fault(drop_headers=("Range",), times=ALWAYS))
        target = on_s3(no_redis, moto_server, endpoint_url=proxy.endpoint_url)
        found = not_ok(target)
    assert [(check.name, check.status) for check in found[1:]] == [("store.range", "warn")]


def test_the_second_page_of_a_list_is_lost(no_redis: Target, weed: S3Server) -> None:
    """Objects would be overlooked."""
    empty = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.inject(Fault(contains="continuation-token", status=200, body=empty, times=ALWAYS))
        found = find(on_s3(no_redis, weed, endpoint_url=proxy.endpoint_url), "store.paging")
    assert (found.status, found.text) == (
        "fail",
        "of 2 objects, a list of several pages shows 1",
    )


def test_the_directory_is_read_only(no_redis: Target, unprivileged: Path) -> None:
    """Named, with what to change."""
    found = find(but(no_redis, store_url=(unprivileged / "store").as_uri()), "store.access")
    assert (found.status, "writable" in found.cure) == ("fail", True)


def test_the_directory_has_no_parent(no_redis: Target, tmp_path: Path) -> None:
    """A share that is not mounted is not made up for by an empty folder."""
    found = find(but(no_redis, store_url=(tmp_path / "a" / "b").as_uri()), "store.open")
    assert (found.status, "does not exist" in found.text) == ("fail", True)
    assert not (tmp_path / "a").exists()


def test_no_room_is_left(no_redis: Target) -> None:
    """Files cannot grow beyond half a MiB: the store and the spool both say that they are full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        found = {check.name: check for check in not_ok(no_redis)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "Free space" in found["store.large"].cure
    assert "cannot be written: File too large" in found["machine.spool"].text


# ---- this machine -------------------------------------------------------------------------------


def test_the_spool_cannot_be_written(no_redis: Target, unprivileged: Path, tmp_path: Path) -> None:
    """A folder of another user, or a file in its place."""
    denied = machine.spool(unprivileged / "spool")
    assert (denied.status, "Permission denied" in denied.text) == ("fail", True)
    assert "DDL_SPOOL" in denied.cure


def test_a_file_stands_where_the_spool_should(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "file").touch()
    found = machine.spool(tmp_path / "file" / "spool")
    assert (found.status, "Not a directory" in found.text) == ("fail", True)


def test_the_model_does_not_fit_into_the_spool(tmp_path: Path) -> None:
    """A disk that holds no whole model fails; one that holds barely one is a warning."""
    free = shutil.disk_usage(tmp_path).free
    assert machine.spool(tmp_path, model_bytes=2 * free).status == "fail"
    assert machine.spool(tmp_path, model_bytes=free * 2 // 3).status == "warn"


@pytest.mark.parametrize("given", ["64", "four", "0"])
def test_threads_that_do_not_fit(no_redis: Target, given: str) -> None:
    """More than there are cores, or no number at all."""
    found = machine.threads({"OMP_NUM_THREADS": given}, cores=8)
    assert found.status == "warn"
    assert "OMP_NUM_THREADS=8" in found.cure


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("10000 100000", 1)])
def test_a_containers_quota_counts(tmp_path: Path, quota: str, cores: int) -> None:
    """A container may have fewer cores than the machine shows."""
    (tmp_path / "cpu.max").write_text(quota)
    assert machine.usable_cores(tmp_path / "cpu.max") == min(cores, machine.usable_cores())


def test_torch_takes_more_threads_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked of torch itself, in a process of its own: a container may have a quota of one core."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = {check.name: check for check in accelerator.check_torch(cores=1)}
    assert "torch takes 2 threads" in found["torch.threads"].text
    assert found["torch.version"].status == "ok"


def test_torch_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the import said is passed on."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: no such file')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    found = list(accelerator.check_torch(cores=2))
    assert [check.status for check in found] == ["fail"]
    assert "libcudart.so: no such file" in found[0].text


def test_torch_does_not_see_the_gpu() -> None:
    """A build for the CPU beside the driver of a GPU; a device that does not compute."""
    facts = TorchFacts(version="2.13.0+cpu", built_for="", num_threads=1)
    [unseen] = accelerator.devices(facts, ["NVIDIA"])
    assert (unseen.status, "built without GPUs" in unseen.text) == ("warn", True)
    broken = msgspec.structs.replace(facts, devices=(Device(name="X", error="no kernel image"),))
    [device] = accelerator.devices(broken, ["NVIDIA"])
    assert (device.status, "no kernel image" in device.text) == ("fail", True)
