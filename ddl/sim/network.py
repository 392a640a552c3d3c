"""The ways between processes and services: slow, lossy, cut on one side.

What may become of a call: it is done and answered; it is lost on its way; it is done, but the
answer is lost; it is done long after the caller has given up; it is done twice. In all but the
first case the caller gets an error and knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, Literal, TypeVar

from ddl.errors import DdlError, RegistryUnavailableError, StoreUnavailableError
from ddl.sim.clockwork import KilledError, Process, Thread, Timeline

T = TypeVar("T")

Service = Literal["redis", "store"]

PATIENCE_S: Final[dict[Service, float]] = {"redis": 0.6, "store": 1.5}
"""After so many seconds a call has failed, for the caller."""

TYPICAL_S: Final[dict[Service, float]] = {"redis": 0.004, "store": 0.01}
"""A usual way in one direction."""

FAR_RATIO: Final = 4.0
"""A way that is disturbed may take so many times as long as callers wait."""

EVERYONE: Final = "everyone"


class Network:
    """All ways, and what is wrong with them now.

    Attributes:
        cut: (process or `EVERYONE`, service) of the ways that let nothing through.
        noise: chance that something is wrong with a call on a way that is not cut.
    """

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.cut: set[tuple[str, Service]] = set()
        self.noise = 0.0

    def way_s(self, service: Service) -> float:
        """Seconds that one way takes this time: mostly usual, now and then far longer."""
        rng = self.rng
        usual_s = TYPICAL_S[service] * (0.5 + rng.random())
        if self.noise and rng.random() < self.noise:
            return usual_s + FAR_RATIO * PATIENCE_S[service] * rng.random() ** 3
        return usual_s


class Link:
    """One process' way to one service.

    Attributes:
        dies_in: the process dies at its so manyeth writing call from now; 0 for no such thing.
    """

    def __init__(self, network: Network, process: Process, service: Service) -> None:
        self.process = process
        self.service = service
        self.timeline = network.timeline
        self.dies_in = 0
        self.network = network
        self._ways = {(process.name, service), (EVERYONE, service)}

    @property
    def is_cut(self) -> bool:
        return not self._ways.isdisjoint(self.network.cut)

    def way_s(self) -> float:
        """Seconds that one way takes this time."""
        return self.network.way_s(self.service)

    def call(self, action: Callable[[], T], *, writes: bool = False) -> Thread[T]:
        """Do something at the service and bring back its result.

        Raises: what `action` raises; RegistryUnavailableError, StoreUnavailableError.
        """
        result = yield _Call(self, action, writes=writes)
        return result  # type: ignore[no-any-return]

    def at_once(self, action: Callable[[], T], *, writes: bool = False) -> T:
        """The same for code that cannot wait: no time passes. The caller spends it afterwards.

        Raises: as `call`; KilledError.
        """
        dies_before, dies_after = self.death() if writes else (False, False)
        lost, answer_lost, twice = self.mishaps()
        if dies_before:
            raise KilledError
        there_s = self.way_s()
        if there_s > PATIENCE_S[self.service] and not self.is_cut:
            self.later(there_s, action)
            lost = True
        if lost or self.is_cut:
            raise self.unavailable("no answer")
        result = action()
        if twice:
            self.later(there_s, action)
        if dies_after:
            raise KilledError
        if answer_lost:
            raise self.unavailable("the answer was lost")
        return result

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do it at the service although nobody waits for it."""

        def act() -> None:
            _outcome(action)

        self.timeline.after(seconds, act)

    def mishaps(self) -> tuple[bool, bool, bool]:
        """Whether a call is lost, its answer is lost, it is done twice."""
        noise = self.network.noise
        if not noise:
            return False, False, False
        chance = self.network.rng.random()
        return (
            chance < noise / 3,
            noise / 3 <= chance < 2 * noise / 3,
            2 * noise / 3 <= chance < noise,
        )

    def death(self) -> tuple[bool, bool]:
        """Whether the process dies just before or just after this write."""
        if self.dies_in == 0:
            return False, False
        self.dies_in -= 1
        dies = self.dies_in == 0
        before = dies and self.network.rng.random() < 0.5
        return before, dies and not before

    def unavailable(self, why: str) -> DdlError:
        text = f"{self.service}, as {self.process.name} reaches it: {why}"
        if self.service == "redis":
            return RegistryUnavailableError(text)
        return StoreUnavailableError(text)


class _Call:
    """A call on its way to a service and back."""

    __slots__ = (
        "_action",
        "_answer_lost",
        "_back_s",
        "_dies_after",
        "_dies_before",
        "_given_up",
        "_go_on",
        "_link",
        "_lost",
        "_patience_s",
        "_there_s",
        "_twice",
    )

    def __init__(self, link: Link, action: Callable[[], object], *, writes: bool) -> None:
        self._link = link
        self._action = action
        self._go_on: Callable[[Any], None] = lambda _: None
        self._patience_s = PATIENCE_S[link.service]
        self._dies_before, self._dies_after = link.death() if writes else (False, False)
        way_s = link.network.way_s
        self._there_s, self._back_s = way_s(link.service), way_s(link.service)
        self._lost, self._answer_lost, self._twice = link.mishaps()
        self._given_up = self._lost or self._there_s + self._back_s > self._patience_s

    def ask(self, go_on: Callable[[Any], None]) -> None:
        """Set out; `go_on` gets the result, or the error."""
        self._go_on = go_on
        after = self._link.timeline.after
        if self._given_up:
            after(self._patience_s, self._give_up)
        if not self._lost:
            after(self._there_s, self._deliver)
        if self._twice:
            self._link.later(self._there_s + self._link.way_s(), self._action)

    def _deliver(self) -> None:
        link = self._link
        timeline = link.timeline
        if self._dies_before:
            link.process.kill()
        if link.is_cut or self._dies_before:
            self._give_up_in(self._patience_s - self._there_s)
            return
        timeline.events += 1
        result = _outcome(self._action)
        if self._dies_after:
            link.process.kill()
        if not self._given_up:
            timeline.after(self._back_s, partial(self._bring_back, result))

    def _bring_back(self, result: object) -> None:
        if self._link.is_cut or self._answer_lost:
            self._give_up_in(max(0.0, self._patience_s - self._there_s - self._back_s))
        else:
            self._go_on(result)

    def _give_up_in(self, seconds: float) -> None:
        if not self._given_up:
            self._given_up = True
            self._link.timeline.after(seconds, self._give_up)

    def _give_up(self) -> None:
        self._go_on(self._link.unavailable("no answer"))


def _outcome(action: Callable[[], T]) -> T | Exception:
    try:
        return action()
    except DdlError as error:
        return error
