"""Plays the demo: starts everything, kills one learner, lets another one join late, sees it end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from itertools import filterfalse
from typing import Final, NamedTuple

from msgspec.structs import replace

from ddl.core.membership import PRESENT
from ddl.core.preset import AUTO
from ddl.core.snapshot import snapshot
from ddl.embedded import EmbeddedRedis
from ddl.errors import DdlError
from ddl.protocol.records import Fact, RunSnapshot
from ddl.registry.base import View
from ddl.registry.reader import RedisReader
from ddl_cli.demo.bucket import Storage
from ddl_cli.demo.cast import RUN, Cast, Options
from ddl_cli.demo.processes import Child
from ddl_cli.display import Display
from ddl_cli.reading import EVENTS_READ, Reader
from ddl_cli.view.head import done_ratio

KILL_AT: Final = 0.40
"""Share of the run after which one learner is killed."""

JOIN_AT: Final = 0.55
"""Share of the run after which another one joins."""

LOOK_S: Final = 0.5
"""Between two looks at the run."""

GENESIS_S: Final = 120.0
"""Longest wait for the coordinator to create the run; it imports torch and builds the model."""

STILL_S: Final = 120.0
"""No new version for so long: something is wrong."""

LEAVE_S: Final = 30.0
"""Longest wait for a learner to leave when the run has ended."""

NOTICE_S: Final = 2.0
"""How much longer than `liveness.gone_s` a dead learner may be counted: two beats and a look."""


class Played(NamedTuple):
    """What was seen. `problems` are sentences on what should not have been."""

    view: View
    snapshot: RunSnapshot
    killed: tuple[str, ...]
    joined_late: tuple[str, ...]
    seconds: float
    problems: tuple[str, ...]


def play(options: Options, storage: Storage, display: Display) -> Played:
    """Run everything from the first process to the last, and show it.

    Raises: DdlError when a process ends that should not, or nothing moves for STILL_S. However it
    ends, no process is left.
    """
    started = time.monotonic()
    with (
        EmbeddedRedis(options.folder / "redis", persist=False) as redis,
        closing(RedisReader(redis.url, RUN)) as registry,
        Cast(options.play(), redis.url, storage) as cast,
    ):
        stage = Stage(options, cast, registry, display)
        stage.perform()
        seconds = time.monotonic() - started
        view = registry.view(num_facts=EVENTS_READ)
    last = snapshot(view)
    if last is None:
        raise DdlError("Redis lost the run before its end could be looked at")
    remaining = [
        f"{child.name} (process {child.pid}) is left running" for child in cast.remaining()
    ]
    return Played(
        view=view,
        snapshot=last,
        killed=tuple(stage.killed_at),
        joined_late=tuple(stage.joined_late),
        seconds=seconds,
        problems=(*stage.problems, *remaining),
    )


class Stage:
    """One performance.

    Attributes:
        killed_at: learner -> Redis time of its death.
        joined_late: those that joined when the run was well under way.
        problems: sentences on what should not have been.
    """

    def __init__(
        self, options: Options, cast: Cast, registry: RedisReader, display: Display
    ) -> None:
        self.killed_at: dict[str, float] = {}
        self.joined_late: list[str] = []
        self.problems: list[str] = []
        self._options = options
        self._cast = cast
        self._registry = registry
        self._display = display
        self._gone_s = 0.0
        self._version = -1
        self._moved_at = time.monotonic()

    def perform(self) -> None:
        """From the start of the coordinator until the last learner has left. Raises: DdlError."""
        coordinator = self._cast.start_coordinator()
        view = await_genesis(self._registry, coordinator)
        first = snapshot(view)
        assert first is not None
        assert view.entry is not None
        self._gone_s = view.entry.settings.liveness.gone_s
        for name in self._cast.names:
            self._cast.start_learner(name)
        reader = Reader(self._look, first)
        with self._display.running():
            while coordinator.wait(LOOK_S) is None:
                seen, notice = reader.next()
                self._display.show(seen, notice)
                self._check(seen)
                self._act(seen)
            if coordinator.ended() != 0:
                raise coordinator.death()
            self._await_leaving()
            self._display.show(*reader.next())

    def _look(self) -> RunSnapshot | None:
        """The run, without what its preset chooses all the time, which would drown the rest; and while our
        learners are only being started, without the trouble that there are none."""
        seen = snapshot(self._registry.view(num_facts=EVENTS_READ))
        if seen is None:
            return None
        troubles = seen.troubles
        if not seen.run.global_version:
            troubles = tuple(one for one in troubles if one.name != "rounds.below_quorum")
        events = tuple(filterfalse(_is_chosen, seen.events))
        return replace(seen, events=events, troubles=troubles)

    def _await_leaving(self) -> None:
        """The run has ended: see every learner go, by itself and without an error."""
        for name, child in self._cast.children.items():
            if name in self.killed_at:
                continue
            code = child.wait(LEAVE_S)
            if code is None:
                self.problems.append(f"{name} still runs {LEAVE_S:g} s after the end of the run")
            elif code != 0:
                raise child.death()

    # ---- what the script says -----------------------------------------------------------------

    def _act(self, seen: RunSnapshot) -> None:
        """Kill and let join when the time has come; also put it among the run's own events."""
        done = done_ratio(seen) or 0.0
        if self._options.kill and not self.killed_at and done >= KILL_AT:
            victim = self._cast.names[-1]
            self._cast.children[victim].kill()
            self.killed_at[victim] = seen.taken_at
            self._tell(seen, f"demo: {victim} is killed (SIGKILL)")
        if not self.joined_late and done >= JOIN_AT:
            self._cast.start_learner(self._cast.latecomer)
            self.joined_late.append(self._cast.latecomer)
            self._tell(seen, f"demo: {self._cast.latecomer} is started late")

    def _tell(self, seen: RunSnapshot, text: str) -> None:
        self._registry.tell([Fact(at=seen.taken_at, name="demo.acted", text=text)])

    # ---- what must hold meanwhile -----------------------------------------------------------------

    def _check(self, seen: RunSnapshot) -> None:
        for name, child in self._cast.children.items():
            if name not in self.killed_at and child.ended() not in (None, 0):
                raise child.death()
        self._check_pace(seen)
        for name in still_counted(seen, self.killed_at, self._gone_s):
            sentence = f"{name} was still counted when it could be known to be dead"
            if sentence not in self.problems:
                self.problems.append(sentence)

    def _check_pace(self, seen: RunSnapshot) -> None:
        now = time.monotonic()
        if seen.run.global_version != self._version:
            self._version, self._moved_at = seen.run.global_version, now
        elif now - self._moved_at > STILL_S:
            raise DdlError(
                f"no new version for {STILL_S:g} s; the run stands at {self._version}",
                hint=f"The logs are in {self._options.folder / 'logs'}",
            )


def _is_chosen(fact: Fact) -> bool:
    return fact.name == "run.settings" and fact.fields.get("who") == AUTO


def await_genesis(registry: RedisReader, coordinator: Child) -> View:
    """Wait until the coordinator has created the run. Raises: DdlError."""
    deadline = time.monotonic() + GENESIS_S
    while True:
        view = registry.view(num_facts=EVENTS_READ)
        if view.entry is not None and snapshot(view) is not None:
            return view
        if coordinator.wait(LOOK_S) is not None:
            raise coordinator.death()
        if time.monotonic() > deadline:
            raise DdlError(
                f"the coordinator has not created the run within {GENESIS_S:g} s",
                hint=f"Its log is {coordinator.log}",
            )


def still_counted(seen: RunSnapshot, killed_at: Mapping[str, float], gone_s: float) -> list[str]:
    """Killed learners that are shown as present, or that a round waits for, although they have been
    dead for longer than it takes to notice."""
    present = {row.id for row in seen.learners if row.state in PRESENT}
    awaited = {name for round_ in seen.rounds for name in round_.awaited}
    return [
        name
        for name, at in killed_at.items()
        if seen.taken_at > at + gone_s + NOTICE_S and name in present | awaited
    ]
