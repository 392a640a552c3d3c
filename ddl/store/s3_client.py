"""The boto3 client: where it connects, with what credentials, and which of its habits are off.

Read from the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
`AWS_PROFILE`, `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`,
`AWS_CA_BUNDLE`. All other sources of credentials (profiles, roles, containers, SSO) and proxies
(`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`) are botocore's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from ddl.config import StoreSettings
from ddl.errors import AddressError
from ddl.store.s3_body import begin_sending
from ddl.store.s3_errors import Place

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
"""A connection that has been silent for this long counts as cut."""

_CONNECTIONS: Final = 32
_REGION: Final = "us-east-1"
"""What stores other than AWS expect when no region is set; AWS redirects from it."""


def locate(bucket: str, settings: StoreSettings, environment: Mapping[str, str]) -> Place:
    """Where `bucket` is looked for. Raises: AddressError for an endpoint that cannot work."""
    endpoint = (
        settings.endpoint_url
        or environment.get("AWS_ENDPOINT_URL_S3", "")
        or environment.get("AWS_ENDPOINT_URL", "")
    )
    region = (
        settings.region
        or environment.get("AWS_REGION", "")
        or environment.get("AWS_DEFAULT_REGION", "")
    )
    return Place(bucket, _check_endpoint(endpoint, bucket), region)


def connect(place: Place, environment: Mapping[str, str]) -> Any:
    """A client with freshly read credentials. `place.endpoint` "" stands for AWS itself.

    * The only retries are ours (`ddl.store.retry`): botocore's are off.
    * No checksum trailers: many stores answer 501, 400 or 401 to them. Bodies are covered by the
      SHA-256 in their signature on the way up, and by the digests in our records on the way down.
    * Path style at custom endpoints: the bucket as a host name seldom resolves there.
    """
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    key_id, secret, token = (environment.get(name) for name in names)
    if key_id and secret:
        session = boto3.session.Session(key_id, secret, token)
    else:
        session = boto3.session.Session(profile_name=environment.get("AWS_PROFILE"))
    client = session.client(
        "s3",
        endpoint_url=place.endpoint or None,
        region_name=place.region or session.region_name or _REGION,
        verify=environment.get("AWS_CA_BUNDLE") or None,
        config=Config(
            signature_version="s3v4",
            retries={"mode": "standard", "total_max_attempts": 1},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if place.endpoint else "auto"},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=_CONNECTIONS,
            tcp_keepalive=True,
        ),
    )
    client.meta.events.register("before-send.s3", begin_sending)
    if place.endpoint:
        client.meta.events.register("before-call.s3", _follow_no_redirect)
    return client


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Hook of botocore, which answers a redirect by asking AWS for the bucket's region.

    A custom endpoint has none to tell; if it redirects everything (http to https, say), the
    question is redirected too, and botocore goes round until the stack is full.
    """
    context["s3_redirect"] = {**context.get("s3_redirect", {}), "redirected": True}


def _check_endpoint(endpoint: str, bucket: str) -> str:
    if not endpoint:
        return ""
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:  # not echoed: what stands before the @ is likely a secret
        raise AddressError(
            "store.endpoint_url must not hold credentials",
            hint="Give them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError(
            f"store.endpoint_url {endpoint!r} is not a web address",
            hint=f"Write https://{endpoint.rpartition('://')[2]} (or http:// without TLS)",
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise AddressError(
            f"store.endpoint_url {endpoint!r} has a path; the bucket does not belong there",
            hint=f"Use {parts.scheme}://{parts.netloc}, and s3://{bucket}/... as the store",
        )
    if parts.hostname.startswith(f"{bucket}."):
        raise AddressError(
            f"store.endpoint_url {endpoint!r} has the bucket {bucket!r} in its host name",
            hint=f"Use {parts.scheme}://{parts.netloc.removeprefix(f'{bucket}.')}",
        )
    return f"{parts.scheme}://{parts.netloc}"
