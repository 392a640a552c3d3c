"""Who plays in the demo, and in `ddl chaos`: the coordinator and the learners, as the public commands
start them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ddl.protocol.address import join_address
from ddl_cli.demo.bucket import Storage
from ddl_cli.demo.processes import Child

RUN: Final = "stdlib-gpt"
"""The run's name in the packaged run.toml."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the demo is played.

    Attributes:
        folder: holds all that it writes; exists.
        learners: how many there are from the beginning.
        commits: versions to make; None for the budget of the packaged run.toml.
        kill: whether one learner is killed.
        settings: dotted key -> text, changes to the packaged run.toml.
        s3: whether objects go to an S3 server of the demo's own, instead of a directory.
    """

    folder: Path
    learners: int = 3
    commits: int | None = None
    kill: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)
    s3: bool = False

    def play(self) -> Play:
        """What its processes run."""
        settings = dict(self.settings)
        if self.commits is not None:
            settings |= {"stop.commits": str(self.commits), "stop.tokens": "0"}
        return Play(
            folder=self.folder,
            files=data("run.toml").parent,
            run=RUN,
            learners=self.learners,
            settings=settings,
        )


def data(name: str, task: str = "stdlib_gpt") -> Path:
    """A file of a packaged task."""
    return Path(str(resources.files("ddl_cli") / "data" / task / name))


@dataclass(frozen=True, kw_only=True)
class Play:
    """What the processes of a cast run.

    Attributes:
        folder: holds their logs and spools.
        files: the folder of `run.toml` and `task.py`.
        run: the name in that `run.toml`.
        learners: how many there are from the beginning.
        settings: dotted key -> text, changes to `run.toml`.
    """

    folder: Path
    files: Path
    run: str
    learners: int
    settings: Mapping[str, str] = field(default_factory=dict)


class Cast:
    """The processes of a play; a context manager that ends them all.

    Attributes:
        names: the learners that are there from the beginning.
        latecomer: the one that joins late.
        children: the newest process of every name.
    """

    def __init__(self, play: Play, redis_url: str, storage: Storage) -> None:
        self._play = play
        self._storage = storage
        self._redis_url = redis_url
        self.names = [f"learner-{number}" for number in range(1, play.learners + 1)]
        self.latecomer = f"learner-{play.learners + 1}"
        self.children: dict[str, Child] = {}

    def start_coordinator(self, name: str = "coordinator", *, standby: bool = False) -> Child:
        """Start a coordinator; a standby waits while another one works."""
        settings = dict(self._play.settings)
        arguments = ["coordinator", "start", str(self._play.files / "run.toml")]
        arguments += ["--redis", self._redis_url, "--store", self._storage.url]
        if self._storage.settings.endpoint_url:
            settings |= {"store.endpoint_url": self._storage.settings.endpoint_url}
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        arguments += ["--standby"] if standby else []
        return self._start(name, arguments)

    def start_learner(
        self, name: str, *, redis_url: str | None = None, args: Mapping[str, str] | None = None
    ) -> Child:
        """Start a learner, or start it again.

        Args:
            redis_url: how it reaches Redis, where it has a way of its own.
            args: of the task, on top of those of `run.toml`.
        """
        address = join_address(redis_url or self._redis_url, self._play.run)
        arguments = ["learner", "join", address, "--id", name]
        arguments += ["--task", str(self._play.files / "task.py"), "--device", "cpu"]
        arguments += ["--threads", str(self._threads())]
        for key, value in (args or {}).items():
            arguments += ["--arg", f"{key}={value}"]
        return self._start(name, arguments)

    def remaining(self) -> list[Child]:
        """Those that are still there, however they should have ended."""
        return [child for child in self.children.values() if child.is_there()]

    def _start(self, name: str, arguments: list[str]) -> Child:
        folder = self._play.folder.resolve()
        env = {"OMP_NUM_THREADS": str(self._threads()), "DDL_SPOOL": str(folder / "spool")}
        env |= self._storage.environment
        child = Child(name, arguments, log=folder / "logs" / f"{name}.log", env=env)
        self.children[name] = child
        return child

    def _threads(self) -> int:
        """Threads of each process: more than there are cores would be in each other's way."""
        return max(1, (os.cpu_count() or 1) // (self._play.learners + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in self.children.values():
            child.ask_to_end()
        for child in self.children.values():
            child.reap()
