"""What an error of boto3 means for us: whose fault it is, and whether to try again.

`S3_ERRORS` is everything a call can raise; `judge` turns any of them into a `Verdict`.
"""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from ddl.clock import Clock
from ddl.errors import (
    CredentialsExpiredError,
    ObjectNotFoundError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ddl.store.retry import Verdict


class BadReplyError(Exception):
    """The server answered with success, but not as an S3 store does."""


S3_ERRORS: Final = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    HTTPError,
    OSError,
    BadReplyError,
)


class Place(NamedTuple):
    """What error messages name."""

    bucket: str
    endpoint: str
    region: str


class Meaning(NamedTuple):
    """A row of the tables below: a `Verdict` whose texts have fields still to be filled in."""

    kind: type[StoreError]
    message: str
    hint: str = ""
    tries: float = float("inf")
    renew: bool = False


_RIGHTS: Final = (
    "The credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload "
    "on the objects, and s3:ListBucket on the bucket"
)
_SOURCES: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where a role is given"
)

_MISSING: Final = Meaning(ObjectNotFoundError, "{where}", tries=1)
_NO_BUCKET: Final = Meaning(
    StoreDeniedError,
    "bucket {bucket!r} does not exist at {endpoint}",
    "Create it, or check the name and store.endpoint_url",
    tries=1,
)
_EXPIRED: Final = Meaning(
    CredentialsExpiredError,
    "the credentials have expired: {where}",
    "Renew them; they are read again at every try",
    renew=True,
)
_SKEWED: Final = Meaning(
    StoreDeniedError,
    "this machine's clock is {skew}, so its signatures are refused",
    "Set the clock, for example with `timedatectl set-ntp true`",
    tries=3,
)
_BAD_CREDENTIALS: Final = Meaning(
    StoreDeniedError,
    "the credentials are not accepted: {where}",
    "Check the key and its secret, and that they are for {endpoint}",
    tries=2,  # once more with credentials read again: they may just have been rotated
    renew=True,
)
_REGION: Final = Meaning(
    StoreDeniedError,
    "region {region!r} is not that of bucket {bucket!r}: {where}",
    "Set store.region to the region of the bucket",
    tries=1,
)
_FULL: Final = Meaning(
    StoreFullError, "{where}", "Free space in the store or raise its quota", tries=1
)
_LACKING: Final = Meaning(
    StoreError,
    "the store lacks a function that ddl needs: {where}",
    "`ddl doctor` says which; use another store",
    tries=1,
)
_PASSING: Final = Meaning(
    StoreUnavailableError, "{where}", "The store is overloaded or failing; ask who runs it"
)
_FORBIDDEN: Final = Meaning(StoreDeniedError, "{where}", _RIGHTS, tries=1)
_ODD: Final = Meaning(StoreError, "{where}", tries=1)

_BY_CODE: Final[dict[str, Meaning]] = {
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "NotFound"), _MISSING),
    "NoSuchBucket": _NO_BUCKET,
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"),
        _EXPIRED,
    ),
    "RequestTimeTooSkewed": _SKEWED,
    **dict.fromkeys(
        ("InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken", "SignatureDoesNotMatch"),
        _BAD_CREDENTIALS,
    ),
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"),
        _REGION,
    ),
    **dict.fromkeys(
        ("InsufficientCapacity", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"),
        _FULL,
    ),
    # said with a 4xx status although the very same request may succeed
    **dict.fromkeys(
        ("BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"),
        _PASSING,
    ),
}
_BY_STATUS: Final[dict[int, Meaning]] = {
    **dict.fromkeys((301, 307), _REGION),
    401: _BAD_CREDENTIALS,
    403: _FORBIDDEN,
    404: _MISSING,
    **dict.fromkeys((408, 409, 425, 429), _PASSING),
    501: _LACKING,
    507: _FULL,
}

