"""Faults at named points of a real process, counted: `arm` runs in it before `ddl` does.

Points are what has just been done; the process notes that it got there, and then gets the signal.
Nothing of this is in `ddl` itself: its functions are wrapped from outside.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from ddl.core.learner import LearnerMachine
from ddl.learner import up
from ddl.learner.spool import Spool
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl.store.local import LocalStore


def _anything(*_: Any, **__: Any) -> bool:
    return True


def _put_of(folder: str) -> Callable[..., bool]:
    def matches(_: LocalStore, key: str, *__: Any, **___: Any) -> bool:
        return f"/{folder}/" in key

    return matches


class Place(NamedTuple):
    """A function of `ddl`, and which of its calls are meant."""

    owner: Any
    name: str
    matches: Callable[..., bool] = _anything


PLACES: Final = {
    # a learner's contribution, in order
    "snapshot": Place(up.UpThread, "take"),
    "encoded": Place(up, "encode_contribution"),
    "spooled": Place(Spool, "keep"),
    "put": Place(LocalStore, "put", _put_of("contributions")),
    "announced": Place(RedisLearner, "announce"),
    # a coordinator's version, in order
    "published": Place(LocalStore, "put", _put_of("fragments")),
    "outer": Place(LocalStore, "put", _put_of("outer")),
    "logged": Place(LocalStore, "put", _put_of("commits")),
    "shown": Place(RedisCoordinator, "commit"),
    # a learner that reads the log itself
    "followed": Place(LearnerMachine, "on_record"),
}


class Failpoint(NamedTuple):
    """At the `nth` time that `point` is reached: write `mark`, then send `signal` to oneself.

    Without a signal the process only leaves its mark.
    """

    point: str
    mark: Path
    signal: signal.Signals | None = None
    nth: int = 1

    @property
    def reached(self) -> bool:
        """Whether the process got there."""
        return self.mark.exists()


def arm(failpoint: Failpoint) -> None:
    """Wrap the function in this process."""
    owner, name, matches = PLACES[failpoint.point]
    original = getattr(owner, name)
    left = failpoint.nth

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        result = original(*args, **kwargs)
        if matches(*args, **kwargs):
            left -= 1
            if left == 0:
                failpoint.mark.touch()
                if failpoint.signal is not None:
                    os.kill(os.getpid(), failpoint.signal)
        return result

    setattr(owner, name, wrapped)
