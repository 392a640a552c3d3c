"""Real `ddl` processes for tests: started, watched, killed, and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from ddl.core.snapshot import snapshot
from ddl.protocol.records import LearnerView, RunSnapshot
from ddl.registry.reader import RedisReader

T = TypeVar("T")

PACED_TASK = '''
"""A small regression whose steps take as long as a GPU's would: they wait, and let go of the GIL."""
import threading
import torch
import ddl

def build(ctx):
    torch.manual_seed(ctx.seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8), torch.nn.Linear(8, 1)
    ).to(ctx.device)
    if ctx.purpose != "train":
        return ddl.Task(model=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    step_s = float(ctx.args.get("step_s", 0.02))
    generator = torch.Generator().manual_seed(ctx.data_seed % 2**31)
    clock = threading.Event()

    def batches():
        while True:
            x = torch.randn(16, 8, generator=generator)
            yield x, x.sum(1, keepdim=True)

    def step(batch, progress):
        clock.wait(step_s)
        x, y = batch
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return ddl.StepResult(loss=loss, tokens=16)

    return ddl.Task(model=model, optimizer=optimizer, batches=batches(), step=step)
'''


class Process(Protocol):
    """What tests do with a process; `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, signal: int, /) -> None: ...
    def kill(self) -> None: ...


class Fleet:
    """Processes of one run in one folder; as a context manager it ends them all by pid.

    With `apart` each process has a working folder and a home of its own, as on machines of their
    own; `environment` is given to all of them.
    """

    def __init__(
        self,
        folder: Path,
        redis_url: str,
        *,
        run: str = "walk",
        apart: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.apart = apart
        self.environment = dict(environment or {})
        self.redis_url = redis_url
        self.run = run
        self.task = PACED_TASK
        self.processes: list[Process] = []
        self._num = 0
        self._reader = RedisReader(redis_url, run)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._reader.close()
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"---- {log.name}\n{log.read_text()[-3000:]}")

    @property
    def address(self) -> str:
        return f"{self.redis_url}?run={self.run}"

    def write_run(self, **sections: Mapping[str, object]) -> Path:
        """`run.toml`, with short waits, and `task.py`, which is `task`; `sections` stand above."""
        tables: dict[str, dict[str, object]] = {
            "run": {"name": self.run},
            "redis": {"url": self.redis_url},
            "store": {"url": (self.folder / "store").as_uri()},
            "fragments": {"num": 2},
            "round": {"every_steps": 8, "overlap_steps": 2},
            "liveness": {"beat_s": 0.2, "suspect_s": 1.0, "gone_s": 2.0, "lease_s": 2.0},
            "health": {"rollback": "off"},  # its loss soon is nothing but noise
        }
        for name, values in sections.items():
            tables.setdefault(name, {}).update(values)
        lines = []
        for name, values in tables.items():
            lines.append(f"[{name}]")
            lines += [f"{k} = {_toml(v)}" for k, v in values.items()]
        (self.folder / "task.py").write_text(self.task)
        path = self.folder / "run.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def ddl(self, *arguments: str) -> Process:
        """Start `ddl ARGUMENTS` with its output in a log file of its own."""
        self._num += 1
        words = [a for a in arguments[:2] if a.isalpha()]
        log = self.folder / f"{self._num:02d}-{'-'.join(words)}.log"
        home = self._home(log.stem) if self.apart else self.folder
        own = {"DDL_SPOOL": str(home / "spool"), "OMP_NUM_THREADS": "1"}
        if self.apart:
            own |= {"HOME": str(home)}
        process = self._start(arguments, home, log, os.environ | own | self.environment)
        self.processes.append(process)
        return process

    def _start(
        self, arguments: Sequence[str], home: Path, log: Path, environment: Mapping[str, str]
    ) -> Process:
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "ddl_cli", *arguments],
                cwd=home,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def _home(self, name: str) -> Path:
        home = self.folder / name
        home.mkdir()
        for file in ("run.toml", "task.py"):
            shutil.copy(self.folder / file, home)
        return home

    def log(self, num: int) -> str:
        """What the `num`-th process has said so far."""
        (path,) = self.folder.glob(f"{num:02d}-*.log")
        return path.read_text()

    def coordinator(self, *more: str) -> Process:
        return self.ddl("coordinator", "start", "run.toml", *more)

    def learner(self, id_: str, *more: str, via: str | None = None) -> Process:
        """Start a learner; `via`: another way to the same Redis."""
        return self.ddl(
            "learner",
            "join",
            f"{via or self.redis_url}?run={self.run}",
            "--task",
            "task.py",
            "--id",
            id_,
            "--threads",
            "1",
            *more,
        )

    def snapshot(self) -> RunSnapshot | None:
        return snapshot(self._reader.view())

    def view(self, learner: str) -> LearnerView | None:
        shown = self.snapshot()
        return next((v for v in shown.learners if v.id == learner), None) if shown else None

    def version(self) -> int:
        shown = self.snapshot()
        return shown.run.global_version if shown else -1

    def until(self, look: Callable[[], T | None], what: str, *, within_s: float = 60.0) -> T:
        """The first truthy result of `look`; fails with the logs if there is none in time."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.05)
        raise AssertionError(f"not within {within_s:g} s: {what}; now {self.snapshot()}")

    def until_version(self, version: int, *, within_s: float = 60.0) -> None:
        self.until(lambda: self.version() >= version, f"version {version}", within_s=within_s)


def kill(process: Process) -> None:
    """SIGKILL, and wait until it is gone."""
    assert process.poll() is None, "it had ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
