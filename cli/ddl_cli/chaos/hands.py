"""Hands that do to real processes what a tape says."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ddl.embedded import EmbeddedRedis
from ddl.errors import ObjectNotFoundError, RegistryError
from ddl.protocol.keys import ObjectKeys
from ddl.registry.reader import RedisReader
from ddl.registry.redis import RedisServer
from ddl.store.base import Store
from ddl_cli.chaos.acts import COORDINATOR, REDIS, Act, Verb
from ddl_cli.chaos.course import Course
from ddl_cli.chaos.links import Link
from ddl_cli.demo.cast import Cast

WORDS: Final[dict[Verb, str]] = {
    "kill": "is killed (SIGKILL)",
    "start": "is started again",
    "halt": "is stopped (SIGSTOP)",
    "resume": "goes on (SIGCONT)",
    "cut": "is cut off from Redis",
    "mend": "reaches Redis again",
    "corrupt": "has a bit flipped in its next contribution",
    "flush": "is emptied (FLUSHALL)",
}


COORDINATORS: Final = ("coordinator-1", "coordinator-2")
"""One works, the other one stands by."""


class Hands:
    """Acts on the processes of a trial, and keeps in its course who is there.

    Args:
        redis: the trial's own server; None if it is another's, which is never touched.

    Attributes:
        down: those that have ended and have not been started again.
    """

    def __init__(
        self,
        *,
        cast: Cast,
        redis: EmbeddedRedis | None,
        registry: RedisReader,
        links: Mapping[str, Link],
        store: Store,
        run: str,
        steps: Path,
        course: Course,
    ) -> None:
        self.down: set[str] = set()
        self._cast = cast
        self._own_redis = redis
        self._registry = registry
        self._links = links
        self._damage = _Damage(store, run)
        self._steps = steps
        self._course = course
        self._do: Mapping[Verb, Callable[[str], None]] = {
            "kill": self.kill,
            "start": self.start,
            "halt": self.halt,
            "resume": self.resume,
            "cut": lambda name: self._links[name].cut(),
            "mend": lambda name: self._links[name].mend(),
            "corrupt": self._damage.expect,
            "flush": self.flush,
        }

    @property
    def _redis(self) -> EmbeddedRedis:
        assert self._own_redis is not None, "a tape with faults of another's Redis is refused"
        return self._own_redis

    def do(self, act: Act) -> None:
        """Do it; nothing happens to a process that is not there."""
        self._do[act.verb](act.target)

    def pid(self, target: str) -> int:
        """Its process, 0 if there is none."""
        if target == REDIS:
            return 0 if REDIS in self.down else self._redis.pid
        child = self._cast.children[self._name(target)]
        return child.pid if child.ended() is None else 0

    def leader(self) -> str:
        """The coordinator that holds the lease, else one that is there, else any."""
        there = [name for name in COORDINATORS if name in self._cast.children and self.pid(name)]
        try:
            lease = self._registry.view(num_facts=0).lease
        except RegistryError:
            lease = None  # Redis is away; whoever is there will have it
        for name in there:
            if lease is not None and f"-{self.pid(name)}-" in lease.holder:
                return name
        return (*there, *COORDINATORS)[0]

    def kill(self, target: str) -> None:
        if target == REDIS:
            if REDIS not in self.down:
                self._redis.kill()
            self.gone(REDIS)
        else:
            name = self._name(target)
            if self.pid(name):
                self._cast.children[name].kill()
            self.gone(name)

    def start(self, target: str) -> None:
        """Start what has ended, or was never started."""
        if target == COORDINATOR:
            for name in COORDINATORS:
                self.start(name)
        elif target in self.down or (target != REDIS and target not in self._cast.children):
            self.down.discard(target)
            self._start(target)

    def _start(self, name: str) -> None:
        if name == REDIS:
            self._redis.start()
        elif name in COORDINATORS:
            self._cast.start_coordinator(name, standby=True)
        else:
            args = {"steps": str(self._steps / name)}
            self._course.alive.begin(name, time.time())
            self._cast.start_learner(name, redis_url=self._links[name].url, args=args)

    def gone(self, name: str) -> None:
        """Its process has ended."""
        self.down.add(name)
        now = time.time()
        self._course.alive.end(name, now)
        self._course.halted.end(name, now)

    def halt(self, target: str) -> None:
        name = self._name(target)
        if self.pid(name):
            self._cast.children[name].signal(signal.SIGSTOP)
            self._course.halted.begin(name, time.time())

    def resume(self, target: str) -> None:
        for name in COORDINATORS if target == COORDINATOR else (target,):
            self._cast.children[name].signal(signal.SIGCONT)
            self._course.halted.end(name, time.time())

    def dismiss_standby(self) -> str:
        """End the coordinator that stands by: it would take up the run that the other one, whose name
        is returned, ends."""
        leader = self.leader()
        for name in COORDINATORS:
            if name != leader:
                self._cast.children[name].ask_to_end()
                self._cast.children[name].reap()
                self.gone(name)
        return leader

    def _name(self, target: str) -> str:
        return self.leader() if target == COORDINATOR else target

    def flush(self, _: str) -> None:
        if REDIS in self.down:
            return
        server = RedisServer(self._redis.url)
        try:
            server.call("FLUSHALL")
        except RegistryError as error:
            self._course.problems.append(f"Redis could not be emptied: {error}")
        finally:
            server.close()

    def look(self) -> None:
        """Damage what has been uploaded since the last look, if it is to be."""
        self._damage.look()

    def mend_all(self) -> None:
        """Undo all that still lasts, but leave dead learners dead."""
        for link in self._links.values():
            link.mend()
        for name in self._cast.children:
            self.resume(name)
        for target in (REDIS, COORDINATOR):
            self.start(target)


class _Damage:
    """Flips a bit of a learner's next contribution, as soon as it lies in the store."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._folder = ObjectKeys(run).contributions
        self._known: dict[str, set[str]] = {}

    def expect(self, learner: str) -> None:
        self._known[learner] = self._keys(learner)

    def look(self) -> None:
        for learner, known in list(self._known.items()):
            for key in sorted(self._keys(learner) - known)[:1]:
                self._flip(key)
                del self._known[learner]

    def _keys(self, learner: str) -> set[str]:
        return {found.key for found in self._store.list(f"{self._folder}{learner}/")}

    def _flip(self, key: str) -> None:
        try:
            body = self._store.get(key)
        except ObjectNotFoundError:
            return  # merged and removed already: it was too late
        body[-1] ^= 1
        self._store.put(key, body)
