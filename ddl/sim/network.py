"""The ways between processes and services: slow, lossy, cut on one side.

What may become of a call: it is done and answered; it is lost on its way; it is done, but the
answer is lost; it is done long after the caller has given up; it is done twice. In all but the
first case the caller gets an error and knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Literal, TypeVar

from ddl.errors import DdlError, RegistryUnavailableError, StoreUnavailableError
from ddl.sim.clockwork import Answer, KilledError, Process, Thread, Timeline

T = TypeVar("T")

Service = Literal["redis", "store"]

PATIENCE_S: Final[dict[Service, float]] = {"redis": 0.6, "store": 1.5}
"""After so many seconds a call has failed, for the caller."""

TYPICAL_S: Final[dict[Service, float]] = {"redis": 0.004, "store": 0.03}
"""A usual way in one direction."""

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

    def is_cut(self, name: str, service: Service) -> bool:
        return (name, service) in self.cut or (EVERYONE, service) in self.cut

    def way_s(self, service: Service) -> float:
        """Seconds that one way takes this time: mostly usual, now and then far longer."""
        rng = self.rng
        usual_s = TYPICAL_S[service] * (0.5 + rng.random())
        if rng.random() < self.noise:
            return usual_s * (1.0 + 200.0 * rng.random() ** 3)
        return usual_s


class Link:
    """One process' way to one service.

    Attributes:
        dies_in: the process dies at its so manyeth writing call from now; 0 for no such thing.
    """

    def __init__(self, network: Network, process: Process, service: Service) -> None:
        self.process = process
        self.service = service
        self.dies_in = 0
        self._network = network

    @property
    def is_cut(self) -> bool:
        return self._network.is_cut(self.process.name, self.service)

    def way_s(self) -> float:
        """Seconds that one way takes this time."""
        return self._network.way_s(self.service)

    def call(self, action: Callable[[], T], *, writes: bool = False) -> Thread[T]:
        """Do something at the service and bring back its result.

        Raises: what `action` raises; RegistryUnavailableError, StoreUnavailableError.
        """
        timeline = self._network.timeline
        dies_before, dies_after = self._death() if writes else (False, False)
        there_s, back_s = self.way_s(), self.way_s()
        patience_s = PATIENCE_S[self.service]
        lost, answer_lost, twice = self._mishaps()

        def ask(go_on: Callable[[Any], None]) -> None:
            def deliver() -> None:
                if dies_before:
                    self.process.kill()
                if self.is_cut or dies_before:
                    timeline.after(patience_s - there_s, give_up)
                    return
                timeline.events += 1
                result = _outcome(action)
                if dies_after:
                    self.process.kill()
                timeline.after(back_s, lambda: bring_back(result))

            def bring_back(result: Any) -> None:
                if self.is_cut or answer_lost:
                    timeline.after(max(0.0, patience_s - there_s - back_s), give_up)
                else:
                    go_on(result)

            def give_up() -> None:
                go_on(self._unavailable("no answer"))

            if lost or there_s + back_s > patience_s:
                timeline.after(patience_s, give_up)
            if not lost:
                timeline.after(there_s, deliver)
            if twice:
                self._later(there_s + self.way_s(), action)

        result = yield Answer(ask)
        return result  # type: ignore[no-any-return]

    def at_once(self, action: Callable[[], T], *, writes: bool = False) -> T:
        """The same for code that cannot wait: no time passes. The caller spends it afterwards.

        Raises: as `call`; KilledError.
        """
        dies_before, dies_after = self._death() if writes else (False, False)
        lost, answer_lost, twice = self._mishaps()
        if dies_before:
            raise KilledError
        there_s = self.way_s()
        if there_s > PATIENCE_S[self.service] and not self.is_cut:
            self._later(there_s, action)
            lost = True
        if lost or self.is_cut:
            raise self._unavailable("no answer")
        result = action()
        if twice:
            self._later(there_s, action)
        if dies_after:
            raise KilledError
        if answer_lost:
            raise self._unavailable("the answer was lost")
        return result

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        """Do it at the service although nobody waits for it."""

        def act() -> None:
            _outcome(action)

        self._network.timeline.after(seconds, act)

    def _mishaps(self) -> tuple[bool, bool, bool]:
        """Whether a call is lost, its answer is lost, it is done twice."""
        noise = self._network.noise
        chance = self._network.rng.random()
        return (
            chance < noise / 3,
            noise / 3 <= chance < 2 * noise / 3,
            2 * noise / 3 <= chance < noise,
        )

    def _death(self) -> tuple[bool, bool]:
        """Whether the process dies just before or just after this write."""
        if self.dies_in == 0:
            return False, False
        self.dies_in -= 1
        dies = self.dies_in == 0
        before = dies and self._network.rng.random() < 0.5
        return before, dies and not before

    def _unavailable(self, why: str) -> DdlError:
        text = f"{self.service}, as {self.process.name} reaches it: {why}"
        if self.service == "redis":
            return RegistryUnavailableError(text)
        return StoreUnavailableError(text)


def _outcome(action: Callable[[], T]) -> T | Exception:
    try:
        return action()
    except DdlError as error:
        return error
