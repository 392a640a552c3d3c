"""Units of data against a real Redis: who gets which ticket, and that each is finished once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from ddl.errors import RefusedError
from ddl.protocol.units import Grant, Holding, Reading, Repeat, UnitCall, UnitReply, UnitsDone
from tests.contract.units_world import PLAN, World
from tests.redis_servers import admin


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    with closing(World(redis_url)) as world:
        world.join("ada")
        world.join("bob")
        yield world


def tickets(reply: UnitReply) -> list[int]:
    return [grant.ticket for grant in reply.granted]


def begun(*numbers: int, rows: int = 0) -> tuple[Holding, ...]:
    return tuple(Holding(ticket=number, begun=True, rows=rows) for number in numbers)


def read(*numbers: int, claimed: bool = True) -> tuple[Reading, ...]:
    return tuple(Reading(ticket=number, claimed=claimed) for number in numbers)


def test_each_ticket_goes_to_one_learner_lowest_first(world: World) -> None:
    """Two learners that ask in turn never get the same."""
    assert tickets(world.tell("ada", want=3)) == [0, 1, 2]
    assert tickets(world.tell("bob", want=2)) == [3, 4]


def test_a_call_made_again_gets_the_same(world: World) -> None:
    """The answer to the first was lost: nothing is claimed twice, and nothing is left claimed."""
    first = world.tell("ada", want=2)
    assert world.tell("ada", want=2) == first
    assert tickets(world.tell("bob", want=1)) == [2]


def test_what_is_not_held_any_more_goes_to_others(world: World) -> None:
    """A learner names all that it holds: a new life that has lost its place gives all back."""
    world.tell("ada", want=2)
    world.tell("ada", number=2, held=begun(0))
    assert tickets(world.tell("bob", want=2)) == [1, 2]


def test_the_claims_of_a_learner_that_is_gone_return(world: World) -> None:
    """Lowest first, and what it had begun is counted as repeated."""
    world.tell("ada", want=2)
    world.tell("ada", number=2, held=(*begun(0), Holding(ticket=1, begun=False)))
    assert tickets(world.tell("bob", want=1)) == [2]
    world.lose("ada")
    reply = world.tell("bob", number=2, held=begun(2), want=3)
    assert tickets(reply) == [0, 1, 3]
    assert reply.repeated == (Repeat(0, "returned"),)
    world.commit()
    assert world.logged["train"].repeated == {"returned": 1}


def test_a_learner_that_comes_back_in_time_keeps_its_claims(world: World) -> None:
    """The claims are the learner's, whichever life of it beats."""
    world.tell("ada", want=2)
    world.join("ada", 2)
    kept = (Holding(ticket=0, begun=True, how="kept"),)
    reply = world.tell("ada", incarnation=2, held=kept, want=2)
    assert tickets(reply) == [1, 2]
    assert reply.lost == ()
    assert reply.repeated == ()


def test_one_that_comes_back_too_late_hears_what_it_has_lost(world: World) -> None:
    """What another one reads by now is stopped, and not counted a second time."""
    world.tell("ada", want=1)
    world.tell("ada", number=2, held=begun(0))
    world.lose("ada")
    assert world.tell("bob", want=1).repeated == (Repeat(0, "returned"),)
    world.join("ada", 2)
    reply = world.tell("ada", incarnation=2, held=begun(0), want=1)
    assert (reply.lost, reply.repeated, tickets(reply)) == ((0,), (), [1])


def test_the_place_of_one_that_left_is_handed_over(world: World) -> None:
    """It has handed in what it learned: the next one goes on there, and nothing is repeated."""
    world.tell("ada", want=2)
    world.tell("ada", number=2, held=begun(0, rows=7))
    assert tickets(world.tell("bob", want=1)) == [1]
    world.lose("ada")
    reply = world.tell("bob", number=2, held=begun(1), want=1)
    assert reply.granted == (Grant(0, 7),)
    assert reply.repeated == ()
    world.join("ada", 2)
    kept = (Holding(ticket=0, begun=True, how="kept"),)
    late = world.tell("ada", incarnation=2, number=7, held=kept)
    assert (late.lost, late.repeated) == ((0,), ())
    waiting = (*begun(1), Holding(ticket=0, begun=False, rows=7))
    world.tell("bob", number=3, held=waiting)
    world.lose("bob")
    again = world.tell("ada", incarnation=2, want=1)
    assert again.granted == (Grant(0, 7),)


