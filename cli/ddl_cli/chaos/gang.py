"""Data-parallel training under torchrun, as people do it today, under the faults of a tape.

What a fault of a learner does to a rank is the same signal; torchrun starts all ranks again at once,
when one has died, and they go on from the last checkpoint. All else is in the baseline's favour: a
killed rank comes back without delay, a rank that is still starting is not hit, and what `ddl` has and
this has not (a network to a coordinator, uploads, a coordinator, Redis) does not fail.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from ddl import watchdog
from ddl.errors import DdlError
from ddl.simulate.tape import Tape
from ddl_cli.chaos.acts import Act, acts
from ddl_cli.chaos.steps import Span
from ddl_cli.demo.cast import data

START_S: Final = 240.0
LOOK_S: Final = 0.05
END_S: Final = 40.0
"""Torchrun gives its ranks 30 s to end, and the watchdog gives torchrun less."""

MODEL: Final = ("width", "depth", "context", "batch")


class Tick(NamedTuple):
    """A step of rank 0, when it had been taken. `life` counts restarts, `step` from the first one on."""

    at: float
    life: int
    step: int


class Drill(NamedTuple):
    """One run of the baseline.

    Attributes:
        start_s: from the command to the first step of all ranks.
        window: from then to the end of the tape.
        steps: those that are taken twice stand there twice.
        deaths: when a rank was killed.
        checkpoint_s: mean time of a checkpoint.
    """

    start_s: float
    window: Span
    steps: list[Tick]
    deaths: list[float]
    checkpoint_s: float

    @property
    def useful_steps(self) -> int:
        """How far the training came in the window; steps that were taken twice count once."""
        return self._reached(self.window.end) - self._reached(self.window.begin)

    @property
    def restarts_s(self) -> list[float]:
        """From each death to the first step of the next life, if that came before the next death."""
        found = []
        for at, until in pairwise([*self.deaths, self.window.end]):
            life = max((tick.life for tick in self.steps if tick.at <= at), default=0)
            back = next((tick.at for tick in self.steps if tick.life > life), until)
            if back < until:
                found.append(back - at)
        return found

    def _reached(self, at: float) -> int:
        return max((tick.step for tick in self.steps if tick.at <= at), default=0)


def drill(
    folder: Path,
    tape: Tape,
    *,
    args: Mapping[str, object],
    checkpoint_every: int,
    say: Callable[[str], None],
) -> Drill:
    """Run the baseline under a tape.

    Args:
        folder: holds all that it writes; is made.
        args: of the task: the size of the model, `batch`, and `step_s`.
        checkpoint_every: steps.
    Raises: DdlError if it does not start, or ends by itself. No process is left.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={tape.learners}", "--max-restarts=100000"]
    command += ["--monitor-interval=0.1", str(data("train.py", "baseline_ddp"))]
    command += ["--folder", str(folder), "--step-s", str(args["step_s"])]
    command += ["--checkpoint-every", str(checkpoint_every)]
    for name in MODEL:
        command += [f"--{name}", str(args[name])]
    began = time.time()
    with _running(command, folder / "torchrun.log") as ended:
        gang = _Gang(folder, tape.learners, ended)
        gang.await_steps()
        started = time.time()
        deaths = gang.play(tape, started, say)
        window = Span(started, time.time())
    times = folder / "checkpoint.seconds"
    seconds = [float(line) for line in times.read_text().split()] if times.exists() else []
    mean_s = sum(seconds) / len(seconds) if seconds else 0.0
    lines = (line.split() for line in (folder / "rank-0.steps").read_text().splitlines())
    ticks = [Tick(float(at), int(life), int(step)) for at, life, step in lines]
    return Drill(started - began, window, ticks, deaths, mean_s)


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[Callable[[], int | None]]:
    """The command, while the block runs; gives what tells its exit code."""
    with log.open("ab") as output:
        process, _ = watchdog.start(command, output=output, env={**os.environ, **_ENVIRONMENT})
    try:
        yield process.poll
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(END_S)
        process.stdout.close()


_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    # else ranks that are started again find the addresses of the dead in torchrun's store, and the
    # first restarts after a death fail
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class _Gang:
    """The ranks of a torchrun that runs."""

    def __init__(self, folder: Path, ranks: int, ended: Callable[[], int | None]) -> None:
        self._folder = folder
        self._ranks = ranks
        self._ended = ended

    def await_steps(self) -> None:
        """Wait until every rank has taken a step. Raises: DdlError."""
        deadline = time.monotonic() + START_S
        files = [self._folder / f"rank-{rank}.steps" for rank in range(self._ranks)]
        while not all(file.exists() and file.stat().st_size for file in files):
            self._check(deadline)
            time.sleep(LOOK_S)

    def play(self, tape: Tape, began: float, say: Callable[[str], None]) -> list[float]:
        """Do what the tape says to ranks; when one was killed."""
        left = [act for act in acts(tape) if act.verb in ("kill", "halt", "resume")]
        left = [act for act in left if act.target.startswith("learner-")]
        deaths: list[float] = []
        halted: dict[int, int] = {}
        deadline = time.monotonic() + tape.horizon_s + START_S
        while (now := time.time() - began) < tape.horizon_s:
            while left and left[0].at_s <= now:
                if self._do(left.pop(0), halted, say):
                    deaths.append(time.time())
            self._check(deadline)
            time.sleep(LOOK_S)
        for rank, pid in halted.items():
            if pid == self._pid(rank):
                _send(pid, signal.SIGCONT)
        return deaths

    def _do(self, act: Act, halted: dict[int, int], say: Callable[[str], None]) -> bool:
        """Send the signal; whether it killed a rank."""
        rank = int(act.target.rpartition("-")[2]) - 1
        pid = self._pid(rank)
        if pid is None:
            say(f"{act.at_s:7.1f} s  rank {rank} is not there to be hit")
            return False
        if act.verb == "resume":
            if halted.pop(rank, None) == pid:
                _send(pid, signal.SIGCONT)
            return False
        say(f"{act.at_s:7.1f} s  rank {rank} (process {pid}): {act.verb}")
        if act.verb == "halt":
            halted[rank] = pid
            _send(pid, signal.SIGSTOP)
            return False
        _send(pid, signal.SIGKILL)
        return True

    def _pid(self, rank: int) -> int | None:
        """The rank's process; None unless it lives, as the lock on its file shows."""
        file = self._folder / f"rank-{rank}.pid"
        if not file.exists():
            return None
        with file.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(held.read())
        return None

    def _check(self, deadline: float) -> None:
        code = self._ended()
        if code is not None or time.monotonic() > deadline:
            state = "does not step" if code is None else f"ended with exit code {code}"
            raise DdlError(
                f"the baseline under torchrun {state}",
                hint=f"Its log is {self._folder / 'torchrun.log'}",
            )


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ends at this very moment
        os.kill(pid, number)
