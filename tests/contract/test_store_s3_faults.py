"""`s3://` when the store, the network, the clock or the credentials let it down.

A fault-injecting proxy stands in front of a real server. Waits are not slept but recorded: the
clock jumps instead.
"""

from __future__ import annotations

import email.utils
import hashlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Never

import pytest

from ddl.config import StoreSettings
from ddl.errors import (
    CredentialsExpiredError,
    IntegrityError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ddl.store import s3_client
from ddl.store.probe import probe_create_once
from ddl.store.retry import Retried, RetryPolicy, Stop
from ddl.store.s3 import S3Store
from tests.coordinating import eventually
from tests.fault_proxy import Fault, FaultProxy
from tests.servers import S3Server

MIB = 1024 * 1024
PART_BYTES = 5 * MIB


@dataclass
class JumpingClock:
    """A clock that waits move, and nothing else."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    while_waiting: Callable[[], None] | None = None

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return time.time()

    def pause(self, _: Stop, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now += wait_s
        if self.while_waiting:
            self.while_waiting()


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def proxy(weed: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(weed.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def lenient_proxy(moto_server: S3Server) -> Iterator[FaultProxy]:
    """In front of moto, which does not check signatures, so headers can be taken away."""
    with FaultProxy(moto_server.endpoint_url) as proxy:
        yield proxy


def open_store(
    proxy: FaultProxy,
    server: S3Server,
    clock: JumpingClock,
    prefix: str,
    *,
    environment: Mapping[str, str] | None = None,
    notices: list[Retried] | None = None,
) -> S3Store:
    return S3Store(
        server.bucket,
        prefix,
        StoreSettings(endpoint_url=proxy.endpoint_url, part_bytes=PART_BYTES),
        environment=server.environment if environment is None else environment,
        policy=RetryPolicy(clock=clock, random=lambda: 1.0, pause=clock.pause),
        on_retry=None if notices is None else notices.append,
    )


@pytest.fixture
def store(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
) -> Iterator[S3Store]:
    store = open_store(proxy, weed, clock, tmp_path.name)
    yield store
    store.close()


@pytest.fixture
def lenient_store(
    lenient_proxy: FaultProxy,
    moto_server: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
) -> Iterator[S3Store]:
    store = open_store(lenient_proxy, moto_server, clock, tmp_path.name)
    yield store
    store.close()


def unfinished_uploads(server: S3Server, prefix: str) -> int:
    reply = server.client().list_multipart_uploads(Bucket=server.bucket, Prefix=f"{prefix}/")
    return len(reply.get("Uploads", []))


# ---- throttling and failing servers (T48) -------------------------------------------------------


def test_slow_down_is_waited_out_with_growing_waits(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock
) -> None:
    """Six SlowDowns in a row delay a put by a doubling, bounded wait each; then it succeeds."""
    proxy.inject(Fault(method="PUT", status=503, code="SlowDown", times=6))
    assert store.put("run/x", b"x") is True
    assert clock.waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert proxy.count("PUT") == 7


def test_every_request_of_a_multipart_upload_may_be_throttled(
    store: S3Store, proxy: FaultProxy
) -> None:
    """Starting, parts and completion each survive six SlowDowns; the object is whole."""
    data = os.urandom(2 * PART_BYTES + 7)
    proxy.inject(Fault(method="POST", contains="?uploads", status=503, code="SlowDown", times=6))
    proxy.inject(Fault(method="PUT", status=503, code="SlowDown", times=6))
    proxy.inject(Fault(method="POST", contains="uploadId", status=503, code="SlowDown", times=6))
    assert store.put("run/x", data) is True
    assert store.get("run/x") == data
    assert proxy.count("POST") == 14
    assert proxy.count("PUT") == 9


@pytest.mark.parametrize("spelling", ["seconds", "date"])
def test_retry_after_is_honoured(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock, spelling: str
) -> None:
    """After a 429 the next try comes no sooner than the server asked for."""
    now = time.time()
    retry_after = "3" if spelling == "seconds" else email.utils.formatdate(now + 3, usegmt=True)
    headers = {"Retry-After": retry_after, "Date": email.utils.formatdate(now, usegmt=True)}
    proxy.inject(Fault(method="PUT", status=429, code="TooManyRequests", headers=headers, times=2))
    assert store.put("run/x", b"x") is True
    assert clock.waits == [pytest.approx(3.2), pytest.approx(3.4)]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "InternalError"),
        (502, ""),
        (504, ""),
        (408, "RequestTimeout"),
        (400, "RequestTimeout"),
        (409, "OperationAborted"),
    ],
)
def test_passing_failures_are_tried_again(
    store: S3Store, proxy: FaultProxy, status: int, code: str
) -> None:
    """Every kind of request survives two failures that pass."""
    calls: list[Callable[[], object]] = [
        lambda: store.put("run/x", b"x"),
        lambda: store.get("run/x"),
        lambda: store.get_range("run/x", 0, 1),
        lambda: store.head("run/x"),
        lambda: list(store.list("run/")),
        lambda: store.sweep_uploads(older_than_s=60),
        lambda: store.delete(["run/x"]),
    ]
    for call in calls:
        proxy.clear()
        proxy.inject(Fault(status=status, code=code, times=2))
        call()
        # HEAD replies have no body; a GET asks for the name of the failure when it is a 400
        assert len(proxy.requests) in (3, 4)


def test_giving_up_says_why_and_retries_are_not_multiplied(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
) -> None:
    """When patience is over, one error names place, reason and tries; each try was one request."""
    notices: list[Retried] = []
    store = open_store(proxy, weed, clock, "giving-up", notices=notices)
    proxy.inject(Fault(status=503, code="SlowDown", times=1000))
    with pytest.raises(
        StoreUnavailableError, match=r"write s3://.*/run/x.*503 SlowDown.*\d+ tries"
    ):
        store.put("run/x", b"x")
    assert clock.now <= 60
    assert len(proxy.requests) == len(clock.waits) + 1 == len(notices) + 1
    assert [notice.attempt for notice in notices] == list(range(1, len(notices) + 1))
    assert [notice.wait_s for notice in notices] == clock.waits
    store.close()


def test_an_absurd_retry_after_is_not_waited_for(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock
) -> None:
    """A server that asks for an hour gets an error at once, to be dealt with by the caller."""
    proxy.inject(Fault(status=503, code="SlowDown", headers={"Retry-After": "3600"}))
    with pytest.raises(StoreUnavailableError, match="SlowDown"):
        store.get("run/x")
    assert clock.waits == []


def test_full_store(store: S3Store, proxy: FaultProxy) -> None:
    """A store without room is one clear message, at once; nothing half-written is left."""
    proxy.inject(Fault(method="PUT", status=507, code="XMinioStorageFull", times=1000))
    with pytest.raises(StoreFullError, match="XMinioStorageFull"):
        store.put("run/x", os.urandom(2 * PART_BYTES))
    proxy.clear()
    assert store.head("run/x") is None


# ---- downloads that break (T47) -----------------------------------------------------------------


def test_a_cut_download_goes_on_where_it_was(store: S3Store, proxy: FaultProxy) -> None:
    """Cuts cost only what had not come: the next request asks for the rest of its piece."""
    data = os.urandom(6 * MIB)
    store.put("run/x", data)
    proxy.clear()
    proxy.inject(Fault(method="GET", cut_after=256 * 1024))
    moved: list[int] = []
    assert store.get("run/x", progress=moved.append) == data
    assert sum(moved) == len(data)
    assert all(num > 0 for num in moved)
    first, second, *rest = (request.headers["range"] for request in proxy.requests)
    assert (first, second) == (f"bytes=0-{MIB - 1}", f"bytes={256 * 1024}-{MIB - 1}")
    assert set(rest) == {
        f"bytes={MIB}-{PART_BYTES - 1}",
        f"bytes={PART_BYTES}-{6 * MIB - 1}",
    }


def test_cuts_in_parallel_pieces(store: S3Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Pieces that run at the same time are each resumed; the file is whole or not there."""
    data = os.urandom(4 * PART_BYTES)
    store.put("run/x", data)
    proxy.inject(Fault(method="GET", cut_after=MIB // 3, times=7))
    store.get_to_file("run/x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == data

    proxy.inject(Fault(method="GET", cut_after=MIB // 3, times=7))
    hashed = store.get_hashed("run/x")
    assert hashed.data == data
    assert hashed.sha256 == hashlib.sha256(data).hexdigest()

    proxy.inject(Fault(method="GET", contains="run/x", status=403, code="AccessDenied", times=99))
    with pytest.raises(StoreDeniedError):
        store.get_to_file("run/x", tmp_path / "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_a_stalled_download_is_cut_and_resumed(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that falls silent without closing is given up on, and the rest asked for again."""
    monkeypatch.setattr(s3_client, "READ_TIMEOUT_S", 0.3)
    store = open_store(proxy, weed, clock, "stalled")
    data = os.urandom(3 * MIB)
    store.put("run/x", data)
    proxy.inject(Fault(method="GET", stall_after=100_000))
    assert store.get("run/x") == data
    assert len(clock.waits) == 1
    store.close()


def test_a_download_that_drips_ends(store: S3Store, proxy: FaultProxy, clock: JumpingClock) -> None:
    """Progress renews patience, but the whole is bounded by a time that its size allows."""
    store.put("run/x", os.urandom(10 * MIB))
    proxy.inject(Fault(method="GET", cut_after=64 * 1024, times=10_000))
    clock.while_waiting = lambda: setattr(clock, "now", clock.now + 50)
    with pytest.raises(StoreUnavailableError, match="not finished after"):
        store.get("run/x")
    assert clock.now < 60 + 10 * MIB / (32 * 1024) + 60


def test_ignored_ranges(lenient_store: S3Store, lenient_proxy: FaultProxy) -> None:
    """A server that sends everything whatever was asked for costs one request, also after a cut."""
    data = os.urandom(3 * PART_BYTES)
    lenient_store.put("run/x", data)
    lenient_proxy.clear()
    everything = Fault(method="GET", drop_headers=("Range",), times=1000)
    lenient_proxy.inject(everything)
    assert lenient_store.get("run/x") == data
    assert lenient_proxy.count("GET") == 1
    assert lenient_store.get_range("run/x", 3 * MIB, 10) == data[3 * MIB : 3 * MIB + 10]

    lenient_proxy.clear()
    lenient_proxy.inject(Fault(method="GET", drop_headers=("Range",), cut_after=4 * MIB))
    lenient_proxy.inject(everything)
    assert lenient_store.get("run/x") == data
    assert lenient_proxy.count("GET") == 2


def test_an_object_that_changes_while_it_is_read(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock
) -> None:
    """Two sizes in one download are an integrity error, never a mixture of two objects."""
    store.put("run/x", os.urandom(4 * MIB))
    proxy.inject(Fault(method="GET", cut_after=1000))

    def other_writer() -> None:
        store.put("run/x", os.urandom(3 * MIB))

    clock.while_waiting = other_writer
    with pytest.raises(IntegrityError, match="changed from"):
        store.get("run/x")


# ---- create-once with lost replies --------------------------------------------------------------


@pytest.mark.parametrize("num_bytes", [100, 2 * PART_BYTES], ids=["one request", "in parts"])
@pytest.mark.parametrize("fault", ["cut", "503"])
@pytest.mark.parametrize("mode", ["create", "plain"])
def test_lost_reply_to_a_write_that_succeeded(
    store: S3Store, proxy: FaultProxy, num_bytes: int, fault: str, mode: str
) -> None:
    """The server wrote the object but its reply was lost: the writer learns that it won."""
    data = os.urandom(num_bytes)
    method, contains = ("PUT", "run/x") if num_bytes == 100 else ("POST", "uploadId")
    lost = Fault(method=method, contains=contains, forward=True)
    if fault == "cut":
        lost.cut = True
    else:
        lost.status, lost.code = 503, "ServiceUnavailable"
    proxy.inject(lost)
    assert store.put("run/x", data, mode=mode) is True  # type: ignore[arg-type]
    assert store.get("run/x") == data
    assert store.put("run/x", b"another", mode="create") is False


@pytest.mark.parametrize("same_size", [True, False])
@pytest.mark.parametrize("num_bytes", [100, 2 * PART_BYTES], ids=["one request", "in parts"])
def test_lost_race_behind_a_cut_connection(
    store: S3Store,
    proxy: FaultProxy,
    clock: JumpingClock,
    weed: S3Server,
    tmp_path: Path,
    num_bytes: int,
    same_size: bool,
) -> None:
    """Our request never arrived and another writer was faster: the answer is False, not our 412."""
    method, contains = ("PUT", "run/x") if num_bytes == 100 else ("POST", "uploadId")
    proxy.inject(Fault(method=method, contains=contains, cut=True))
    theirs = os.urandom(num_bytes if same_size else 7)

    def other_writer() -> None:
        weed.client().put_object(Bucket=weed.bucket, Key=f"{tmp_path.name}/run/x", Body=theirs)

    clock.while_waiting = other_writer
    assert store.put("run/x", os.urandom(num_bytes), mode="create") is False
    assert store.get("run/x") == theirs
    assert unfinished_uploads(weed, tmp_path.name) == 0


def test_a_store_that_ignores_the_condition_is_found_out(
    lenient_store: S3Store, lenient_proxy: FaultProxy
) -> None:
    """The probe says no to a store that lets every writer win."""
    lenient_proxy.inject(Fault(method="PUT", drop_headers=("If-None-Match",), times=1000))
    assert probe_create_once(lenient_store) is False
    assert list(lenient_store.list("")) == []


def test_a_put_that_is_cut_off_leaves_nothing(
    store: S3Store,
    weed: S3Server,
    tmp_path: Path,
) -> None:
    """A writer that dies between the head and the end of its request leaves no empty object.

    SeaweedFS 4.48 makes one, which would block a log record for ever; a Content-MD5 prevents it.
    """

    class DiedError(Exception):
        pass

    for after in (0, 100_000):

        def die(num: int, left: list[int] = [after]) -> None:  # noqa: B006 - a counter per round
            left[0] -= num
            if left[0] < 0:
                raise DiedError

        with pytest.raises(DiedError):
            store.put("run/x", os.urandom(300_000), mode="create", progress=die)
    reply = weed.client().list_objects_v2(Bucket=weed.bucket, Prefix=tmp_path.name)
    assert reply["KeyCount"] == 0


# ---- credentials, rights, clock (T20, T55) ------------------------------------------------------


def test_expired_credentials_are_read_again(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A put that meets ExpiredToken goes through once the credentials file has been replaced."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(key_id: str) -> None:
        secret = weed.environment["AWS_SECRET_ACCESS_KEY"]
        file.write_text(f"[lab]\naws_access_key_id={key_id}\naws_secret_access_key={secret}\n")

    write("EXPIRED")
    store = open_store(proxy, weed, clock, tmp_path.name, environment={"AWS_PROFILE": "lab"})
    expired = Fault(signed_by="EXPIRED", status=400, code="ExpiredToken", times=1000)
    proxy.inject(expired)

    def renew() -> None:
        if len(clock.waits) == 4:
            write(weed.environment["AWS_ACCESS_KEY_ID"])

    clock.while_waiting = renew
    data = os.urandom(2 * PART_BYTES)
    assert store.put("run/x", data) is True
    assert len(clock.waits) == 4
    assert store.get("run/x") == data
    store.close()


@pytest.mark.parametrize("operation", ["put", "parts", "head"])
def test_credentials_that_stay_expired(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock, operation: str
) -> None:
    """One clear, retryable error after a bounded number of unhurried tries."""
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("run/x", b"x"),
        "parts": lambda: store.put("run/x", os.urandom(2 * PART_BYTES)),
        "head": lambda: store.head("run/x"),
    }
    if operation == "parts":
        proxy.inject(Fault(method="PUT", contains="partNumber", status=403, code="ExpiredToken"))
    proxy.inject(Fault(method="", status=403, code="ExpiredToken", times=10_000))
    with pytest.raises(CredentialsExpiredError, match="credentials have expired") as caught:
        calls[operation]()
    assert caught.value.retryable
    assert 5 <= len(clock.waits) <= 20


def test_rotated_keys_are_tried_once_more(store: S3Store, proxy: FaultProxy) -> None:
    """An unknown key or a bad signature is worth one more try, with credentials read again."""
    for code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        proxy.clear()
        proxy.inject(Fault(status=403, code=code))
        assert store.put("run/x", b"x") is True
        proxy.clear()
        proxy.inject(Fault(status=403, code=code, times=1000))
        with pytest.raises(StoreDeniedError, match=f"not accepted.*{code}"):
            store.put("run/x", b"x")
        assert len(proxy.requests) == 2


def test_wrong_secret(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
) -> None:
    """A wrong secret is named as such by a real server, and never printed."""
    secret = "wrong-secret-0123456789"
    environment = {**weed.environment, "AWS_SECRET_ACCESS_KEY": secret}
    store = open_store(proxy, weed, clock, "wrong-secret", environment=environment)
    with pytest.raises(StoreDeniedError, match="not accepted") as caught:
        store.put("run/x", b"x")
    assert secret not in str(caught.value)
    store.close()


def test_no_credentials(
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without credentials the message says where they are looked for; nothing is retried."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for environment, match in (
        ({}, "no credentials were found.*AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "missing"}, "profile .missing. could not be found"),
    ):
        store = open_store(proxy, weed, clock, "nobody", environment=environment)
        with pytest.raises(StoreDeniedError, match=match):
            store.put("run/x", b"x")
        store.close()
    assert clock.waits == []
    assert proxy.requests == []


def test_denied_and_missing_bucket_are_told_apart(
    store: S3Store,
    proxy: FaultProxy,
    weed: S3Server,
    clock: JumpingClock,
) -> None:
    """A missing right names the rights; a missing bucket names the bucket. Neither is retried."""
    proxy.inject(Fault(status=403, code="AccessDenied"))
    with pytest.raises(StoreDeniedError, match=r"AccessDenied.*s3:PutObject"):
        store.put("run/x", b"x")
    proxy.inject(Fault(status=403, times=1000))
    with pytest.raises(StoreDeniedError, match="403"):
        store.head("run/x")
    proxy.clear()
    elsewhere = S3Store(
        "no-such-bucket",
        "",
        StoreSettings(endpoint_url=proxy.endpoint_url),
        environment=weed.environment,
        policy=RetryPolicy(clock=clock, pause=clock.pause),
    )
    for call in (
        lambda: elsewhere.get("run/x"),
        lambda: list(elsewhere.list("")),
    ):
        with pytest.raises(StoreDeniedError, match="bucket 'no-such-bucket' does not exist"):
            call()
    elsewhere.close()
    assert clock.waits == []


def test_wrong_region_or_redirect(store: S3Store, proxy: FaultProxy) -> None:
    """A region that is not the bucket's is named, with the setting to change.

    So is a redirect of everything, which botocore would follow in circles.
    """
    for status, code in (
        (400, "AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect"),
        (301, ""),
        (307, ""),
    ):
        proxy.clear()
        proxy.inject(Fault(status=status, code=code, times=1000))
        with pytest.raises(StoreDeniedError, match=r"region .*store\.region"):
            store.put("run/x", b"x")
        assert len(proxy.requests) == 1


@pytest.mark.parametrize(("minutes", "side"), [(20, "behind"), (-20, "ahead of")])
def test_clock_skew_is_named(
    store: S3Store, proxy: FaultProxy, clock: JumpingClock, minutes: int, side: str
) -> None:
    """A machine whose clock is off learns by how much and to which side, after a few tries."""
    date = email.utils.formatdate(time.time() + 60 * minutes, usegmt=True)
    skewed = Fault(status=403, code="RequestTimeTooSkewed", headers={"Date": date}, times=1000)
    proxy.inject(skewed)
    with pytest.raises(StoreDeniedError, match=rf"clock is (19\.9|20\.0) minutes {side}"):
        store.get("run/x")
    assert len(clock.waits) == 2

    proxy.clear()
    skewed.times = 1
    proxy.inject(skewed)
    assert store.put("run/x", b"x") is True  # the clock was set meanwhile


# ---- stores and networks that differ (T12) ------------------------------------------------------


def test_a_store_that_refuses_sdk_checksums(
    weed: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
) -> None:
    """Everything works at a store that answers 501 to the checksums of newer SDKs."""
    with FaultProxy(weed.endpoint_url, refuse_checksums=True) as proxy:
        store = open_store(proxy, weed, clock, tmp_path.name)
        data = os.urandom(2 * PART_BYTES)
        assert store.put("run/small", b"x", mode="create") is True
        assert store.put("run/large", data, mode="create") is True
        assert store.get("run/large") == data
        assert [found.key for found in store.list("run/")] == ["run/large", "run/small"]
        store.delete(["run/small", "run/large"])
        assert clock.waits == []
        store.close()


def test_a_function_that_the_store_lacks(store: S3Store, proxy: FaultProxy) -> None:
    """501 is about the store, not about keys or the network; it is not retried."""
    proxy.inject(Fault(status=501, code="NotImplemented"))
    with pytest.raises(StoreError, match="lacks a function") as caught:
        store.put("run/x", b"x", mode="create")
    assert not isinstance(caught.value, StoreDeniedError | StoreUnavailableError)


def test_something_that_is_no_store(store: S3Store, proxy: FaultProxy) -> None:
    """A web page that says "200 OK" to a put is not taken for success (a captive portal)."""
    page = Fault(status=200, body=b"<html>Welcome, please log in</html>", times=1000)
    proxy.inject(page)
    with pytest.raises(StoreUnavailableError, match="not as an S3 store"):
        store.put("run/x", b"x")
    with pytest.raises(StoreUnavailableError, match="not as an S3 store"):
        list(store.list("run/"))
    proxy.clear()
    assert store.head("run/x") is None


def test_nothing_listens(weed: S3Server, clock: JumpingClock) -> None:
    """An endpoint that nobody serves is named in the error."""
    with FaultProxy(weed.endpoint_url) as proxy:
        store = open_store(proxy, weed, clock, "nothing")
    with pytest.raises(StoreUnavailableError, match=f"{proxy.endpoint_url} cannot be reached"):
        store.get("run/x")
    store.close()


@pytest.mark.parametrize(("errno", "tries"), [(socket.EAI_NONAME, 6), (socket.EAI_AGAIN, 11)])
def test_a_host_that_does_not_exist(
    errno: int, tries: int, weed: S3Server, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is no host's is given a few seconds; a name service that fails, the whole minute."""

    def look_up(*_: object, **__: object) -> Never:
        raise socket.gaierror(errno, "planted")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    settings = StoreSettings(endpoint_url="http://nowhere.example:9000")
    store = S3Store(
        weed.bucket,
        "nowhere",
        settings,
        environment=weed.environment,
        policy=RetryPolicy(clock=clock, random=lambda: 1.0, pause=clock.pause),
    )
    with pytest.raises(StoreUnavailableError, match=rf"nowhere.example.*\({tries} tries"):
        store.get("run/x")
    store.close()


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    certificate, key = folder / "ca.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


def test_own_certificate_authority(
    weed: S3Server,
    clock: JumpingClock,
    tmp_path: Path,
) -> None:
    """A private CA works through AWS_CA_BUNDLE; without it the message names that variable."""
    certificate, context = make_certificate(tmp_path)
    with FaultProxy(weed.endpoint_url, tls=context) as proxy:
        trusting = {**weed.environment, "AWS_CA_BUNDLE": str(certificate)}
        store = open_store(proxy, weed, clock, tmp_path.name, environment=trusting)
        data = os.urandom(2 * PART_BYTES)
        assert store.put("run/x", data) is True
        assert store.get("run/x") == data
        store.close()
        store = open_store(proxy, weed, clock, tmp_path.name)
        with pytest.raises(StoreDeniedError, match=r"not trusted.*AWS_CA_BUNDLE"):
            store.get("run/x")
        store.close()
    assert clock.waits == []


def test_forward_proxy(
    weed: S3Server,
    proxy: FaultProxy,
    clock: JumpingClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HTTP_PROXY is used."""
    monkeypatch.setenv("HTTP_PROXY", proxy.endpoint_url)
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    store = S3Store(weed.bucket, tmp_path.name, weed.settings, environment=weed.environment)
    store.put("run/x", b"x")
    assert store.get("run/x") == b"x"
    assert proxy.requests
    assert all(request.through_proxy for request in proxy.requests)
    store.close()


# ---- leaving, and what is left behind (T58) -----------------------------------------------------


def test_close_ends_a_wait(
    proxy: FaultProxy,
    weed: S3Server,
) -> None:
    """A put that waits for another try ends with an error as soon as the store is closed."""
    waiting = threading.Event()
    store = S3Store(
        weed.bucket,
        "closing",
        StoreSettings(endpoint_url=proxy.endpoint_url),
        environment=weed.environment,
        policy=RetryPolicy(first_wait_s=50, wait_max_s=50, random=lambda: 1.0),
        on_retry=lambda _: waiting.set(),
    )
    proxy.inject(Fault(method="PUT", status=503, code="SlowDown", times=1000))
    failures: list[Exception] = []

    def put() -> None:
        try:
            store.put("run/x", os.urandom(2 * PART_BYTES))
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    assert waiting.wait(30)
    store.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(failure) for failure in failures] == [StoreUnavailableError]
    with pytest.raises(StoreUnavailableError):
        store.get("run/x")


def test_parts_of_a_failed_upload_are_removed(
    store: S3Store,
    proxy: FaultProxy,
    weed: S3Server,
    tmp_path: Path,
) -> None:
    """A failing part ends the upload and takes the others away; taken-back bytes are reported."""
    moved: list[int] = []
    proxy.inject(
        Fault(method="PUT", contains="partNumber=3", status=403, code="AccessDenied", times=1000)
    )
    with pytest.raises(StoreDeniedError):
        store.put("run/x", os.urandom(4 * PART_BYTES), progress=moved.append)
    assert proxy.count("DELETE", "uploadId") == 1
    assert unfinished_uploads(weed, tmp_path.name) == 0
    assert store.head("run/x") is None


def test_progress_of_a_part_that_is_sent_again(store: S3Store, proxy: FaultProxy) -> None:
    """Bytes that have to be sent again are taken back, so the sum is the size."""
    moved: list[int] = []
    data = os.urandom(3 * PART_BYTES)
    proxy.inject(Fault(method="PUT", contains="partNumber", status=500, times=3))
    assert store.put("run/x", data, progress=moved.append) is True
    assert sum(moved) == len(data)
    assert -PART_BYTES in moved


KILLED = """
import os, signal, sys
from ddl.config import StoreSettings
from ddl.store.open_url import open_url

endpoint, url = sys.argv[1:]
store = open_url(url, settings=StoreSettings(endpoint_url=endpoint, part_bytes=5 * 2**20))
left = 6 * 2**20

def die(num):
    global left
    left -= num
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

store.put("run/x", bytes(20 * 2**20), progress=die)
"""


def test_sweep_removes_what_killed_writers_left(
    store: S3Store,
    weed: S3Server,
    tmp_path: Path,
) -> None:
    """Uploads of killed processes are not objects, are left alone while young, and then removed."""
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, weed.endpoint_url, store.url]
        killed = subprocess.run(
            command, check=False, env={**os.environ, **weed.environment}, timeout=60
        )
        assert killed.returncode == -signal.SIGKILL
    assert unfinished_uploads(weed, tmp_path.name) == 2
    assert list(store.list("")) == []
    assert store.sweep_uploads(older_than_s=3600) == 0
    removed: list[int] = []

    def are_gone() -> bool:
        removed.append(store.sweep_uploads(older_than_s=0))
        return unfinished_uploads(weed, tmp_path.name) == 0

    # the server's time stamps are whole seconds: in the second of their start they are none old
    eventually(are_gone, what="no unfinished upload")
    assert sum(removed) == 2


def test_missing_object_is_no_failure(store: S3Store, clock: JumpingClock) -> None:
    """A missing object is reported at once."""
    with pytest.raises(ObjectNotFoundError):
        store.get("run/x")
    assert clock.waits == []
