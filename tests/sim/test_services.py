"""The simulated services do what real ones do: they pass the same contract tests.

Left out are tests that reach into a real server, or measure how long a wait takes.
"""

from __future__ import annotations

import pytest

from ddl.errors import ObjectNotFoundError
from ddl.sim.clockwork import Timeline
from ddl.sim.redis import CoordinatorSide, LearnerSide, ReaderSide, Redis
from ddl.sim.store import MemoryStore
from tests.contract import test_registry as registry_contract
from tests.contract import test_store as store_contract
from tests.contract.registry_records import handin, lease
from tests.contract.test_registry import Sides, joined, sides  # noqa: F401 - fixtures


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def redis(timeline: Timeline) -> Redis:
    return Redis(timeline.monotonic)


@pytest.fixture
def empty(redis: Redis) -> Sides:
    """A simulated Redis that knows nothing."""
    return Sides(CoordinatorSide(redis), LearnerSide(redis), ReaderSide(redis), "")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


C = registry_contract
test_a_free_lease = C.test_a_free_lease_is_given_above_both_epochs
test_a_held_lease = C.test_a_held_lease_is_not_given_away_and_its_holder_is_named
test_who_asks_again = C.test_who_asks_again_after_a_lost_reply_is_told_of_its_lease
test_only_its_holder_lets_go = C.test_only_its_holder_lets_go_of_a_lease
test_a_rebuild_keeps = C.test_a_rebuild_keeps_what_learners_said_but_not_what_was_settled
test_a_rebuild_by_another_lineage = C.test_a_rebuild_by_another_lineage_leaves_nothing_of_the_first
test_a_commit_shows_all = C.test_a_commit_shows_all_of_a_record_at_once
test_a_commit_of_an_old_record = C.test_a_commit_of_an_old_record_changes_nothing
test_a_copy_that_lags_behind = C.test_a_commit_is_not_shown_by_a_copy_that_lags_behind
test_a_receipt_and_a_newer_handin = C.test_a_receipt_does_not_remove_a_newer_handin
test_every_call_is_fenced = C.test_every_call_of_a_lower_epoch_is_fenced
test_a_higher_epoch_fences = C.test_a_higher_epoch_that_writes_fences_the_lower_without_a_lease
test_a_forgotten_learner = C.test_a_forgotten_learner_is_gone_unless_it_came_back
test_an_older_incarnation = C.test_an_older_incarnation_cannot_come_back
test_a_beat = C.test_a_beat_says_and_hears_everything
test_a_beat_tells = C.test_a_beat_tells_whether_anybody_coordinates
test_repeated_handins = C.test_repeated_handins_are_entered_once
test_only_the_next_seq = C.test_only_the_next_seq_is_entered
test_a_fenced_incarnation = C.test_a_fenced_incarnation_changes_nothing
test_a_successor = C.test_a_successor_announces_what_its_predecessor_spooled
test_an_unregistered_learner = C.test_an_unregistered_learner_hears_but_is_not_entered
test_new_settings = C.test_new_settings_reach_a_learner_once
test_an_order = C.test_an_order_is_for_one_incarnation
test_a_payload_put_again = C.test_a_payload_put_again_is_announced_again
test_what_arrived_between = C.test_what_arrived_between_two_waits_is_not_missed
test_a_request = C.test_a_request_reaches_the_coordinator_until_it_is_removed
test_facts = C.test_facts_are_shown_newest_last

S = store_contract
test_put_again = S.test_put_again_with_the_same_bytes
test_probe_finds_create_once = S.test_probe_finds_create_once
test_range = S.test_range
test_what_is_not_there = S.test_what_is_not_there
test_list_is_by_string_prefix = S.test_list_is_by_string_prefix
test_list_of_a_folder = S.test_list_of_a_folder_is_in_key_order
test_folders = S.test_folders_are_the_first_parts_of_keys


def test_an_object_is_created_once(store: MemoryStore) -> None:
    """The second writer is told so, and changes nothing."""
    assert store.put("a/b", b"first", mode="create")
    assert not store.put("a/b", b"second", mode="create")
    assert bytes(store.get("a/b")) == b"first"
    store.delete(["a/b"])
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b")


def test_a_lease_ends_by_the_server_s_clock(empty: Sides, timeline: Timeline) -> None:
    """After its length somebody else may take it, and then the first one may not renew it."""
    first = empty.coordinator.take_lease(lease(), ttl_s=3.0, min_epoch=0).lease
    assert first is not None
    timeline.run(timeline.now + 2.0)
    assert empty.coordinator.renew_lease(first, ttl_s=3.0).held
    timeline.run(timeline.now + 2.9)
    assert not empty.coordinator.take_lease(lease("second"), ttl_s=3.0, min_epoch=0).held
    timeline.run(timeline.now + 0.2)
    assert empty.coordinator.take_lease(lease("second"), ttl_s=3.0, min_epoch=0).held
    assert not empty.coordinator.renew_lease(first, ttl_s=3.0).held


def test_a_flush_empties_and_a_replica_brings_back(redis: Redis, joined: Sides) -> None:  # noqa: F811
    """What a flush takes away is gone; a fail-over brings back what the copy held, not more."""
    joined.learner.announce(handin(fragment=0), incarnation=1)
    replica = redis.tables.copy()
    joined.learner.announce(handin(fragment=1), incarnation=1)
    redis.flush()
    assert joined.coordinator.poll().boot == ""
    assert joined.coordinator.poll().handins == {}
    redis.fail_over(replica)
    assert list(joined.coordinator.poll().handins.values()) == [handin(fragment=0)]
    assert list(joined.coordinator.poll().learners) == ["ada"]
