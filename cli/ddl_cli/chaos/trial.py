"""One trial: start everything, play a tape on it, end it in good order."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from ddl.embedded import EmbeddedRedis
from ddl.errors import DdlError, RegistryError
from ddl.protocol.address import join_address
from ddl.registry.reader import RedisReader
from ddl.simulate.tape import Tape
from ddl_cli.chaos.acts import REDIS, Act, acts
from ddl_cli.chaos.course import Course, Incident
from ddl_cli.chaos.hands import COORDINATORS, WORDS, Hands
from ddl_cli.chaos.links import Link
from ddl_cli.chaos.steps import Span
from ddl_cli.demo.bucket import Storage
from ddl_cli.demo.cast import Cast, Play
from ddl_cli.demo.processes import Child
from ddl_cli.demo.stage import LEAVE_S, await_genesis
from ddl_cli.exits import Exit

LOOK_S: Final = 0.05
"""Longest time between two looks at the processes."""

HEAD_EVERY_S: Final = 0.5
"""How often it is noted which version Redis shows."""

START_S: Final = 240.0
"""Longest wait for all learners to take their first steps; they import torch all at once."""

END_S: Final = 60.0
"""Longest wait for the run to end: a coordinator may just have been started again."""

AGAIN: Final = (Exit.USAGE, Exit.UNREACHABLE, Exit.LEASE_LOST, Exit.START_AGAIN)
"""Exit codes after which a process is started again without anything being wrong. USAGE: who joins
while Redis has just been emptied is told that there is no such run."""

Say = Callable[[str], None]


def perform(
    play: Play, storage: Storage, tape: Tape, say: Say, *, redis_url: str | None = None
) -> Course:
    """Play a tape on a run that ends with it.

    Args:
        redis_url: of a Redis of somebody's; by default one is started.
    Raises: DdlError when the run cannot be started or ended. However it ends, no process is left.
    """
    steps = (play.folder / "steps").resolve()
    steps.mkdir(parents=True)
    with ExitStack() as stack:
        redis, url = None, redis_url
        if url is None:
            redis = stack.enter_context(EmbeddedRedis(play.folder / "redis", persist=False))
            url = redis.url
        registry = stack.enter_context(closing(RedisReader(url, play.run)))
        store = stack.enter_context(closing(storage.open()))
        links = {
            f"learner-{number}": stack.enter_context(Link(url))
            for number in range(1, play.learners + 1)
        }
        cast = stack.enter_context(Cast(play, url, storage))
        course = Course()
        hands = Hands(
            cast=cast,
            redis=redis,
            registry=registry,
            links=links,
            store=store,
            run=play.run,
            steps=steps,
            course=course,
        )
        address = join_address(url, play.run)
        trial = Trial(cast, hands, registry, course, folder=play.folder, address=address, say=say)
        await_genesis(registry, cast.start_coordinator(COORDINATORS[0]))
        for name in (*COORDINATORS[1:], *cast.names):
            hands.start(name)
        trial.await_steps(steps)
        trial.play(tape)
        trial.end()
        course.view = registry.view(num_facts=0)
    return course


class Trial:
    """A run whose processes are all started."""

    def __init__(
        self,
        cast: Cast,
        hands: Hands,
        registry: RedisReader,
        course: Course,
        *,
        folder: Path,
        address: str,
        say: Say,
    ) -> None:
        self._cast = cast
        self._hands = hands
        self._registry = registry
        self._course = course
        self._folder = folder
        self._address = address
        self._say = say
        self._head_at = 0.0

    def await_steps(self, steps: Path) -> None:
        """Wait until every learner has taken a step. Raises: DdlError."""
        deadline = time.monotonic() + START_S
        while waiting := [name for name in self._cast.names if not _has_stepped(steps / name)]:
            self._supervise()
            if time.monotonic() > deadline:
                raise DdlError(
                    f"{', '.join(waiting)} took no step within {START_S:g} s",
                    hint=f"The logs are in {self._folder / 'logs'}",
                )
            time.sleep(LOOK_S)

    def play(self, tape: Tape) -> None:
        """Do all that the tape says until its horizon, then undo what still lasts. Raises: DdlError."""
        began = time.time()
        left = acts(tape)
        hits: dict[int, Incident] = {}
        while (now := time.time() - began) < tape.horizon_s:
            while left and left[0].at_s <= now:
                self._do(left.pop(0), tape, hits)
            self._hands.look()
            self._supervise()
            self._note_head()
            next_s = min(left[0].at_s, tape.horizon_s) if left else tape.horizon_s
            time.sleep(max(0.0, min(LOOK_S, next_s - now)))
        window = self._course.window = Span(began, time.time())
        lasting = {act.fault for act in left}
        self._course.incidents = [
            hit._replace(over_at=window.end) if place in lasting else hit
            for place, hit in hits.items()
        ]
        self._hands.mend_all()

    def end(self) -> None:
        """Stop the run by the public command, and see all leave. Raises: DdlError."""
        leader = self._hands.dismiss_standby()
        self._stop()
        coordinator = self._cast.children[leader]
        if coordinator.wait(END_S) != 0:
            raise coordinator.death()
        for name in self._cast.names:
            child = self._cast.children[name]
            if name in self._hands.down:
                continue
            code = child.wait(LEAVE_S)
            self._course.alive.end(name, time.time())
            if code == 0:
                self._course.left.add(name)
            elif code is None:
                self._course.problems.append(f"{name} still runs {LEAVE_S:g} s after the end")
            else:
                self._course.problems.append(str(child.death()))

    def _stop(self) -> None:
        """A coordinator that has just been started cannot be asked yet: try again."""
        deadline = time.monotonic() + END_S
        log = self._folder / "logs" / "stop.log"
        while True:
            self._supervise()
            stop = Child("ddl stop", ["stop", self._address, "--timeout", "10"], log=log, env={})
            code = stop.wait(END_S)
            stop.ask_to_end()
            stop.reap()
            if code == 0:
                return
            if time.monotonic() > deadline:
                raise stop.death()

    def _do(self, act: Act, tape: Tape, hits: dict[int, Incident]) -> None:
        pid, at = self._hands.pid(act.target), time.time()
        self._hands.do(act)
        hit = hits.get(act.fault) or Incident(tape.faults[act.fault], act.target, pid, at, at)
        hits[act.fault] = hit._replace(over_at=time.time())
        hurt = pid and act.verb != "start"
        who = f"{act.target} (process {pid})" if hurt else act.target
        self._say(f"{act.at_s:7.1f} s  {who} {WORDS[act.verb]}")

    def _supervise(self) -> None:
        """Start again what ended by itself, as a service manager does."""
        for name, child in list(self._cast.children.items()):
            code = child.ended()
            if code is None or name in self._hands.down:
                continue
            self._hands.gone(name)
            sentence = f"{name}, process {child.pid}, ended by itself with exit code {code}"
            self._say(f"           {sentence}, and is started again")
            self._course.restarts.append(sentence)
            if code not in AGAIN:
                self._course.problems.append(str(child.death()))
            self._hands.start(name)

    def _note_head(self) -> None:
        if time.monotonic() < self._head_at or REDIS in self._hands.down:
            return
        self._head_at = time.monotonic() + HEAD_EVERY_S
        try:
            head = self._registry.view(num_facts=0).head
        except RegistryError:
            return  # it has just been killed, or emptied
        if head is not None:
            self._course.heads[head.seq] = head.digest


def _has_stepped(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0
