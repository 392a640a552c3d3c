"""From a store's address to a store."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ddl.config import StoreSettings
from ddl.errors import AddressError
from ddl.store.base import Store
from ddl.store.limits import LimitedStore, TokenBucket
from ddl.store.local import LocalStore
from ddl.store.retry import OnRetry, RetryPolicy

SCHEMES = ("file", "s3")


def open_url(
    url: str,
    *,
    settings: StoreSettings | None = None,
    up_mbit: float | None = None,
    down_mbit: float | None = None,
    environment: Mapping[str, str] | None = None,
    on_retry: OnRetry | None = None,
    policy: RetryPolicy | None = None,
    must_exist: bool = False,
) -> Store:
    """Open `file:///dir` or `s3://bucket/prefix`.

    Args:
        url: the address; stands above `settings.url`.
        settings: endpoint, region and part size of `s3://`.
        up_mbit: cap on what this process sends, in million bits per second; None for no cap.
        down_mbit: the same for what it reads.
        environment: where `AWS_...` variables are read (`ddl.store.s3_client` lists them); the
            process environment by default.
        on_retry: told of every wait before another try, from the thread that waits.
        policy: how patient to be with `s3://`.
        must_exist: refuse a directory that is not there, instead of making it with the first object.
    Raises:
        AddressError: the address or endpoint cannot be read, or the directory is not there.
        ConfigError: a cap that is not usable.
        StoreDeniedError: a directory that cannot be looked into.
    """
    settings = settings or StoreSettings()
    up = TokenBucket(up_mbit) if up_mbit is not None else None
    down = TokenBucket(down_mbit) if down_mbit is not None else None
    parts = _split(url)
    if parts.scheme == "file":
        store: Store = LocalStore(_directory(url, parts), must_exist=must_exist)
    else:
        from ddl.store.s3 import S3Store  # boto3 takes 0.3 s to import: only who needs it pays

        store = S3Store(
            parts.netloc,
            parts.path.strip("/"),
            settings,
            environment=os.environ if environment is None else environment,
            policy=policy,
            on_retry=on_retry,
        )
    return LimitedStore(store, up=up, down=down) if up or down else store


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise AddressError(f"store address {url!r} cannot be read: {error}") from None
    if "@" in parts.netloc:  # not echoed: what stands before the @ is likely a secret
        raise AddressError(
            f"a store address {parts.scheme}://... must not hold credentials",
            hint="Give them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile",
        )
    if not parts.scheme:
        directory = f"file://{os.path.abspath(url)}"  # noqa: PTH100 - resolve() would follow links
        raise AddressError(f"store address {url!r} has no scheme", hint=f"Write {directory}")
    if parts.scheme not in SCHEMES:
        near = difflib.get_close_matches(parts.scheme, SCHEMES, n=1)
        raise AddressError(
            f"store address {url!r}: unknown scheme {parts.scheme!r}",
            hint=f"Did you mean {near[0]}://?" if near else "Use file:///DIR or s3://BUCKET/PREFIX",
        )
    if parts.query or parts.fragment:
        raise AddressError(
            f"store address {url!r} has a '?' or '#' part",
            hint="Endpoint and region are settings: store.endpoint_url and store.region",
        )
    if parts.scheme == "s3" and not parts.netloc:
        raise AddressError(f"store address {url!r} names no bucket", hint="Use s3://BUCKET/PREFIX")
    return parts


def _directory(url: str, parts: SplitResult) -> Path:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise AddressError(
            f"store address {url!r} does not name a directory of this machine",
            hint="Use three slashes and an absolute path: file:///var/lib/ddl",
        )
    return Path(unquote(parts.path))
