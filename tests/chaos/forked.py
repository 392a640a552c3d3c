"""`ddl` processes by the dozen: forked from one that has imported torch, with faults built in.

They are processes like any other, with a pid, signals and an exit code; only the seconds of importing
are saved.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from ddl.protocol.records import LearnerRecord
from ddl.registry.base import View
from tests.chaos.books import receipts
from tests.chaos.failpoints import Failpoint, arm
from tests.processes import Fleet, Process

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["ddl_cli.app", "ddl.learner.run", "ddl.coordinator.start", "ddl.registry.reader"]
)


TASK = Path(__file__).with_name("chaos_task.py")


class Forked:
    """A process of the fork server as a `tests.processes.Process`."""

    def __init__(self, process: ForkServerProcess) -> None:
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError(f"process {self.pid} has not ended within {timeout} s")
        return code

    def send_signal(self, signal: int, /) -> None:
        os.kill(self.pid, signal)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ChaosFleet(Fleet):
    """A fleet of forked processes; the next one to be started can be given a fault.

    Attributes:
        forks: whether processes are forked; else they are started in the ordinary way.
    """

    forks = True
    _next: Failpoint | None = None

    def __init__(self, folder: Path, redis_url: str) -> None:
        super().__init__(folder, redis_url)
        self.task = TASK.read_text()

    def begin(self, **sections: Mapping[str, object]) -> Process:
        """A run with a coordinator and the learner `steady`, at work; returns the learner."""
        self.write_run(**({"health": {"rollback": "off"}} | sections))
        self.coordinator()
        self.until(self.snapshot, "the run is in Redis")
        steady = self.learner("steady")
        self.until_version(2)
        return steady

    def stuck(self, learner: str, where: str, *args: str) -> tuple[Process, Path]:
        """Start a learner that gets stuck (`chaos_task`); the file is there once it is.

        `args`: more of its task's arguments, KEY=VALUE.
        """
        mark = self.folder / f"stuck in {where}"
        all_args = [f"stuck={where}", f"mark={mark}", *args]
        return self.learner(learner, *(word for arg in all_args for word in ("--arg", arg))), mark

    def finish(self) -> None:
        """Stop the run, and wait until all its processes have ended by themselves."""
        assert self.ddl("stop", self.address).wait(timeout=60) == 0
        for process in self.processes:
            process.wait(timeout=60)

    def until_grown(self, by: int = 2) -> None:
        """Wait for so many more versions."""
        self.until_version(self.version() + by)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def look(self) -> View:
        """All that Redis shows."""
        return self._reader.view()

    def steps(self, learner: str) -> int:
        """Steps that it has taken, also when Redis cannot tell."""
        try:
            return int((self.folder / f"{learner}.steps").read_text() or 0)
        except FileNotFoundError:
            return 0

    def trace(self, learner: str) -> list[tuple[int, float, float]]:
        """Of each step: the run's clock, the learning rate, and when it ended (monotonic)."""
        text = (self.folder / f"{learner}.trace").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        rows = (line.split(" ") for line in lines)
        return [(int(tokens), float(rate), float(at)) for tokens, rate, at in rows]

    def until_steps(self, learner: str, more: int = 10) -> None:
        """Wait until it has taken so many more steps."""
        target = self.steps(learner) + more
        self.until(lambda: self.steps(learner) >= target, f"{learner} takes {more} more steps")

    def merged(self, learner: str) -> int:
        """How many of its contributions have been merged."""
        found = receipts(self.store, self.run).values()
        return sum(r.learner == learner and r.fate == "merged" for r in found)

    def until_merged(self, learner: str) -> None:
        """Wait until one more contribution of it has been merged."""
        before = self.merged(learner)
        self.until(lambda: self.merged(learner) > before, f"work of {learner} is merged")

    def log_of(self, process: Process) -> str:
        """What it has said so far."""
        return self.log(1 + self.processes.index(process))

    def record(self, learner: str) -> LearnerRecord:
        """What a learner has said of itself last."""
        return self.look().learners[learner]

    def fail(self, point: str, kind: signal.Signals | None = None, *, nth: int = 1) -> Failpoint:
        """Give the next process that is started this fault."""
        mark = self.folder / f"reached-{point}-{self._num}"
        self._next = Failpoint(point, mark, kind, nth)
        return self._next

    def _start(
        self, arguments: Sequence[str], home: Path, log: Path, environment: Mapping[str, str]
    ) -> Process:
        if not self.forks:
            return super()._start(arguments, home, log, environment)
        failpoint, self._next = self._next, None
        work = (list(arguments), home, log, dict(environment), failpoint)
        return Forked(_CONTEXT.Process(target=_run, args=work))


def _run(
    arguments: list[str],
    home: Path,
    log: Path,
    environment: dict[str, str],
    failpoint: Failpoint | None,
) -> None:
    """Become `ddl ARGUMENTS`."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(home)
    with log.open("ab", buffering=0) as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.stdin = sys.__stdin__
    sys.argv = ["ddl", *arguments]
    if failpoint is not None:
        arm(failpoint)
    from ddl_cli.app import main

    main()
