"""Fixtures of the command line's tests."""

from __future__ import annotations

from contextlib import closing

import pytest

from ddl.protocol.address import join_address
from ddl.protocol.records import Fact, LearnerRecord
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from tests.views import learner, view


def publish(url: str, *, facts: tuple[Fact, ...] = ()) -> None:
    """Enter the run `demo` of `tests.views` into a Redis, with one learner that trains."""
    shown = view()
    assert shown.entry is not None
    assert shown.head is not None
    assert shown.lease is not None
    with (
        closing(RedisCoordinator(url, "demo")) as coordinator,
        closing(RedisLearner(url, "demo")) as member,
    ):
        reply = coordinator.take_lease(shown.lease, ttl_s=60, min_epoch=2)
        assert reply.lease is not None
        epoch = reply.lease.epoch
        assert coordinator.rebuild(epoch, shown.entry, shown.head, shown.fragments, ())
        assert coordinator.set_rounds(epoch, shown.rounds, wake=False)
        record: LearnerRecord = learner("anna")
        assert member.register(record, gone_s=15.0, takeover=False).refused == ""
        coordinator.tell(facts or shown.facts)


@pytest.fixture
def published(redis_url: str) -> str:
    """The join address of a run that a Redis knows."""
    publish(redis_url)
    return join_address(redis_url, "demo")
