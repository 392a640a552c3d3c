"""The base of a learner's background threads: what ends one of them ends the learner."""

from __future__ import annotations

import threading
from abc import abstractmethod

from ddl.errors import DdlError
from ddl.learner.shared import Shared


class Worker(threading.Thread):
    """A thread whose errors the training thread raises at its next step boundary."""

    def __init__(self, name: str, shared: Shared) -> None:
        super().__init__(name=f"ddl-{name}", daemon=True)
        self._shared = shared

    @abstractmethod
    def work(self) -> None:
        """What the thread does, until the learner leaves."""

    def run(self) -> None:
        try:
            self.work()
        except DdlError as error:
            self._shared.fail(error)
        except BaseException as error:  # noqa: BLE001 - a thread has nobody above it: handed over
            failure = DdlError(
                f"the thread {self.name} has failed: {type(error).__name__}: {error}",
                hint="`ddl --debug ...` shows the whole traceback",
            )
            failure.__cause__ = error
            self._shared.fail(failure)
