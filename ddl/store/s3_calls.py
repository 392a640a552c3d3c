"""Calls to S3: one client, renewed when its credentials go stale, and the one layer of retries."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ddl.store.retry import Attempts, OnRetry, RetryPolicy, Stop
from ddl.store.s3_errors import S3_ERRORS, Place, judge

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Calls:
    """Carries out actions on a boto3 client; safe to use from several threads."""

    def __init__(
        self,
        place: Place,
        connect: Callable[[], Any],
        policy: RetryPolicy,
        on_retry: OnRetry | None,
    ) -> None:
        """`connect` makes a client with freshly read credentials; it is called when needed."""
        self.stop = Stop()
        self._place = place
        self._connect = connect
        self._policy = policy
        self._on_retry = on_retry
        self._lock = threading.Lock()
        self._client: Any = None

    def run(
        self,
        what: str,
        action: Callable[[Any, Attempts], T],
        *,
        stop: Stop | None = None,
        num_bytes: int = 0,
    ) -> T:
        """The result of `action(client, attempts)`, tried until it succeeds or must not be.

        Args:
            what: completes "cannot ..." in error messages.
            action: safe to call again after any of `S3_ERRORS`; tells `attempts` of bytes moved.
            stop: ends waits; that of the store by default.
            num_bytes: what `action` moves at most, for the time limit.
        Raises:
            StoreError: the last failure.
        """
        stop = stop or self.stop
        attempts = Attempts(what, self._policy, stop, self._on_retry, num_bytes)
        while True:
            stop.check()
            client = None
            try:
                client = self._current()
                return action(client, attempts)
            except S3_ERRORS as error:
                verdict = judge(error, self._place, self._policy.clock)
                if verdict.renew:
                    self._forget(client)
                attempts.failed(verdict, error)

    def once(self, what: str, action: Callable[[Any], object]) -> None:
        """Try `action` a single time, also while closing; for clean-up that a sweep makes up for."""
        try:
            action(self._current())
        except S3_ERRORS as error:
            logger.warning(
                "cannot %s: %s", what, judge(error, self._place, self._policy.clock).message
            )

    def close(self) -> None:
        """End all waits and free the connections."""
        self.stop.set()
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _current(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _forget(self, client: Any) -> None:
        """Make the next attempt read credentials again, unless another thread has done it."""
        with self._lock:
            if self._client is client:
                self._client = None  # not closed: other threads may be using it
