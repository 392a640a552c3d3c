"""Uploads: one request for a small object, parallel parts for a large one."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from concurrent.futures import Executor
from enum import Enum
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError

from ddl.store.base import Mode, Progress
from ddl.store.files import Source
from ddl.store.parallel import run_all
from ddl.store.retry import Attempts
from ddl.store.s3_body import PartBody
from ddl.store.s3_calls import Calls
from ddl.store.s3_errors import BadReplyError, code_of, status_of

_PARTS_MAX: Final = 10_000


class Outcome(Enum):
    """How an upload ended."""

    WRITTEN = 1
    TAKEN = 2
    """Mode "create": the key existed before our first request; nothing was changed."""
    UNCLEAR = 3
    """A reply was lost and the key exists now: ours or another's."""


class Uploader:
    """Writes objects of one bucket."""

    def __init__(self, calls: Calls, pool: Executor, bucket: str, part_bytes: int) -> None:
        self._calls = calls
        self._pool = pool
        self._bucket = bucket
        self._part_bytes = part_bytes

    def put(self, name: str, source: Source, mode: Mode, progress: Progress | None) -> Outcome:
        """Write `source` under the full key `name`. Raises: StoreError."""
        target = {"Bucket": self._bucket, "Key": name}
        if source.size <= self._part_bytes:
            return self._put_whole(target, source, mode, progress)
        return self._put_parts(target, source, mode, progress)

    def _put_whole(
        self, target: dict[str, str], source: Source, mode: Mode, progress: Progress | None
    ) -> Outcome:
        # Some servers make an empty object of a request that was cut off before its body, as by a
        # kill: with this header they refuse it.
        md5 = b64encode(_md5(source)).decode()

        def action(client: Any, attempts: Attempts) -> Outcome:
            with PartBody(source, 0, source.size, check=attempts.check, progress=progress) as body:
                try:
                    request = {**target, **_condition(mode), "ContentMD5": md5}
                    _field("ETag", client.put_object(**request, Body=body))
                except ClientError as error:
                    if status_of(error) == 412:
                        return _taken(attempts)
                    raise
            return Outcome.WRITTEN

        return self._calls.run(f"write {_where(target)}", action, num_bytes=source.size)

    def _put_parts(
        self, target: dict[str, str], source: Source, mode: Mode, progress: Progress | None
    ) -> Outcome:
        what = f"write {_where(target)}"
        upload_id = self._calls.run(
            what,
            lambda client, _: _field("UploadId", client.create_multipart_upload(**target)),
        )
        upload = {**target, "UploadId": upload_id}
        outcome = None
        try:
            parts = self._send_parts(what, upload, source, progress)
            outcome = self._calls.run(what, partial(_complete, upload, parts, mode))
        finally:
            if outcome is not Outcome.WRITTEN:
                self._calls.once(
                    f"remove the parts of an unfinished upload of {_where(target)}",
                    lambda client: client.abort_multipart_upload(**upload),
                )
        return outcome

    def _send_parts(
        self, what: str, upload: dict[str, str], source: Source, progress: Progress | None
    ) -> list[dict[str, Any]]:
        part_bytes = max(self._part_bytes, -(-source.size // _PARTS_MAX))
        stop = self._calls.stop.child()

        def send(number: int, start: int) -> dict[str, Any]:
            length = min(part_bytes, source.size - start)

            def action(client: Any, attempts: Attempts) -> dict[str, Any]:
                with PartBody(
                    source, start, length, check=attempts.check, progress=progress
                ) as body:
                    reply = client.upload_part(**upload, PartNumber=number, Body=body)
                    return {"PartNumber": number, "ETag": _field("ETag", reply)}

            return self._calls.run(what, action, stop=stop, num_bytes=source.size)

        starts = range(0, source.size, part_bytes)
        return run_all(
            self._pool, stop, (partial(send, n, start) for n, start in enumerate(starts, start=1))
        )


def _complete(
    upload: dict[str, str],
    parts: list[dict[str, Any]],
    mode: Mode,
    client: Any,
    attempts: Attempts,
) -> Outcome:
    request = {**upload, "MultipartUpload": {"Parts": parts}, **_condition(mode)}
    try:
        _field("ETag", client.complete_multipart_upload(**request))
    except ClientError as error:
        if status_of(error) == 412:
            return _taken(attempts)
        if code_of(error) == "NoSuchUpload" and attempts.number > 1:
            return Outcome.UNCLEAR  # the attempt before may have completed it
        raise
    return Outcome.WRITTEN


def _taken(attempts: Attempts) -> Outcome:
    return Outcome.TAKEN if attempts.number == 1 else Outcome.UNCLEAR


def _condition(mode: Mode) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if mode == "create" else {}


def _md5(source: Source) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in source.chunks():
        digest.update(chunk)
    return digest.digest()


def _field(name: str, reply: dict[str, Any]) -> str:
    """A field of a reply to a write. Without it, something else than the store said "200 OK"."""
    if name not in reply:
        raise BadReplyError(f"a write was acknowledged without its {name}")
    return str(reply[name])


def _where(target: dict[str, str]) -> str:
    return f"s3://{target['Bucket']}/{target['Key']}"
