"""The body of an upload: reports its progress, can be rewound, and stops when it is told to."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ddl.store.base import Progress
from ddl.store.files import Source


class PartBody:
    """`length` bytes of a source from `start`, as the file that boto3 wants.

    boto3 reads a body twice: first to sign it, then to send it; only the second counts. It also
    wraps whatever a body raises, so the block raises that again as it was:

        with PartBody(...) as body:
            client.put_object(Body=body, ...)

    If the block fails, what was reported as moved is taken back.
    """

    def __init__(
        self,
        source: Source,
        start: int,
        length: int,
        *,
        check: Callable[[], None],
        progress: Progress | None,
    ) -> None:
        """`check` is called before `progress` whenever bytes were sent, and may raise."""
        self._source = source
        self._start = start
        self._length = length
        self._check = check
        self._progress = progress
        self._position = 0
        self._sent = 0
        self._failure: Exception | None = None
        self.sending = False
        """Set by `begin_sending` when signing is done."""

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes | memoryview:
        left = self._length - self._position
        chunk = self._source.read_at(
            self._start + self._position, left if size < 0 else min(size, left)
        )
        self._position += len(chunk)
        if self.sending and chunk:
            try:
                self._check()
                self._sent += len(chunk)
                if self._progress:
                    self._progress(len(chunk))
            except Exception as error:
                self._failure = error
                raise
        return chunk

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        if self.sending:  # a redirect: the same body goes out again, after signing it again
            self._take_back()
        return self._position

    def __enter__(self) -> PartBody:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if error is None:
            return
        self._take_back()
        if self._failure is not None and self._failure is not error:
            raise self._failure from None

    def _take_back(self) -> None:
        self.sending = False
        if self._progress and self._sent:
            self._progress(-self._sent)
        self._sent = 0


def begin_sending(request: Any, **_: object) -> None:
    """Hook of botocore (`before-send`): from here on, reading the body means sending it."""
    if isinstance(request.body, PartBody):
        request.body.sending = True
