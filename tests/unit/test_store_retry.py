"""Waiting and giving up, without a store."""

from __future__ import annotations

import inspect
import threading

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError

from ddl.clock import SystemClock
from ddl.errors import DdlError, StoreError, StoreUnavailableError
from ddl.store.retry import Attempts, RetryPolicy, Stop, Verdict
from ddl.store.s3_errors import S3_ERRORS, Place, judge

PLACE = Place("bucket", "http://store", "here")
AGAIN = Verdict(StoreUnavailableError, "busy")


class Waits:
    """A clock that its own waits move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.all: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def pause(self, stop: Stop, wait_s: float) -> None:
        stop.check()
        self.all.append(wait_s)
        self.now += wait_s


def attempts_of(waits: Waits, *, random: float = 1.0, num_bytes: int = 0) -> Attempts:
    policy = RetryPolicy(clock=waits, random=lambda: random, pause=waits.pause)
    return Attempts("do it", policy, Stop(), None, num_bytes)


def fail(attempts: Attempts, verdict: Verdict = AGAIN, *, times: int = 100) -> None:
    for _ in range(times):
        attempts.check()
        attempts.failed(verdict, OSError())


def test_waits_double_up_to_a_bound_and_patience_ends_them() -> None:
    """0.2 s, doubled up to 10 s, until a minute of waits; then the error tells tries and time."""
    waits = Waits()
    attempts = attempts_of(waits)
    with pytest.raises(StoreUnavailableError, match=r"cannot do it: busy \(11 tries in 53 s\)"):
        fail(attempts)
    assert waits.all == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])


def test_jitter_is_full() -> None:
    """A wait lies anywhere between nothing and its bound, so that crowds disperse."""
    waits = Waits()
    for random in (0.0, 0.25, 0.999):
        attempts_of(waits, random=random).failed(AGAIN, OSError())
    assert waits.all == pytest.approx([0.0, 0.05, 0.1998])


def test_received_bytes_renew_patience_but_sent_ones_do_not() -> None:
    """A download that gets on is not given up; an upload is not moved by what was not accepted."""
    waits = Waits()
    attempts = attempts_of(waits, num_bytes=100 * 1024 * 1024)
    for _ in range(100):
        attempts.received()
        attempts.failed(AGAIN, OSError())
    assert waits.all == [0.2] * 100
    with pytest.raises(StoreUnavailableError):
        fail(attempts)


def test_the_whole_is_bounded() -> None:
    """However much progress there is, the time limit for the size ends it."""
    waits = Waits()
    attempts = attempts_of(waits, num_bytes=32 * 1024 * 100)
    waits.now = 159.0
    attempts.received()
    waits.now = 161.0
    with pytest.raises(StoreUnavailableError, match="not finished after 160 s"):
        attempts.received()


def test_a_hiccup_is_few_tries_and_passes_quickly() -> None:
    """The third failure in a row is worth a word, and the first one if it was seconds in coming."""
    told: list[bool] = []
    waits = Waits()
    policy = RetryPolicy(clock=waits, random=lambda: 1.0, pause=waits.pause)

    def operation() -> Attempts:
        return Attempts("do it", policy, Stop(), lambda retried: told.append(retried.is_hiccup), 0)

    fail(operation(), times=3)
    assert told == [True, True, False]
    slow = operation()
    waits.now += 2.9
    slow.received()
    waits.now += 2.9
    fail(slow, times=1)
    waits.now += 2.9
    fail(slow, times=1)
    assert told[3:] == [True, False]


def test_a_verdict_may_limit_tries() -> None:
    """A failure that will not go away is raised at once; one worth three tries is tried thrice."""
    for tries in (1, 3):
        waits = Waits()
        attempts = attempts_of(waits)
        with pytest.raises(StoreError, match="no"):
            fail(attempts, Verdict(StoreError, "no", tries=tries))
        assert len(waits.all) == tries - 1


def test_stop_reaches_children_and_sleepers() -> None:
    """Setting a stop ends the waits under it, also those of later children; not the other way."""
    parent = Stop()
    child = parent.child()
    sibling = parent.child()
    child.set()
    sibling.check()
    parent.check()
    with pytest.raises(StoreUnavailableError):
        child.check()
    woken = threading.Event()

    def sleep() -> None:
        with pytest.raises(StoreUnavailableError):
            sibling.wait(60)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    parent.set()
    assert woken.wait(10)
    thread.join()
    with pytest.raises(StoreUnavailableError):
        parent.child().check()


BROKEN_MODEL = {boto.MissingServiceIdError, boto.UndefinedModelAttributeError}
"""Raised only when the files of botocore itself are damaged."""

BOTO_ERRORS = [
    kind
    for _, kind in inspect.getmembers(boto, inspect.isclass)
    if issubclass(kind, Exception) and not issubclass(kind, Warning) and kind not in BROKEN_MODEL
]


@pytest.mark.parametrize("kind", BOTO_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_boto3_is_mapped(kind: type[Exception]) -> None:
    """No exception of the client library can escape: each is caught and becomes one of ours."""
    error: Exception = kind.__new__(kind, "said so")
    if isinstance(error, ClientError):
        error.response = {}
    assert isinstance(error, S3_ERRORS)
    verdict = judge(error, PLACE, SystemClock())
    assert issubclass(verdict.kind, StoreError)
    assert issubclass(verdict.kind, DdlError)
    assert verdict.message