_NO_HOST: Final = Meaning(
    StoreUnavailableError,
    "{endpoint} cannot be found: {error}",
    "Check store.endpoint_url, store.region and the name service of this machine",
    tries=6,  # a few seconds: a network that has just come up may not know its names yet
)
_UNTRUSTED: Final = Meaning(
    StoreDeniedError,
    "the certificate of {endpoint} is not trusted: {error}",
    "If the store or your network has a CA of its own, set AWS_CA_BUNDLE to its PEM file",
    tries=1,
)
_FAILURES: Final[tuple[tuple[tuple[type[Exception], ...], Meaning], ...]] = (
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError),
        Meaning(StoreDeniedError, "no credentials were found: {error}", _SOURCES, tries=1),
    ),
    (
        (boto.ProfileNotFound, boto.ConfigNotFound, boto.ConfigParseError),
        Meaning(StoreDeniedError, "no credentials were found: {error}", _SOURCES, tries=1),
    ),
    (
        (boto.SSOError, boto.TokenRetrievalError, boto.RefreshWithMFAUnsupportedError),
        Meaning(
            CredentialsExpiredError,
            "the credentials cannot be refreshed: {error}",
            "Log in again, for example with `aws sso login`",
            renew=True,
        ),
    ),
    (
        (boto.CredentialRetrievalError, boto.MetadataRetrievalError),
        Meaning(StoreDeniedError, "no credentials were given: {error}", _SOURCES, renew=True),
    ),
    (
        (boto.ProxyConnectionError,),
        Meaning(
            StoreUnavailableError,
            "the proxy does not answer: {error}",
            "Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
        ),
    ),
    (
        (BadReplyError, ResponseParserError),
        Meaning(
            StoreUnavailableError,
            "{endpoint} answered, but not as an S3 store: {error}",
            "Check store.endpoint_url, and what proxies stand in between",
        ),
    ),
    (
        (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, HTTPError, OSError),
        Meaning(
            StoreUnavailableError,
            "{endpoint} cannot be reached or broke off: {error}",
            "Check store.endpoint_url and the network",
        ),
    ),
    ((Exception,), Meaning(StoreError, "{kind}: {error}", tries=1)),
)


def code_of(error: ClientError) -> str:
    """The error's S3 name such as "SlowDown", or its HTTP status if it came without a body."""
    return str(error.response.get("Error", {}).get("Code", "")) or str(status_of(error))


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def judge(error: Exception, place: Place, clock: Clock) -> Verdict:
    """What `error` means. Messages never hold a credential."""
    retry_after_s = 0.0
    endpoint = place.endpoint or "AWS S3"
    fields: dict[str, object] = {
        "bucket": place.bucket,
        "endpoint": endpoint,
        "region": place.region or "(default)",
        "kind": type(error).__name__,
        "error": error,
    }
    if isinstance(error, boto.EndpointConnectionError):  # whose own words are the address again
        fields["error"] = str(error.__context__ or error).rpartition(": ")[2]
    if isinstance(error, ClientError):
        code, status = code_of(error), status_of(error)
        meaning = _BY_CODE.get(code) or _BY_STATUS.get(status)
        meaning = meaning or (_PASSING if status >= 500 else _ODD)
        said = error.response.get("Error", {}).get("Message", "")
        fields["where"] = f"{endpoint} answered {status} {code}{said and f' ({said})'}"
        fields["skew"] = _skew(error, clock)
        retry_after_s = _retry_after_s(error, clock)
    elif isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        meaning = _UNTRUSTED
    elif _is_unknown_host(error):
        meaning = _NO_HOST
    else:
        meaning = next(meaning for kinds, meaning in _FAILURES if isinstance(error, kinds))
    return Verdict(
        meaning.kind,
        meaning.message.format(**fields),
        meaning.hint.format(**fields),
        tries=meaning.tries,
        retry_after_s=retry_after_s,
        renew=meaning.renew,
    )


def _is_unknown_host(error: BaseException | None) -> bool:
    """Whether a name was looked up and does not exist; no answer to the question is another thing."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_NONAME
        error = error.__cause__ or error.__context__
    return False


def server_time(reply: dict[str, Any]) -> float | None:
    """The `Date` of a reply or error response, in seconds since the epoch."""
    date = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    return _parse_date(date)


def _skew(error: ClientError, clock: Clock) -> str:
    theirs = server_time(error.response)
    if theirs is None:
        return "more than 15 minutes away from the store's"
    skew_s = clock.wall() - theirs
    side = "ahead of" if skew_s > 0 else "behind"
    return f"{abs(skew_s) / 60:.1f} minutes {side} the store's"


def _retry_after_s(error: ClientError, clock: Clock) -> float:
    """`Retry-After` in seconds, from either of its two spellings; 0 without one."""
    text = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    if text.isdigit():
        return float(text)
    until = _parse_date(text)
    return 0.0 if until is None else max(0.0, until - (server_time(error.response) or clock.wall()))


def _parse_date(text: str) -> float | None:
    try:
        date: datetime = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
