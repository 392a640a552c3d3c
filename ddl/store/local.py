"""`file://`: a directory of this machine, or one that several machines share.

Every object is written to a scratch file on the same file system, synced, and then given its name
in one step: by rename (mode "plain") or by hard link (mode "create", which never replaces, also
between processes and over NFS). Scratch files live in `.scratch`, which no key can name.

One limit that S3 has not: a key cannot be an object and a folder of other keys at the same time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ddl.errors import (
    AddressError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreUnavailableError,
)
from ddl.store.base import Body, Mode, ObjectInfo, Progress, check_key
from ddl.store.files import (
    CHUNK_BYTES,
    Source,
    disk_errors,
    scratch_file,
    sync_file,
    sync_folder,
    whole_file,
)

STALE_SCRATCH_S: Final = 3600.0
"""Scratch files untouched for this long belong to a process that was killed."""

_SCRATCH: Final = ".scratch"
_NO_LINKS: Final = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EPERM, errno.EMLINK}


class LocalStore:
    """The directory `root` as an object store (contract: `ddl.store.base.Store`)."""

    def __init__(self, root: Path, *, must_exist: bool = False) -> None:
        """Open the directory. Nothing is written: who only reads needs no right to.

        If only its last part is missing, and it need not exist, it is made by the first `put`. That
        also clears what dead writers left.
        Raises: AddressError (it or its parent is missing, or it is no directory), StoreDeniedError.
        """
        self.url = root.as_uri()
        self._root = root
        self._scratch = root / _SCRATCH
        self._made = False
        with disk_errors(f"cannot use {root} as a store", root):
            self._was_there = root.is_dir()
            _check_root(root, must_exist=must_exist)

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        target = self._path(key)
        self._make()
        with (
            Source(body) as source,
            self._errors(f"cannot write {key}", missing=StoreError),
            scratch_file(self._scratch) as (file, scratch),
        ):
            for chunk in source.chunks():
                file.write(chunk)
                if progress:
                    progress(len(chunk))
            sync_file(file)
            return self._publish(scratch, target, mode)

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        with self._errors(f"cannot read {key}"), self._path(key).open("rb", buffering=0) as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            view = memoryview(data)
            done = 0
            while num := file.readinto(view[done : done + CHUNK_BYTES]):
                done += num
                if progress:
                    progress(num)
        return data

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        offset = 0
        with whole_file(path) as copy:
            for chunk in self._chunks(key):
                copy.write_at(offset, chunk)
                offset += len(chunk)
                if progress:
                    progress(len(chunk))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(f"cannot read {key}"), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            with self._errors(f"cannot look up {key}"):
                stat = path.stat()
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, stat.st_size, stat.st_mtime) if path.is_file() else None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        if self._is_to_be_made():
            return
        with self._errors(f"cannot list {prefix}*"):
            yield from self._walk(self._root, "", prefix, start_after)

    def folders(self) -> Iterator[str]:
        if self._is_to_be_made():
            return
        with self._errors("cannot list the folders"), os.scandir(self._root) as found:
            for entry in found:
                if entry.is_dir() and not entry.name.startswith("."):
                    yield entry.name

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            path = self._path(key)
            try:
                with self._errors(f"cannot delete {key}"):
                    path.unlink()
            except ObjectNotFoundError:
                continue
            self._prune(path.parent)

    def sweep_uploads(self, *, older_than_s: float) -> int:
        if not self._scratch.is_dir() and not self._is_gone():
            return 0  # nobody has written here yet
        with self._errors("cannot write a scratch file"):
            with scratch_file(self._scratch) as (_, probe):
                now = probe.stat().st_mtime  # the file server's clock, which stamped the others too
            swept = 0
            for path in self._scratch.iterdir():
                try:
                    if now - path.stat().st_mtime > older_than_s:
                        path.unlink()
                        swept += 1
                except FileNotFoundError:
                    continue  # its writer has just finished
            return swept

    def close(self) -> None:
        """Nothing is held between calls."""

    def _is_to_be_made(self) -> bool:
        """Whether even the directory is still missing, because nothing was ever put."""
        return not self._was_there and not self._root.is_dir()

    def _make(self) -> None:
        """Make what is missing of the directory, once. One that was there is never made again."""
        if self._made:
            return
        what = f"cannot use {self._root} as a store"
        with disk_errors(what, self._root):
            try:
                for folder in (self._scratch,) if self._was_there else (self._root, self._scratch):
                    if not folder.is_dir():
                        folder.mkdir(exist_ok=True)
                        sync_folder(folder.parent)
            except FileNotFoundError as error:
                if self._was_there:
                    raise self._gone_error() from error
                raise StoreDeniedError(
                    f"{what}: no folder can be made there", hint="Name a directory on a disk"
                ) from error
        self._was_there = self._made = True
        self.sweep_uploads(older_than_s=STALE_SCRATCH_S)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _publish(self, scratch: Path, target: Path, mode: Mode) -> bool:
        """Give the finished scratch file its name; False if mode "create" found it taken."""
        while True:
            try:
                self._make_folders(target.parent)
                return _move(scratch, target, mode)
            except FileNotFoundError:
                if not scratch.exists():
                    raise
                # a `delete` pruned the folder between the two calls

    def _make_folders(self, folder: Path) -> None:
        if folder == self._root or folder.is_dir():
            return
        self._make_folders(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            if folder.is_file():
                raise
            return  # made by another process, which may prune it again: `_publish` goes on then
        sync_folder(folder.parent)

    def _prune(self, folder: Path) -> None:
        """Remove folders that hold nothing any more, as a bucket has none."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or already gone: either way nothing is left to do here
            folder = folder.parent

    def _walk(
        self, folder: Path, above: str, prefix: str, start_after: str
    ) -> Iterator[ObjectInfo]:
        """Objects under `folder` in key order: a folder sorts as its name with a slash."""
        try:
            with os.scandir(folder) as found:
                entries = sorted(
                    (above + entry.name + ("/" if entry.is_dir() else ""), entry)
                    for entry in found
                    if not entry.name.startswith(".")
                )
        except FileNotFoundError:
            if folder == self._root:
                raise
            return  # pruned since its parent was read
        for key, entry in entries:
            if key.endswith("/"):
                if _overlaps(key, prefix) and (key > start_after or start_after.startswith(key)):
                    yield from self._walk(Path(entry.path), key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since its folder was read
                yield ObjectInfo(key, stat.st_size, stat.st_mtime)

    def _chunks(self, key: str) -> Iterator[bytes]:
        with self._errors(f"cannot read {key}"), self._path(key).open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def _is_gone(self) -> bool:
        """Whether the directory was there, and is not any more: unmounted, most likely."""
        return self._was_there and not self._root.is_dir()

    def _gone_error(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"store directory {self._root} is gone", hint="Is its share still mounted?"
        )

    @contextmanager
    def _errors(
        self, what: str, *, missing: type[StoreError] = ObjectNotFoundError
    ) -> Iterator[None]:
        """Map every error of the operating system to ours. `what` says what failed."""
        what = f"{what} in {self.url}"
        with disk_errors(what, self._root):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                if self._is_gone():
                    raise self._gone_error() from error
                raise missing(f"{what}: {error.strerror}") from error


def _check_root(root: Path, *, must_exist: bool) -> None:
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    if not there.is_dir():
        what = "it" if there == root else str(there)
        raise AddressError(f"store directory {root}: {what} is a file", hint="Name a directory")
    if must_exist and there != root:
        raise AddressError(
            f"store directory {root} does not exist",
            hint="Check its name, or mount the share it stands for",
        )
    if there not in (root, root.parent):
        raise AddressError(
            f"store directory {root}: {root.parent} does not exist",
            hint=f"Create it with `mkdir -p {root.parent}`, or mount the share it stands for",
        )


def _move(scratch: Path, target: Path, mode: Mode) -> bool:
    if mode == "plain":
        scratch.replace(target)
    else:
        try:
            target.hardlink_to(scratch)
        except FileExistsError:
            # NFS repeats a request whose reply was lost: the name that is taken may be our own
            if scratch.stat().st_nlink == 1:
                return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StoreError(
                    f"the file system of {target.parent} has no hard links, "
                    "which writing an object exactly once needs",
                    hint="Use a directory on another file system, or s3://",
                ) from error
            raise
    with suppress(FileNotFoundError):  # deleted again already, and its folder with it
        sync_folder(target.parent)
    return True


def _overlaps(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)
