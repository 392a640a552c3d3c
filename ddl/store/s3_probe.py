"""What a bucket can do, asked of the bucket itself: `S3Store` makes up for much, and so hides it."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError

from ddl.config import StoreSettings
from ddl.errors import StoreError
from ddl.store.retry import RetryPolicy
from ddl.store.s3_calls import Calls
from ddl.store.s3_client import connect, locate
from ddl.store.s3_errors import server_time, status_of

T = TypeVar("T")

_PAGES_MAX: Final = 8


class S3Probe:
    """Questions to the bucket and prefix of `url`. All methods raise StoreError when it fails.

    Keys are relative to `url`, as those of a store are.
    """

    def __init__(
        self,
        url: str,
        settings: StoreSettings,
        *,
        environment: Mapping[str, str],
        policy: RetryPolicy | None = None,
    ) -> None:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        place = locate(bucket, settings, environment)
        self._policy = policy or RetryPolicy()
        self._calls = Calls(place, partial(connect, place, environment), self._policy, None)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def honours_range(self, key: str) -> bool:
        """Whether bytes 1 and 2 of an object come alone when only they are asked for."""

        def ask(client: Any) -> bool:
            reply = client.get_object(**self._target(key), Range="bytes=1-2")
            with closing(reply["Body"]):
                return int(reply["ContentLength"]) == 2

        return self._run(f"read a range of {key}", ask)

    def pages(self, prefix: str) -> list[str]:
        """Keys with this prefix, listed one a page: all of them, if the store pages as it should.

        `prefix` has at most a few objects; the listing is given up after `_PAGES_MAX` pages.
        """
        where = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "MaxKeys": 1}
        found: list[str] = []
        page: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            reply = self._run(f"list {prefix}*", partial(_list_page, {**where, **page}))
            found += [
                entry["Key"].removeprefix(self._prefix) for entry in reply.get("Contents", ())
            ]
            if not reply.get("IsTruncated"):
                break
            page = {"ContinuationToken": reply["NextContinuationToken"]}
        return found

    def refuses_damage(self, key: str) -> bool:
        """Whether a body that is not what its MD5 says is turned away."""
        wrong = b64encode(hashlib.md5(b"other", usedforsecurity=False).digest()).decode()

        def ask(client: Any) -> bool:
            try:
                client.put_object(**self._target(key), Body=b"body", ContentMD5=wrong)
            except ClientError as error:
                if status_of(error) == 400:
                    return True
                raise
            return False

        return self._run(f"write {key}", ask)

    def objects_to_checksums(self, key: str) -> str:
        """What the store says to a checksum of the newer SDKs; "" if it takes it."""
        try:
            self._run(
                f"write {key} with a CRC32",
                lambda client: client.put_object(
                    **self._target(key), Body=b"body", ChecksumAlgorithm="CRC32"
                ),
            )
        except StoreError as error:
            return str(error.args[0])
        return ""

    def clock_offset_s(self, key: str) -> float | None:
        """By how much this machine's clock is ahead of the store's; None if it does not say."""
        reply = self._run(f"look up {key}", lambda client: client.head_object(**self._target(key)))
        theirs = server_time(reply)
        return None if theirs is None else self._policy.clock.wall() - theirs

    def close(self) -> None:
        self._calls.close()

    def _run(self, what: str, ask: Callable[[Any], T]) -> T:
        return self._calls.run(what, lambda client, _: ask(client))

    def _target(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}


def _list_page(request: dict[str, Any], client: Any) -> dict[str, Any]:
    reply: dict[str, Any] = client.list_objects_v2(**request)
    return reply
