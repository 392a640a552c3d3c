"""Bytes on local disk: what objects are written from, and files that appear only when whole."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from ddl.errors import StoreDeniedError, StoreError, StoreFullError, StoreUnavailableError
from ddl.store.base import Body

CHUNK_BYTES: Final = 1024 * 1024
"""How much is moved between two calls of a progress function."""

_DENIED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PASSING: Final = {
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.EMFILE, errno.ENFILE),
}


@contextmanager
def disk_errors(what: str, folder: Path) -> Iterator[None]:
    """Map every `OSError` of the block to ours; `what` failed, in or under `folder`."""
    try:
        yield
    except OSError as error:
        what = f"{what}: {error.strerror or error}"
        if error.errno in _DENIED:
            raise StoreDeniedError(
                what, hint=f"Make {folder} writable for the user that runs ddl, or use another"
            ) from error
        if error.errno in _FULL:
            raise StoreFullError(
                what, hint=f"Free space on the disk, or raise the quota, of {folder}"
            ) from error
        if error.errno in _PASSING:
            raise StoreUnavailableError(what) from error
        raise StoreError(what) from error


class Source:
    """The bytes of a `Body`, readable at any offset and from several threads at once."""

    def __init__(self, body: Body) -> None:
        """Open `body`. Raises: OSError if it is a path that cannot be read."""
        if isinstance(body, Path):
            self._file: IO[bytes] | None = body.open("rb", buffering=0)
            self._view = memoryview(b"")
            self.size = os.fstat(self._file.fileno()).st_size
        else:
            self._file = None
            self._view = memoryview(body).cast("B")
            self.size = len(self._view)

    def read_at(self, offset: int, length: int) -> bytes | memoryview:
        """At most `length` bytes from `offset`; none at the end. No copy if `body` is in memory."""
        if self._file is None:
            return self._view[offset : offset + length]
        return os.pread(self._file.fileno(), length, offset)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes in order, piece by piece."""
        offset = 0
        while chunk := self.read_at(offset, CHUNK_BYTES):
            yield chunk
            offset += len(chunk)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


@contextmanager
def scratch_file(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new empty file in `folder`, gone at the end unless it was renamed.

    Not `tempfile`: its files are for their owner only, and a store may be shared between users.
    """
    path = folder / f".{secrets.token_hex(12)}.part"
    with path.open("xb") as file:
        try:
            yield file, path
        finally:
            path.unlink(missing_ok=True)


def sync_file(file: IO[bytes]) -> None:
    """Bring what was written to `file` to stable storage."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to stable storage, so that a new one survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileSink:
    """A file being written at any offset and from several threads at once."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self._path = path

    def resize(self, size: int) -> None:
        """Set the length of the file. Raises: StoreError about this machine's disk."""
        with disk_errors(f"cannot write {self._path}", self._path.parent):
            os.ftruncate(self._file.fileno(), size)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `offset`. Raises: StoreError about this machine's disk."""
        view = memoryview(data)
        with disk_errors(f"cannot write {self._path}", self._path.parent):
            while view:
                num = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[num:], offset + num


@contextmanager
def whole_file(path: Path) -> Iterator[FileSink]:
    """A file to be written that takes the name `path` only if the block ends without an error."""
    with disk_errors(f"cannot write {path}", path.parent), scratch_file(path.parent) as made:
        file, scratch = made
        yield FileSink(file, path)
        sync_file(file)
        scratch.replace(path)
        sync_folder(path.parent)
