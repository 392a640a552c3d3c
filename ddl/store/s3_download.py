"""Downloads: parallel pieces, each of which goes on where it was cut off."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, Final, Protocol

from botocore.exceptions import ClientError

from ddl.errors import IntegrityError
from ddl.store.base import Progress
from ddl.store.parallel import run_all
from ddl.store.retry import Attempts, Stop
from ddl.store.s3_calls import Calls
from ddl.store.s3_errors import BadReplyError, status_of

_FIRST_BYTES: Final = 1024 * 1024
"""The first request asks for this much: enough for any record, and it tells the size of the rest."""

_READ_BYTES: Final = 64 * 1024
_HASH_BYTES: Final = 1024 * 1024
"""So much is hashed at once, at least: less costs more in waking than in work."""

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")


class Sink(Protocol):
    """Where a download goes."""

    def resize(self, size: int) -> None:
        """Called once, before the first write, with the size of the whole object."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """Called from several threads, never twice for one offset."""
        ...


class WholeSink:
    """An object in memory."""

    def __init__(self) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        self.data = bytearray(size)
        self._view = memoryview(self.data)  # a bytearray would copy what it is assigned once more

    def write_at(self, offset: int, data: bytes) -> None:
        self._view[offset : offset + len(data)] = data


class HashedSink(WholeSink):
    """The same; hashed from its beginning as far as its pieces have come, while others still come."""

    def __init__(self) -> None:
        super().__init__()
        self._sha256 = hashlib.sha256()
        self._hashed = 0
        self._come: dict[int, int] = {}
        """Start -> end of what was written beyond `_reached`."""
        self._reached = 0
        self._lock = Lock()
        self._hashing = Lock()

    def write_at(self, offset: int, data: bytes) -> None:
        super().write_at(offset, data)
        with self._lock:
            self._come[offset] = offset + len(data)
            while self._reached in self._come:
                self._reached = self._come.pop(self._reached)
            is_worth_it = self._reached - self._hashed >= _HASH_BYTES
        if is_worth_it and self._hashing.acquire(blocking=False):
            try:
                self._hash()
            finally:
                self._hashing.release()

    def hexdigest(self) -> str:
        """Of the whole; called once, after the last write."""
        self._hash()
        return self._sha256.hexdigest()

    def _hash(self) -> None:
        """One thread at a time; the others go on meanwhile, as hashing lets go of the GIL."""
        reached = self._reached
        self._sha256.update(self._view[self._hashed : reached])
        self._hashed = reached


class StretchSink:
    """One stretch of an object in memory, from byte `start`."""

    def __init__(self, start: int) -> None:
        self.data = bytearray()
        self._start = start

    def resize(self, size: int) -> None:
        """The rest of the object is of no interest."""

    def write_at(self, offset: int, data: bytes) -> None:
        at = offset - self._start
        self.data[at : at + len(data)] = data


class Downloader:
    """Reads objects of one bucket."""

    def __init__(self, calls: Calls, pool: Executor, bucket: str, part_bytes: int) -> None:
        self._calls = calls
        self._pool = pool
        self._bucket = bucket
        self._part_bytes = part_bytes

    def fetch(self, name: str, sink: Sink, progress: Progress | None) -> None:
        """Read the whole object under the full key `name`.

        Raises: ObjectNotFoundError, StoreError; IntegrityError if the object changed meanwhile.
        """
        stop = self._calls.stop.child()
        piece = partial(_Piece, self._bucket, name, sink, progress)
        first = piece(0, _FIRST_BYTES, None)
        self._run(first, stop)
        size = first.size
        assert size is not None
        if first.done == size:
            return
        # cut where uploads are cut: stores keep an object in such parts, and read them whole
        next_edge = (first.done // self._part_bytes + 1) * self._part_bytes
        edges = [first.done, *range(next_edge, size, self._part_bytes), size]
        pieces = (piece(start, end, size) for start, end in pairwise(edges))
        run_all(self._pool, stop, (partial(self._run, rest, stop) for rest in pieces))

    def fetch_range(self, name: str, start: int, length: int) -> bytes:
        """Read at most `length` > 0 bytes from `start`. Raises: ObjectNotFoundError, StoreError."""
        sink = StretchSink(start)
        self._run(_Piece(self._bucket, name, sink, None, start, start + length, None), None)
        return bytes(sink.data)

    def _run(self, piece: _Piece, stop: Stop | None) -> None:
        self._calls.run(
            f"read s3://{self._bucket}/{piece.name}",
            piece.read,
            stop=stop,
            num_bytes=piece.size or piece.stop - piece.done,
        )


class _Piece:
    """Bytes `done` to `stop` of an object; `done` grows, so another attempt costs only the rest."""

    def __init__(
        self,
        bucket: str,
        name: str,
        sink: Sink,
        progress: Progress | None,
        start: int,
        stop: int,
        size: int | None,
    ) -> None:
        self.name = name
        self.done = start
        self.stop = stop
        self.size = size
        """Of the whole object; None until the first reply."""
        self._bucket = bucket
        self._sink = sink
        self._progress = progress

    def read(self, client: Any, attempts: Attempts) -> None:
        """One attempt at what is left."""
        span = f"bytes={self.done}-{self.stop - 1}"
        try:
            reply = client.get_object(Bucket=self._bucket, Key=self.name, Range=span)
        except ClientError as error:
            if (
                status_of(error) == 416 and self.size is None
            ):  # nothing lies there: empty, or past its end
                self._learn_size(self.done)
                return
            raise
        with closing(reply["Body"]) as body:
            self._take(reply, body.read, attempts.received)

    def _take(
        self, reply: dict[str, Any], read: Callable[[int], bytes], received: Callable[[], None]
    ) -> None:
        skip = self._start_of(reply)
        while self.done < self.stop:
            chunk = read(min(_READ_BYTES, skip or self.stop - self.done))
            if not chunk:
                raise BadReplyError(f"{self.stop - self.done} bytes of {self.name} are missing")
            received()
            if skip:
                skip -= len(chunk)
                continue
            self._sink.write_at(self.done, chunk)
            self.done += len(chunk)
            if self._progress:
                self._progress(len(chunk))

    def _start_of(self, reply: dict[str, Any]) -> int:
        """How many bytes of the reply come before ours, and the size of the object on the way.

        A server or proxy that ignores `Range` sends everything from the start; then the first
        piece takes it all, so that no other piece is needed.
        """
        span = _CONTENT_RANGE.fullmatch(reply.get("ContentRange", ""))
        start, size = (int(span[1]), int(span[2])) if span else (0, int(reply["ContentLength"]))
        if start > self.done:
            raise BadReplyError(f"asked for {self.name} from byte {self.done}, got from {start}")
        if not span and self.size is None and self.done == 0:
            self.stop = size
        self._learn_size(size)
        return self.done - start

    def _learn_size(self, size: int) -> None:
        if self.size is None:
            self.size = size
            self.stop = min(self.stop, size)
            self._sink.resize(size)
        elif self.size != size:
            raise IntegrityError(
                f"s3://{self._bucket}/{self.name} changed from {self.size} to {size} bytes "
                "while it was read",
                hint="Objects are immutable; something else writes to this bucket",
            )
