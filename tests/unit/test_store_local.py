"""`file://`: crashes, full disks, missing rights, and file systems that differ."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ddl.errors import (
    AddressError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ddl.store.local import STALE_SCRATCH_S, LocalStore

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def scratch_of(root: Path) -> list[Path]:
    return list((root / ".scratch").iterdir())


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` in another process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from ddl.store.local import LocalStore

def die(_):
    os.kill(os.getpid(), signal.SIGKILL)

LocalStore(Path(sys.argv[1])).put("run/x", bytes(3 * 2**20), mode=sys.argv[2], progress=die)
"""


@pytest.mark.parametrize("mode", ["plain", "create"])
def test_a_killed_writer_leaves_no_object(root: Path, mode: str) -> None:
    """What SIGKILL leaves is no object, does not stop the next writer, and goes once it is old."""
    store = LocalStore(root)
    killed = run_python(KILLED, root, mode)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = scratch_of(root)
    assert left.stat().st_size > 0
    assert list(store.list("")) == []
    assert store.put("run/x", b"x", mode="create") is True
    LocalStore(root).put("run/y", b"y")
    assert scratch_of(root) == [left]  # young: its writer might be alive
    old = time.time() - STALE_SCRATCH_S - 60
    os.utime(left, (old, old))
    LocalStore(root).put("run/z", b"z")
    assert scratch_of(root) == []
    assert store.get("run/x") == b"x"


def test_sweep_counts_what_it_removes(store: LocalStore, root: Path) -> None:
    """Only leftovers older than asked for are swept."""
    store.put("run/x", b"x")
    for name, age_s in (("a", 10), ("b", 100), ("c", 1000)):
        path = root / ".scratch" / name
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age_s,) * 2)
    assert store.sweep_uploads(older_than_s=50) == 2
    assert [path.name for path in scratch_of(root)] == ["a"]


def test_a_failed_put_leaves_nothing(store: LocalStore, root: Path) -> None:
    """An error in the middle of a put removes what was written."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("run/x", b"x", progress=interrupt)
    assert scratch_of(root) == []
    assert list(store.list("")) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No space, or no quota, is said so; nothing half-written stays."""
    store.put("run/w", b"w")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError, match=r"cannot write run/x .*Free space") as caught:
        store.put("run/x", b"x")
    assert caught.value.retryable
    assert scratch_of(root) == []
    assert store.head("run/x") is None


LIMITED = """
import resource, sys
from pathlib import Path
from ddl.errors import StoreFullError
from ddl.store.local import LocalStore

store = LocalStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
try:
    store.put("run/x", bytes(3 * 2**20))
except StoreFullError as error:
    print(error)
"""


def test_a_real_limit_of_the_system(root: Path) -> None:
    """A file size limit of the system (`ulimit -f`) is met as a full store."""
    limited = run_python(LIMITED, root)
    assert "cannot write run/x" in limited.stdout, limited.stderr
    assert scratch_of(root) == []


OPENED = """
import os, sys
from pathlib import Path
from ddl.errors import StoreDeniedError
from ddl.store.local import LocalStore

if os.getuid() == 0:  # root may write everywhere
    os.setuid(65534)
try:
    LocalStore(Path(sys.argv[1])).put("run/x", b"x")
except StoreDeniedError as error:
    print(error)
"""


@pytest.mark.parametrize("exists", [True, False])
def test_an_unwritable_directory_is_refused(tmp_path: Path, exists: bool) -> None:
    """Opening a directory that this user cannot write names it and says what to do."""
    parent = tmp_path / "shared"
    parent.mkdir()
    root = parent / "store"
    if exists:
        root.mkdir()
        root.chmod(0o555)
    parent.chmod(0o555)
    for folder in (tmp_path, *tmp_path.parents):  # pytest's folders are closed to other users
        if "pytest-" in str(folder):
            folder.chmod(0o755)
    denied = run_python(OPENED, root)
    assert f"cannot use {root} as a store" in denied.stdout, denied.stderr
    assert "Make" in denied.stdout
    assert "writable" in denied.stdout


def test_what_cannot_be_a_store(tmp_path: Path) -> None:
    """A missing parent, and a file anywhere in the path, are refused; each with its own cure."""
    with pytest.raises(AddressError, match=r"missing does not exist.*mkdir -p"):
        LocalStore(tmp_path / "missing" / "store")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AddressError, match="it is a file"):
        LocalStore(tmp_path / "file")
    for below in ("store", "a/store"):
        with pytest.raises(AddressError, match=r"/file is a file\. Name a directory"):
            LocalStore(tmp_path / "file" / below)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="only Linux has /proc")
def test_a_file_system_that_takes_no_folders() -> None:
    """That is said of the place, not taken for a share that is gone."""
    with pytest.raises(StoreDeniedError, match="cannot use /proc/store as a store"):
        LocalStore(Path("/proc/store")).put("run/x", b"x")


