"""What every store must do. One suite for the directory store and for two S3 servers."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from ddl.config import StoreSettings
from ddl.errors import ObjectNotFoundError
from ddl.store.base import Body, Mode, Store
from ddl.store.hashed import get_hashed
from ddl.store.open_url import open_url
from ddl.store.probe import probe_create_once
from tests.servers import S3Server

PART_BYTES = 5 * 1024 * 1024


class Opened(NamedTuple):
    """How to open one store; can be sent to another process."""

    url: str
    settings: StoreSettings
    environment: dict[str, str]

    def open(self) -> Store:
        return open_url(self.url, settings=self.settings, environment=self.environment)


def _address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    if kind == "file":
        return Opened((tmp_path / "store").as_uri(), StoreSettings(), {})
    server: S3Server = request.getfixturevalue(kind)
    return Opened(f"s3://{server.bucket}/{tmp_path.name}", server.settings, server.environment)


@pytest.fixture(params=["file", "moto_server", "weed"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    return _address(request.param, request, tmp_path)


@pytest.fixture(params=["file", "weed"])
def racing_address(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Without moto, which checks for the key and puts it without a lock."""
    return _address(request.param, request, tmp_path)


@pytest.fixture
def store(address: Opened) -> Iterator[Store]:
    store = address.open()
    yield store
    store.close()


def keys_of(store: Store, prefix: str, **more: str) -> list[str]:
    return [found.key for found in store.list(prefix, **more)]


def blob(num_bytes: int) -> bytes:
    """Bytes in which no two stretches are alike."""
    return os.urandom(num_bytes)


SIZES = {
    "empty": 0,
    "one byte": 1,
    "one request": 1024 * 1024,
    "a byte beyond one request": 1024 * 1024 + 1,
    "exactly one part": PART_BYTES,
    "parts and a rest": 2 * PART_BYTES + 12_345,
}


