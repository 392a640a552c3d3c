"""One Redis server, spoken to through redis-py. No other module calls that library.

Replies are bytes: the records in them are decoded by msgspec, whatever the server's protocol.
No call blocks longer than about 3 s, and none is repeated behind the caller's back, save once on a
new connection when the old one turned out to be cut: callers have their own patience.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import NoScriptError
from redis.retry import Retry

from ddl.errors import AddressError, RegistryUnavailableError
from ddl.protocol.address import check_redis_url, safe_url
from ddl.registry.faults import translated

ANSWER_S: Final = 2.5
"""Longest wait for a connection, and for an answer."""

MARGIN_S: Final = 0.3
"""What a blocking wait gives the server beyond the time it was asked to block."""

SLICE_S: Final = 0.2
"""How soon a blocking wait notices that it was interrupted."""

Argument = str | bytes | int | float


class RedisServer:
    """One server; safe to use from several threads at once. Nothing is sent before the first call.

    Attributes:
        where: its address, without the password.
    Raises: AddressError if the address cannot be read.
    """

    def __init__(self, url: str) -> None:
        self.where = safe_url(check_redis_url(url))
        self._options = _options(url, self.where)
        self._pool = ConnectionPool(**self._options)
        # Any: redis-py types its methods in part only, and its replies not at all
        self._client: Any = redis.Redis(connection_pool=self._pool)

    def __repr__(self) -> str:
        return f"RedisServer({self.where!r})"

    def call(self, *command: Argument) -> Any:
        """Send one command. Raises: RegistryError."""
        with self._translated():
            return self._client.execute_command(*command)

    def run(self, script: str, keys: Sequence[str], *args: Argument) -> Any:
        """Run `scripts/{script}.lua`. Raises: RegistryError."""
        text, sha = _script(script)
        with self._translated():
            try:
                return self._client.execute_command("EVALSHA", sha, len(keys), *keys, *args)
            except NoScriptError:  # first use, SCRIPT FLUSH, or another server under the same name
                return self._client.execute_command("EVAL", text, len(keys), *keys, *args)

    def waiter(self, stream: str) -> StreamWaiter:
        """Something to wait for news of `stream` with; has a connection of its own."""
        return StreamWaiter(self._options, self.where, stream)

    def close(self) -> None:
        """Close the connections that are idle; calls under way end as they would."""
        self._pool.disconnect(inuse_connections=False)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with translated(self.where):
                yield
        except RegistryUnavailableError:
            # demoted, say: behind the same name there may be a new primary by now
            self._pool.disconnect(inuse_connections=False)
            raise


class StreamWaiter:
    """Waits until something is appended to a short stream; used by one thread, save `interrupt`.

    What is compared is the id of the newest entry, for being another one: so a stream that was
    trimmed, flushed or set back by a failover is noticed too, when the wait is over at the latest.
    redis-py's own blocking call is not used: it ends by the socket's time-out, asks again, and made
    59 s of an idle wait of 7 s.
    """

    def __init__(self, options: Mapping[str, Any], where: str, stream: str) -> None:
        self._where = where
        self._stream = stream
        # RESP2, so that nothing but replies ever comes on this connection
        pool = ConnectionPool(**{**options, "protocol": 2})
        self._connection: Any = pool.make_connection()
        self._waiting = threading.Lock()
        self._seen = b"0-0"
        self._interrupted = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """Whether anything was appended since the last call; waits `timeout_s` for it at most.

        Contract: MUST return within `timeout_s` + 0.5 s if the server can be reached at all. A link
        that was cut while idle is made anew, once, without a word.
        Raises: RegistryUnavailableError, RegistryError.
        """
        deadline = time.monotonic() + timeout_s
        with self._waiting, translated(self._where):
            try:
                return self._wait(deadline)
            except redis.ConnectionError:
                self._connection.disconnect()
                return self._wait(deadline)

    def interrupt(self) -> None:
        """End a wait in another thread, and all waits to come, within SLICE_S."""
        self._interrupted.set()

    def close(self) -> None:
        """End a wait in another thread, then close the connection."""
        self.interrupt()
        with self._waiting:  # redis-py breaks when a connection is closed under a reader
            self._connection.disconnect()

    def _wait(self, deadline: float) -> bool:
        newest = self._block(deadline)
        if newest is None:  # nothing after the last one seen; but the stream may be another one
            newest = self._newest()
        arrived = newest != self._seen
        self._seen = newest
        return arrived

    def _newest(self) -> bytes:
        self._connection.send_command("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        entries = self._connection.read_response()
        return bytes(entries[0][0]) if entries else b"0-0"

    def _block(self, deadline: float) -> bytes | None:
        """Wait for entries after the last one seen; the id of the newest, None if there are none.

        The last one seen, if there is no more time to ask or the wait was interrupted.
        """
        block_ms = int((deadline - time.monotonic()) * 1000)
        if self._interrupted.is_set():
            return self._seen
        if block_ms < 1:  # BLOCK 0 would be for ever
            return None
        self._connection.send_command(
            "XREAD", "BLOCK", block_ms, "STREAMS", self._stream, self._seen
        )
        while not self._connection.can_read(timeout=SLICE_S):
            if self._interrupted.is_set() or time.monotonic() > deadline + MARGIN_S:
                # the reply may still come: this connection cannot be used for anything else
                self._connection.disconnect()
                return self._seen
        streams = self._connection.read_response()
        return bytes(streams[0][1][-1][0]) if streams else None


def _options(url: str, where: str) -> dict[str, Any]:
    """What redis-py needs to know; our choices stand above those in the address, save `protocol`."""
    ours = {
        "decode_responses": False,
        "socket_timeout": ANSWER_S,
        "socket_connect_timeout": ANSWER_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        "retry_on_timeout": False,
        "health_check_interval": 0,
    }
    try:
        theirs: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
        options = {"protocol": 2, **theirs, **ours}
        ConnectionPool(**options).make_connection()  # opens nothing, but knows all options
    except (TypeError, ValueError) as error:
        option = re.search(r"'(\w+)'", str(error))
        raise AddressError(
            f"{where}: the option {option[1] if option else error} is unknown or has a wrong value",
            hint="Options after '?' are those of redis-py, such as ssl_ca_certs",
        ) from None
    return options


@cache
def _script(name: str) -> tuple[str, str]:
    """Text and SHA-1 of a script, the prelude before it."""
    folder = resources.files("ddl.registry") / "scripts"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("prelude", name))
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
