"""`s3://`: a bucket of AWS S3 or of any store that speaks its protocol.

Everything stands on four facts: objects are put whole or not at all; `If-None-Match: *` lets one
writer through; a put is read back whenever its reply was lost; nothing is retried but by us.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from ddl.config import StoreSettings
from ddl.errors import ObjectNotFoundError, StoreUnavailableError
from ddl.store.base import Body, Mode, ObjectInfo, Progress, check_key
from ddl.store.files import Source, whole_file
from ddl.store.hashed import Hashed
from ddl.store.parallel import run_all
from ddl.store.retry import Attempts, OnRetry, RetryPolicy
from ddl.store.s3_calls import Calls
from ddl.store.s3_client import connect, locate
from ddl.store.s3_download import Downloader, HashedSink, WholeSink
from ddl.store.s3_errors import BadReplyError, server_time, status_of
from ddl.store.s3_upload import Outcome, Uploader

_PARALLEL: Final = 8
"""Requests for parts in flight at once, over all transfers of this store."""

_COMPARE_BYTES: Final = 8 * 1024 * 1024


class S3Store:
    """Objects of `bucket` under `prefix` (contract: `ddl.store.base.Store`)."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        settings: StoreSettings,
        *,
        environment: Mapping[str, str],
        policy: RetryPolicy | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        """Makes no request. Raises: AddressError for an endpoint that cannot work."""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._policy = policy or RetryPolicy()
        place = locate(bucket, settings, environment)
        self._calls = Calls(place, partial(connect, place, environment), self._policy, on_retry)
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="ddl-s3")
        self._up = Uploader(self._calls, self._pool, bucket, settings.part_bytes)
        self._down = Downloader(self._calls, self._pool, bucket, settings.part_bytes)

    def put(
        self, key: str, body: Body, *, mode: Mode = "plain", progress: Progress | None = None
    ) -> bool:
        name = self._name(key)
        with Source(body) as source:
            outcome = self._up.put(name, source, mode, progress)
            if outcome is not Outcome.UNCLEAR:
                return outcome is Outcome.WRITTEN
            if self._holds(key, source):
                return True
        if mode == "create":
            return False
        raise StoreUnavailableError(
            f"cannot write {self.url}/{key}: replies were lost, and other bytes are there now",
            hint="Write it again",
        )

    def get(self, key: str, *, progress: Progress | None = None) -> bytearray:
        sink = WholeSink()
        self._down.fetch(self._name(key), sink, progress)
        return sink.data

    def get_hashed(self, key: str, *, progress: Progress | None = None) -> Hashed:
        sink = HashedSink()
        self._down.fetch(self._name(key), sink, progress)
        return Hashed(sink.data, sink.hexdigest())

    def get_to_file(self, key: str, path: Path, *, progress: Progress | None = None) -> None:
        with whole_file(path) as sink:
            self._down.fetch(self._name(key), sink, progress)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if length == 0:
            if self.head(key) is None:
                raise ObjectNotFoundError(f"cannot read {self.url}/{key}: there is no such object")
            return b""
        return self._down.fetch_range(self._name(key), start, length)

    def head(self, key: str) -> ObjectInfo | None:
        target = {"Bucket": self._bucket, "Key": self._name(key)}
        try:
            found = self._calls.run(f"look up {self.url}/{key}", partial(_look_up, target))
        except ObjectNotFoundError:
            return None
        return ObjectInfo(key, found["ContentLength"], found["LastModified"].timestamp())

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        after = {"StartAfter": self._prefix + start_after} if start_after else {}
        for reply in self._pages(prefix, after):
            for found in reply.get("Contents", ()):
                if not found["Key"].endswith("/"):  # a "folder" made by a console
                    yield ObjectInfo(
                        found["Key"].removeprefix(self._prefix),
                        found["Size"],
                        found["LastModified"].timestamp(),
                    )

    def folders(self) -> Iterator[str]:
        for reply in self._pages("", {"Delimiter": "/"}):
            for found in reply.get("CommonPrefixes", ()):
                yield found["Prefix"].removeprefix(self._prefix).rstrip("/")

    def delete(self, keys: Iterable[str]) -> None:
        """One request a key: what deletes many at once wants a checksum that stores differ about."""
        run_all(
            self._pool,
            self._calls.stop.child(),
            (partial(self._delete, self._name(key)) for key in keys),
        )

    def sweep_uploads(self, *, older_than_s: float) -> int:
        what = f"list unfinished uploads in {self.url}"
        where = {"Bucket": self._bucket, "Prefix": self._prefix}
        page: dict[str, str] = {}
        swept = 0
        while True:
            reply = self._calls.run(what, partial(_list_uploads, {**where, **page}))
            now = server_time(reply) or self._policy.clock.wall()
            for upload in reply.get("Uploads", ()):
                if now - upload["Initiated"].timestamp() > older_than_s:
                    self._abort(upload)
                    swept += 1
            if not reply["IsTruncated"]:
                return swept
            page = {
                "KeyMarker": reply["NextKeyMarker"],
                "UploadIdMarker": reply["NextUploadIdMarker"],
            }

    def close(self) -> None:
        self._calls.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _pages(self, prefix: str, request: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Replies to a listing, page by page."""
        where = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **request}
        what = f"list {self.url}/{prefix}*"
        while True:
            reply = self._calls.run(what, partial(_list_page, where))
            yield reply
            if not reply["IsTruncated"]:
                return
            where.pop("StartAfter", None)
            where["ContinuationToken"] = reply["NextContinuationToken"]

    def _holds(self, key: str, source: Source) -> bool:
        """Whether the object is what we wanted to write: then a lost reply was a success."""
        found = self.head(key)
        if found is None:
            raise StoreUnavailableError(
                f"cannot write {self.url}/{key}: replies were lost, and nothing is there now",
                hint="Write it again",
            )
        return found.bytes == source.size and all(
            self.get_range(key, at, _COMPARE_BYTES) == source.read_at(at, _COMPARE_BYTES)
            for at in range(0, source.size, _COMPARE_BYTES)
        )

    def _delete(self, name: str) -> None:
        target = {"Bucket": self._bucket, "Key": name}
        try:
            self._calls.run(
                f"delete s3://{self._bucket}/{name}",
                lambda client, _: client.delete_object(**target),
            )
        except ObjectNotFoundError:
            return  # some stores say so; to us it is the same

    def _abort(self, upload: dict[str, Any]) -> None:
        target = {
            "Bucket": self._bucket,
            "Key": upload["Key"],
            "UploadId": upload["UploadId"],
        }
        try:
            self._calls.run(
                f"remove an unfinished upload of s3://{self._bucket}/{upload['Key']}",
                lambda client, _: client.abort_multipart_upload(**target),
            )
        except ObjectNotFoundError:
            return  # its writer has finished or removed it meanwhile


def _look_up(target: dict[str, str], client: Any, _: Attempts) -> Any:
    try:
        return client.head_object(**target)
    except ClientError as error:
        if status_of(error) in (301, 307, 400, 401, 403):
            # a reply to HEAD has no body to say what is wrong; this one raises with a name
            client.get_object(**target, Range="bytes=0-0")["Body"].close()
        raise


def _list_page(request: dict[str, str], client: Any, _: Attempts) -> Any:
    return _checked(client.list_objects_v2(**request))


def _list_uploads(request: dict[str, str], client: Any, _: Attempts) -> Any:
    return _checked(client.list_multipart_uploads(**request))


def _checked(reply: Any) -> Any:
    """A listing; a web page that says "200 OK" must not pass for an empty bucket."""
    if "IsTruncated" not in reply:
        raise BadReplyError("a listing does not say whether it is complete")
    return reply