@pytest.mark.parametrize("num_bytes", SIZES.values(), ids=SIZES.keys())
def test_what_is_put_is_got(store: Store, num_bytes: int, tmp_path: Path) -> None:
    """Any size comes back byte for byte, into memory or into a file."""
    data = blob(num_bytes)
    assert store.put("run/a/b.bin", data) is True
    got = store.get("run/a/b.bin")
    assert isinstance(got, bytearray)
    assert got == data
    hashed = get_hashed(store, "run/a/b.bin")
    assert hashed.data == data
    assert hashed.sha256 == hashlib.sha256(data).hexdigest()
    store.get_to_file("run/a/b.bin", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    found = store.head("run/a/b.bin")
    assert found is not None
    assert (found.key, found.bytes) == ("run/a/b.bin", num_bytes)


@pytest.mark.parametrize("num_bytes", [1000, 2 * PART_BYTES + 12_345])
def test_bodies(store: Store, num_bytes: int, tmp_path: Path) -> None:
    """An object may be written from any bytes-like object, of any item size, or from a file."""
    data = blob(num_bytes - num_bytes % 4)
    source = tmp_path / "source"
    source.write_bytes(data)
    bodies: list[Body] = [bytearray(data), memoryview(data), memoryview(data).cast("I"), source]
    for index, body in enumerate(bodies):
        assert store.put(f"run/{index}", body) is True
        assert store.get(f"run/{index}") == data


@pytest.mark.parametrize("num_bytes", [100, 2 * PART_BYTES + 1])
def test_progress_adds_up_to_the_size(store: Store, num_bytes: int, tmp_path: Path) -> None:
    """The numbers given to `progress` sum to the size of the object, in every direction."""
    lock = threading.Lock()
    moved = {"up": 0, "down": 0, "file": 0}

    def count(what: str) -> Callable[[int], None]:
        def add(num: int) -> None:
            with lock:
                moved[what] += num

        return add

    store.put("run/x", blob(num_bytes), progress=count("up"))
    store.get("run/x", progress=count("down"))
    store.get_to_file("run/x", tmp_path / "x", progress=count("file"))
    assert moved == {"up": num_bytes, "down": num_bytes, "file": num_bytes}


def test_an_error_of_progress_ends_the_transfer(store: Store, tmp_path: Path) -> None:
    """What `progress` raises comes out as it is, and nothing half-written can be seen."""

    class EnoughError(Exception):
        pass

    def enough(_: int) -> None:
        raise EnoughError

    store.put("run/there", blob(2 * PART_BYTES))
    for num_bytes in (100, 2 * PART_BYTES):
        with pytest.raises(EnoughError):
            store.put("run/x", blob(num_bytes), progress=enough)
    with pytest.raises(EnoughError):
        store.get("run/there", progress=enough)
    with pytest.raises(EnoughError):
        store.get_to_file("run/there", tmp_path / "there", progress=enough)
    assert keys_of(store, "run/") == ["run/there"]
    assert list(tmp_path.glob("**/*there*")) == list(tmp_path.glob("store/run/there"))
    assert list(tmp_path.glob("*.part")) == []


def test_put_again_with_the_same_bytes(store: Store) -> None:
    """A plain put may be repeated."""
    for _ in range(2):
        assert store.put("run/x", b"same") is True
    assert store.get("run/x") == b"same"


@pytest.mark.parametrize("num_bytes", [10, 2 * PART_BYTES])
def test_create_once(store: Store, num_bytes: int) -> None:
    """The second create under a key says False and changes nothing; also in parts."""
    first, second = blob(num_bytes), blob(num_bytes)
    assert store.put("run/x", first, mode="create") is True
    assert store.put("run/x", second, mode="create") is False
    assert store.get("run/x") == first
    store.delete(["run/x"])
    assert store.put("run/x", second, mode="create") is True


def test_probe_finds_create_once(store: Store) -> None:
    """The probe says yes to a store that keeps the promise, and leaves nothing."""
    assert probe_create_once(store) is True
    assert keys_of(store, "") == []


def test_range(store: Store) -> None:
    """Ranges are exact, shorter at the end, and empty beyond it."""
    data = blob(1000)
    store.put("run/x", data)
    assert store.get_range("run/x", 0, 10) == data[:10]
    assert store.get_range("run/x", 990, 10) == data[990:]
    assert store.get_range("run/x", 990, 100) == data[990:]
    assert store.get_range("run/x", 1000, 5) == b""
    assert store.get_range("run/x", 2000, 5) == b""
    assert store.get_range("run/x", 5, 0) == b""
    store.put("run/empty", b"")
    assert store.get_range("run/empty", 0, 5) == b""


def test_what_is_not_there(store: Store, tmp_path: Path) -> None:
    """Reading a missing object raises; looking it up or deleting it does not."""
    store.put("run/a/b", b"x")
    for key in ("run/missing", "run/a", "run/a/b/c"):
        with pytest.raises(ObjectNotFoundError, match=key):
            store.get(key)
        with pytest.raises(ObjectNotFoundError):
            store.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFoundError):
            store.get_range(key, 0, 0)
        with pytest.raises(ObjectNotFoundError):
            store.get_to_file(key, tmp_path / "copy")
        assert store.head(key) is None
    store.delete(["run/missing", "run/a/b", "run/a/b"])
    assert not (tmp_path / "copy").exists()
    assert keys_of(store, "") == []


def test_list_is_by_string_prefix(store: Store) -> None:
    """A prefix is a string, not a folder, as in S3."""
    keys = ["a-b/1", "a.b", "a/b/2", "a/b/10", "a/c", "a0", "ab/x", "b/1"]
    for key in keys:
        store.put(key, b"x")
    for prefix in ("", "a", "a/", "a/b", "a/b/1", "a/b/2/", "a-", "c"):
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert sorted(keys_of(store, prefix)) == expected, prefix


def test_list_of_a_folder_is_in_key_order(store: Store) -> None:
    """Keys of one folder ascend, and a listing can begin after any of them or between them."""
    keys = [f"run/commits/{seq:04d}.json" for seq in (12, 3, 100, 7, 1)]
    for key in keys:
        store.put(key, b"{}")
    assert keys_of(store, "run/commits/") == sorted(keys)
    for after in [*keys, "run/commits/0005", "run/commits/9", "run/commits/"]:
        expected = sorted(key for key in keys if key > after)
        assert keys_of(store, "run/commits/", start_after=after) == expected, after


