"""Where a run is found: the grammar of RUN on the command line (design 10).

    demo                                            a name; Redis comes from --redis or DDL_REDIS
    path/to/run.toml                                a settings file
    redis://[USER:PASSWORD@]HOST[:PORT][/DB]?run=NAME      a join address; also rediss://
    unix://[USER:PASSWORD@]/path/to/redis.sock?run=NAME
    s3://BUCKET/PREFIX/RUN                          a store address; also file:///DIR/RUN

Nothing here reads a file or opens a connection.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ddl.errors import AddressError, ConfigError
from ddl.names import check_run_name

REDIS_SCHEMES = ("redis", "rediss", "unix")
STORE_SCHEMES = ("s3", "file")

_FORMS = (
    "RUN is a name, a run.toml, redis://HOST:PORT/DB?run=NAME, s3://BUCKET/PREFIX/NAME "
    "or file:///DIR/NAME"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunAddress:
    """A run, and where it can be found; what the text did not say is None.

    Attributes:
        run: the run's name; None only for a settings file, which holds it.
        redis_url: where its control plane is, without `run=`. May hold a password: never shown.
        store_url: where its objects are, without the run's name.
        toml_path: its settings file.
    """

    run: str | None = None
    redis_url: str | None = None
    store_url: str | None = None
    toml_path: Path | None = None

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={value!r}" for name, value in self._shown())
        return f"RunAddress({parts})"

    def _shown(self) -> Iterator[tuple[str, object]]:
        if self.run is not None:
            yield "run", self.run
        if self.redis_url is not None:
            yield "redis_url", safe_url(self.redis_url)
        if self.store_url is not None:
            yield "store_url", safe_url(self.store_url)
        if self.toml_path is not None:
            yield "toml_path", str(self.toml_path)


def parse_address(text: str) -> RunAddress:
    """Read RUN. Raises: AddressError, whose message never shows a password."""
    text = text.strip()
    if not text:
        raise AddressError("the run's address is empty", hint=_FORMS)
    scheme, separator, _ = text.partition("://")
    if not separator:
        if text.endswith(".toml") or "/" in text:
            return RunAddress(toml_path=Path(text))
        return RunAddress(run=_run_name(text, text))
    if scheme in REDIS_SCHEMES:
        return _parse_redis(text)
    if scheme in STORE_SCHEMES:
        return _parse_store(text)
    raise AddressError(f"{safe_url(text)}: unknown scheme {scheme!r}", hint=_FORMS)


def join_address(redis_url: str, run: str) -> str:
    """The address that lets a learner join `run`; the reverse of `parse_address`."""
    query = urlencode({"run": check_run_name(run)})
    return f"{redis_url}{'&' if '?' in redis_url else '?'}{query}"


def typed_address(redis_url: str, run: str) -> str:
    """`join_address` as a person types it into a shell, with no password in it."""
    return shlex.quote(join_address(safe_url(redis_url), run))


def check_redis_url(url: str) -> str:
    """Return `url` if it can be the address of a Redis. Raises: AddressError."""
    parts = _split(url)
    if parts.scheme not in REDIS_SCHEMES:
        raise AddressError(
            f"{safe_url(url)} is not the address of a Redis",
            hint="It starts with redis://, rediss:// or unix://",
        )
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise AddressError(
                f"{safe_url(url)} names no socket", hint="unix:///path/to/redis.sock"
            )
        return url
    if not parts.hostname:
        raise AddressError(f"{safe_url(url)} names no host", hint="For this machine use 127.0.0.1")
    if not re.fullmatch(r"/?|/\d+", parts.path):
        raise AddressError(
            f"{safe_url(url)}: the database {parts.path[1:]!r} is not a number",
            hint="The path is a database number, as in redis://HOST:6379/0",
        )
    return url


def safe_url(url: str) -> str:
    """`url` with every password in it replaced by ***; works on malformed ones too."""
    url = re.sub(r"://([^:/?#@]*):.*@", r"://\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&#]*", r"\1***", url)


def _parse_redis(text: str) -> RunAddress:
    parts = _split(text)
    options = parse_qsl(parts.query, keep_blank_values=True)
    runs = [value for name, value in options if name == "run"]
    if len(runs) != 1:
        raise AddressError(
            f"{safe_url(text)} names {len(runs) or 'no'} run{'s' if runs else ''}",
            hint="Put the run's name at its end: ?run=NAME",
        )
    rest = urlencode([(name, value) for name, value in options if name != "run"])
    # not `geturl()`, which turns unix:///path into unix:/path
    url = check_redis_url(text.partition("?")[0] + (f"?{rest}" if rest else ""))
    return RunAddress(run=_run_name(runs[0], text), redis_url=url)


def _parse_store(text: str) -> RunAddress:
    parts = _split(text)
    if parts.query:
        raise AddressError(f"{safe_url(text)}: a store's address takes no '?'", hint=_FORMS)
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    if parts.scheme == "s3":
        if not parts.netloc:
            raise AddressError(f"{text} names no bucket", hint="s3://BUCKET/PREFIX/NAME")
        store_url = f"s3://{parts.netloc}{folder}"
    else:
        if parts.netloc:
            raise AddressError(
                f"{text} has a host, {parts.netloc!r}", hint="Use three slashes: file:///DIR/NAME"
            )
        store_url = f"file://{folder or '/'}"
    if not name:
        raise AddressError(f"{text} names no run", hint="Its last part is the run's name")
    return RunAddress(run=_run_name(unquote(name), text), store_url=store_url)


def _split(url: str) -> SplitResult:
    if "#" in url:
        raise AddressError(
            f"{safe_url(url)} has a '#'",
            hint="In a password write it as %23 (and / as %2F, ? as %3F, @ as %40)",
        )
    if not url.isprintable() or " " in url:
        raise AddressError(f"{safe_url(url)!r} has a blank or an unprintable character in it")
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError as error:
        raise AddressError(f"{safe_url(url)} cannot be read: {_reason(error)}") from None
    return parts


def _reason(error: ValueError) -> str:
    """Why an address cannot be read, without quoting from it: it may be part of a password."""
    if "ort" in str(error):
        return (
            "its port is not a number from 0 to 65535, or its password has a '/', '?' or '@' in it"
        )
    return "it is not a URL"


def _run_name(name: str, text: str) -> str:
    try:
        return check_run_name(name)
    except ConfigError as error:
        if name == text and "." in name:
            what = f"{text!r} is neither the name of a run nor a file run.toml"
            raise AddressError(what, hint=_FORMS) from None
        raise AddressError(
            f"{safe_url(text)}: run name {name!r} is not usable", hint=error.hint
        ) from None