def test_who_only_reads_writes_nothing(tmp_path: Path) -> None:
    """A directory that is not there reads as an empty store until the first `put` makes it; one that
    must be there is refused instead."""
    root = tmp_path / "store"
    with pytest.raises(AddressError, match="store does not exist"):
        LocalStore(root, must_exist=True)
    store = LocalStore(root)
    assert store.head("run/x") is None
    assert list(store.list("")) == []
    assert list(store.folders()) == []
    store.delete(["run/x"])
    assert store.sweep_uploads(older_than_s=0.0) == 0
    with pytest.raises(ObjectNotFoundError):
        store.get("run/x")
    assert not root.exists()
    store.put("run/x", b"x")
    root.joinpath(".scratch").rmdir()  # as if made by hand, or copied without hidden files
    reader = LocalStore(root, must_exist=True)
    assert reader.get("run/x") == b"x"
    assert list(reader.folders()) == ["run"]
    assert not root.joinpath(".scratch").exists()


def test_a_share_that_is_gone_is_not_an_empty_store(store: LocalStore, root: Path) -> None:
    """When the directory itself vanishes (unmounted), nothing reads as missing or is made anew."""
    store.put("run/x", b"x")
    moved = root.rename(root.with_name("elsewhere"))
    for call in (
        lambda: store.get("run/x"),
        lambda: store.head("run/x"),
        lambda: list(store.list("")),
        lambda: store.put("run/y", b"y"),
        lambda: store.delete(["run/x"]),
    ):
        with pytest.raises(StoreUnavailableError, match="is gone"):
            call()
    assert not root.exists()
    moved.rename(root)
    assert store.get("run/x") == b"x"


def test_a_file_system_without_hard_links(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create-once is refused with the reason, rather than done by a way that can race."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", unsupported)
    with pytest.raises(StoreError, match=r"no hard links.*s3://"):
        store.put("run/x", b"x", mode="create")
    assert scratch_of(root) == []


def test_a_link_whose_reply_was_lost(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS may say "exists" about the link that it has just made for us: that is a success."""
    link = Path.hardlink_to

    def link_twice(self: Path, target: Path) -> None:
        link(self, target)
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", link_twice)
    assert store.put("run/x", b"ours", mode="create") is True
    assert store.put("run/x", b"theirs", mode="create") is False
    assert store.get("run/x") == b"ours"


def test_folders_vanish_with_their_last_object(store: LocalStore, root: Path) -> None:
    """Deleting leaves no empty folders, and other objects alone."""
    for key in ("run/a/b/c", "run/a/d", "run2/x"):
        store.put(key, b"x")
    store.delete(["run/a/b/c"])
    assert not (root / "run/a/b").exists()
    store.delete(["run/a/d"])
    assert not (root / "run").exists()
    assert [found.key for found in store.list("")] == ["run2/x"]


def test_put_while_the_folder_is_being_pruned(store: LocalStore) -> None:
    """Deleting the last object of a folder never fails a put into it."""

    def work(mine: str, num_rounds: int) -> None:
        for index in range(num_rounds):
            data = str(index).encode()
            assert store.put(mine, data) is True
            assert store.get(mine) == data
            store.delete([mine])

    with ThreadPoolExecutor(2) as pool:
        for worker in [pool.submit(work, f"run/a/b/{name}", 300) for name in "xy"]:
            worker.result()
    assert list(store.list("")) == []


def test_a_key_cannot_be_object_and_folder(store: LocalStore, root: Path) -> None:
    """The one thing that S3 allows and a directory cannot hold is an error, not a mix-up."""
    store.put("run/x", b"x")
    store.put("run/d/y", b"y")
    for key in ("run/x/y", "run/d"):
        with pytest.raises(StoreError, match=f"cannot write {key}") as caught:
            store.put(key, b"y")
        assert type(caught.value) is StoreError
    with pytest.raises(ObjectNotFoundError):
        store.get("run/d")
    assert scratch_of(root) == []


def test_listing_is_in_whole_key_order(store: LocalStore) -> None:
    """Here, unlike on some servers, order holds across folders too, from any start."""
    keys = ["a-b/1", "a.b", "a/b/2", "a/b/10", "a/c", "a0", "ab/x", "b/1"]
    for key in reversed(keys):
        store.put(key, b"x")
    assert [found.key for found in store.list("")] == sorted(keys)
    for after in [*keys, "a/b", "a/b/", "a/b/1", "zzz"]:
        found = [found.key for found in store.list("a", start_after=after)]
        assert found == sorted(k for k in keys if k.startswith("a") and k > after), after


def test_objects_are_readable_for_others(store: LocalStore, root: Path) -> None:
    """Files follow the umask, so that several users can share a store."""
    before = os.umask(0o022)
    try:
        store.put("run/x", b"x")
    finally:
        os.umask(before)
    assert (root / "run/x").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_of_the_reader_is_not_the_stores_fault(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a download fills the local disk, the error names the local file."""
    store.put("run/x", b"x")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFullError, match=f"cannot write {tmp_path / 'copy'}"):
        store.get_to_file("run/x", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