def test_finished_counts_once_it_is_in_the_log(world: World) -> None:
    """Until then the learner repeats it; then it is settled, and forgotten once that was heard."""
    world.tell("ada", want=1)
    assert world.tell("ada", number=2, finished=read(0)).settled == ()
    assert world.coordinator.poll().units["train"].finished == ((0, 1),)
    world.commit()
    assert world.logged["train"].finished == ((0, 1),)
    assert world.tell("ada", number=3, finished=read(0)).settled == (0,)
    world.tell("ada", number=4)
    assert world.coordinator.poll().units["train"].finished == ()
    assert tickets(world.tell("ada", number=5, want=1)) == [1]


def test_what_a_dead_learner_has_finished_is_not_read_again(world: World) -> None:
    """It stands in Redis until the log has it."""
    world.tell("ada", want=2)
    world.tell("ada", number=2, held=begun(1), finished=read(0))
    world.lose("ada")
    assert tickets(world.tell("bob", want=2)) == [1, 2]
    world.commit()
    world.tell("bob", number=2, held=begun(1, 2))
    assert world.coordinator.poll().units["train"].finished == ()


def test_a_unit_that_two_have_finished_counts_once(world: World) -> None:
    """The second reading is counted as repeated, and once only if its answer is lost."""
    world.tell("ada", want=1)
    world.lose("ada")
    world.tell("bob", want=1)
    world.tell("bob", number=2, finished=read(0))
    world.join("ada")
    for _ in range(2):
        reply = world.tell("ada", number=2, finished=read(0))
        assert reply.settled == (0,)
        assert reply.repeated == (Repeat(0, "late"),)
    world.commit()
    assert world.logged["train"] == UnitsDone(plan=PLAN, finished=((0, 1),), repeated={"late": 1})


def test_what_was_read_without_asking_counts_if_nobody_else_has_it(world: World) -> None:
    """Otherwise it is counted as repeated."""
    world.tell("bob", want=1)
    reply = world.tell("ada", finished=read(0, 5, claimed=False), want=4)
    assert reply.repeated == (Repeat(0, "unclaimed"),)
    assert reply.settled == (0,)
    assert tickets(reply) == [1, 2, 3, 4]
    assert tickets(world.tell("bob", number=2, held=begun(0), want=1)) == [6]
    assert world.coordinator.poll().units["train"].finished == ((5, 6),)


def test_what_is_being_read_without_asking_is_claimed_or_lost(world: World) -> None:
    """As soon as Redis answers again."""
    world.tell("bob", want=1)
    unasked = tuple(Holding(ticket=t, begun=True, how="unclaimed") for t in (0, 3))
    reply = world.tell("ada", held=unasked, want=1)
    assert reply.lost == (0,)
    assert reply.repeated == (Repeat(0, "unclaimed"),)
    assert tickets(reply) == [1]
    assert tickets(world.tell("bob", number=2, held=begun(0), want=2)) == [2, 4]


def test_a_flushed_redis_knows_from_the_log_what_is_finished(world: World) -> None:
    """Living learners say again what they hold and have finished; totals go on from the log's."""
    world.tell("ada", want=3)
    world.tell("ada", number=2, held=begun(1, 2), finished=read(0))
    world.lose("ada")
    world.tell("bob", want=1)
    world.commit()
    with admin(world.url) as client:
        client.flushall()
    call = UnitCall(name="train", plan=PLAN, number=2, held=begun(1), finished=(), want=1)
    assert world.exchange("bob", 1, call) is None
    world.rebuild()
    world.join("ada")
    world.join("bob")
    assert tickets(world.tell("bob", number=2, held=begun(1), want=1)) == [2]
    reply = world.tell("ada", number=3, held=begun(1, 2), want=1)
    assert reply.lost == (1, 2)
    assert tickets(reply) == [3]
    world.commit()
    assert world.logged["train"] == UnitsDone(
        plan=PLAN, finished=((0, 1),), repeated={"returned": 1, "late": 2}
    )


def test_data_that_is_cut_in_another_way_is_refused(world: World) -> None:
    """Also by what the log alone remembers; another name has tickets of its own."""
    world.tell("ada", finished=read(0, claimed=False))
    with pytest.raises(RefusedError, match="cut as 9 units/x here, and as 10 units/abc in the run"):
        world.tell("bob", want=1, plan="9 units/x")
    world.commit()
    with admin(world.url) as client:
        client.flushall()
    world.rebuild()
    world.join("bob")
    with pytest.raises(RefusedError, match="other data another name"):
        world.tell("bob", want=1, plan="9 units/x")
    other = UnitCall(name="train-2", plan="9 units/x", number=1, held=(), finished=(), want=1)
    reply = world.exchange("bob", 1, other)
    assert reply is not None
    assert tickets(reply) == [0]


def test_an_older_life_gets_nothing(world: World) -> None:
    """A newer incarnation has fenced it."""
    world.join("ada", 2)
    call = UnitCall(name="train", plan=PLAN, number=1, held=(), finished=(), want=1)
    assert world.exchange("ada", 1, call) is None