def test_folders_are_the_first_parts_of_keys(store: Store) -> None:
    """Each once, however much lies under it; an object that lies under none gives none."""
    for key in ("a/1", "a/b/2", "ab/3", "single"):
        store.put(key, b"x")
    assert sorted(store.folders()) == ["a", "ab"]
    store.delete(["a/1", "a/b/2"])
    assert "ab" in store.folders()


def test_list_says_size_and_time(store: Store) -> None:
    """A listing knows the size and, within a day of ours, the time of an object."""
    store.put("run/x", b"12345")
    (found,) = store.list("run/")
    looked_up = store.head("run/x")
    assert looked_up is not None
    assert found.bytes == looked_up.bytes == 5
    assert abs(found.modified_at - looked_up.modified_at) < 2


@pytest.mark.slow
def test_list_beyond_one_page(store: Store) -> None:
    """More than 1,000 objects are listed completely: of one folder in order, of many folders too."""
    commits = [f"run/commits/{seq:012d}.json" for seq in range(1005)]
    nested = [
        f"run/joins/{who}/{n:06d}.json" for who in ("a", "a-b", "a.b", "ab") for n in range(5)
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"{}"), [*commits, *nested]))
    assert keys_of(store, "run/commits/") == commits
    assert keys_of(store, "run/commits/", start_after=commits[1002]) == commits[1003:]
    assert sorted(keys_of(store, "run/")) == sorted([*commits, *nested])
    store.delete([*commits, *nested])
    assert keys_of(store, "") == []


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.hidden", "a\\b", "a\nb", "x" * 1025],
)
def test_bad_keys_are_refused(store: Store, key: str) -> None:
    """Keys that could leave the store, or that some store cannot hold, never reach it."""
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete([key]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="not an object key"):
            call()


def test_many_threads(store: Store) -> None:
    """One store serves several threads at once."""
    failures: list[BaseException] = []

    def work(me: int) -> None:
        try:
            for i in range(5):
                data = blob(1000 * (me + 1) + i)
                store.put(f"run/{me}/{i}", data)
                assert store.get(f"run/{me}/{i}") == data
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(me,)) for me in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(keys_of(store, "run/")) == 40


def race(address: Opened, me: int, num_rounds: int, barrier: object, won: object) -> None:
    store = address.open()
    for index in range(num_rounds):
        barrier.wait(timeout=60)  # type: ignore[attr-defined]
        if store.put(f"run/{index:03d}", f"written by {me}".encode(), mode="create"):
            won.put((index, me))  # type: ignore[attr-defined]
    store.close()


def test_create_once_between_processes(racing_address: Opened) -> None:
    """Of four processes that create one key at the same moment, exactly one is told that it did."""
    num_rounds, num_processes = 15, 4
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(num_processes)
    won = context.Queue()
    processes = [
        context.Process(target=race, args=(racing_address, me, num_rounds, barrier, won))
        for me in range(num_processes)
    ]
    for process in processes:
        process.start()
    winners = dict(won.get(timeout=60) for _ in range(num_rounds))
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0] * num_processes
    assert won.empty()
    assert sorted(winners) == list(range(num_rounds))
    store = racing_address.open()
    for index, me in winners.items():
        assert store.get(f"run/{index:03d}") == f"written by {me}".encode()
    store.close()


@pytest.mark.parametrize("mode", ["plain", "create"])
def test_sweep_leaves_living_uploads_and_whole_objects(store: Store, mode: Mode) -> None:
    """A sweep removes nothing that is younger than it was told, and no object at all."""
    store.put("run/x", b"x", mode=mode)
    assert store.sweep_uploads(older_than_s=3600) == 0
    assert store.sweep_uploads(older_than_s=0) == 0
    assert keys_of(store, "") == ["run/x"]
