"""One run's registry in a real Redis, with what a coordinator does about units of data."""

from __future__ import annotations

import msgspec

from ddl.core import units as core
from ddl.protocol.keys import RegistryKeys
from ddl.protocol.units import Holding, Reading, UnitCall, UnitReply, UnitsDone
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from tests.contract.registry_records import RUN, entry, head, learner, states
from tests.redis_servers import admin

GONE_S = 15.0
PLAN = "10 units/abc"


class World:
    """One run's registry, with what a coordinator does about units."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.coordinator = RedisCoordinator(url, RUN)
        self.learner = RedisLearner(url, RUN)
        self.logged: dict[str, UnitsDone] = {}
        self.seq = 0
        self._inbox = core.UnitsInbox()
        self.rebuild()

    def rebuild(self) -> None:
        shown = msgspec.structs.replace(head(self.seq), units=self.logged)
        assert self.coordinator.rebuild(1, entry(boot=f"boot-{self.seq}"), shown, states(), [])

    def join(self, name: str, incarnation: int = 1) -> None:
        record = learner(name, incarnation)
        joined = self.learner.register(record, gone_s=GONE_S, takeover=True)
        assert joined.refused == ""

    def lose(self, name: str) -> None:
        """Make its last beat so old that it counts as gone."""
        with admin(self.url) as client:
            client.hset(RegistryKeys(RUN).beats, name, "1.0")

    def tell(
        self,
        name: str,
        *,
        incarnation: int = 1,
        number: int = 1,
        held: tuple[Holding, ...] = (),
        finished: tuple[Reading, ...] = (),
        want: int = 0,
        plan: str = PLAN,
    ) -> UnitReply:
        call = UnitCall(
            name="train", plan=plan, number=number, held=held, finished=finished, want=want
        )
        reply = self.exchange(name, incarnation, call)
        assert reply is not None
        return reply

    def exchange(self, name: str, incarnation: int, call: UnitCall) -> UnitReply | None:
        return self.learner.exchange_units(learner(name, incarnation), call, gone_s=GONE_S)

    def commit(self) -> None:
        """Write what Redis names as finished into the log, and show that."""
        self._inbox.told = self.coordinator.poll().units
        added = self._inbox.unlogged(self.logged)
        assert core.misfit(self.logged, added) == ""
        self.logged = core.fold(self.logged, added)
        self.seq += 1
        shown = msgspec.structs.replace(head(self.seq), units=self.logged)
        assert self.coordinator.commit(1, shown, [], [])

    def close(self) -> None:
        self.coordinator.close()
        self.learner.close()
