"""The claims of one learner: what the training thread takes, and what is told to Redis."""

from __future__ import annotations

import threading

from ddl.data.claims import AHEAD_MAX, Claims
from ddl.protocol.units import Grant, Holding, Reading, UnitReply

NUM_UNITS = 8


def claims(*, kept: tuple[int, ...] = (), ahead: int = 2) -> Claims:
    return Claims(
        name="train",
        plan="p",
        num_units=NUM_UNITS,
        life="ada/1",
        kept=[(t, "kept") for t in kept],
        ahead=ahead,
    )


def granted(*tickets: int, rows: int = 0) -> UnitReply:
    return UnitReply(granted=tuple(Grant(ticket, rows) for ticket in tickets))


def test_granted_tickets_are_taken_in_order() -> None:
    """And asked for again as soon as one is taken."""
    book = claims()
    assert book.call().want == 2
    book.answer(granted(4, 6))
    told_before = book.all_told
    assert book.take() == Grant(4, 0)
    assert (told_before, book.all_told) == (True, False)
    call = book.call()
    assert call.want == 1
    assert [h.ticket for h in call.held] == [4, 6]


def test_a_call_stays_the_same_until_it_is_answered() -> None:
    """Whatever happens meanwhile is told by the next one."""
    book = claims()
    book.call()
    book.answer(granted(0, 1))
    first = book.call()
    book.begin(book.take().ticket)
    book.finish(0)
    assert book.call() is first
    book.answer(UnitReply())
    second = book.call()
    assert second.number == first.number + 1
    assert second.finished == (Reading(ticket=0, claimed=True),)


def test_finished_is_told_until_it_is_settled() -> None:
    """Only a reply that says so ends it."""
    book = claims()
    book.call()
    book.answer(granted(0))
    book.finish(book.take().ticket)
    for _ in range(2):
        assert [r.ticket for r in book.call().finished] == [0]
        book.answer(UnitReply())
    book.call()
    book.answer(UnitReply(settled=(0,)))
    assert book.call().finished == ()


def test_without_a_claim_it_takes_one_of_the_next_epoch_s_worth() -> None:
    """Never the same twice, never waiting; after each answer that came late it asks for more ahead."""
    book = claims()
    book.call()
    book.answer(granted(3))
    taken = [book.take().ticket for _ in range(1 + 2 * NUM_UNITS)]
    assert taken[0] == 3
    assert sorted(taken[1:]) == list(range(4, 4 + 2 * NUM_UNITS))
    assert book.call().want == 4
    ways = {h.how for h in book.call().held if h.ticket != 3}
    assert ways == {"unclaimed"}
    for _ in range(10):
        book.answer(UnitReply())
        book.take()
        book.call()
    assert book.call().want == AHEAD_MAX


def test_two_learners_that_are_cut_off_choose_differently() -> None:
    """Each by its own lot, the same in each life's repetition."""
    lives = [
        Claims(name="train", plan="p", num_units=1000, life=life)
        for life in ("ada/1", "bob/1", "ada/1")
    ]
    ada, bob, again = ([book.take().ticket for _ in range(20)] for book in lives)
    assert ada == again
    assert len({*ada} & {*bob}) < 5


def test_what_was_taken_without_asking_is_a_claim_once_it_was_told() -> None:
    """Unless another one has it."""
    book = claims()
    first, second = book.take().ticket, book.take().ticket
    book.begin(first)
    book.begin(second)
    book.call()
    book.answer(UnitReply(lost=(second,)))
    assert book.is_lost(second)
    assert not book.is_lost(first)
    book.finish(second)
    book.finish(first)
    assert book.call().finished == (Reading(ticket=first, claimed=True),)


def test_a_place_that_was_left_to_us_is_ours_to_leave_until_we_begin() -> None:
    """Then what is learned from it may be lost with us."""
    book = claims()
    book.call()
    book.answer(granted(0, rows=5))
    assert book.take() == Grant(0, 5)
    assert book.call().held == (Holding(ticket=0, begun=False, rows=5),)
    book.answer(UnitReply())
    book.begin(0)
    assert book.call().held == (Holding(ticket=0, begun=True, rows=0),)


def test_who_leaves_gives_back_what_it_has_not_begun() -> None:
    """And leaves its place in what it has."""
    book = claims()
    book.call()
    book.answer(granted(0, 1))
    book.begin(book.take().ticket)
    book.take()
    book.leave({0: 7})
    call = book.call()
    assert call.held == (Holding(ticket=0, begun=True, rows=7),)
    assert call.want == 0


def test_a_former_life_s_tickets_are_held_on_to() -> None:
    """They are told as such: that life may have finished them after it wrote its place down."""
    book = claims(kept=(2, 5))
    assert [(h.ticket, h.begun, h.how) for h in book.call().held] == [
        (2, True, "kept"),
        (5, True, "kept"),
    ]
    book.answer(UnitReply(lost=(2,)))
    assert book.is_lost(2)
    assert book.call().held == (Holding(ticket=5, begun=True),)


def test_finished_while_it_was_lost_is_counted_once() -> None:
    """The answer that counted it came when it was finished already: it is not told again."""
    book = claims()
    book.call()
    book.answer(granted(0))
    book.begin(book.take().ticket)
    book.call()
    book.finish(0)
    book.answer(UnitReply(lost=(0,)))
    assert book.call().finished == ()


def test_the_asking_thread_sleeps_until_something_changes() -> None:
    """`wait` ends when the training thread takes, begins or finishes."""
    book = claims()
    book.call()
    book.answer(granted(0, 1))
    woken = threading.Event()

    def sleep() -> None:
        book.wait(60.0)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    assert not woken.is_set()
    book.take()
    assert woken.wait(30.0)
    thread.join()


def test_the_next_life_knows_what_was_told() -> None:
    """Of a unit whose beginning Redis knows; of one begun or finished since the last answer."""
    book = claims(ahead=4)
    book.call()
    book.answer(granted(0, 1, 2, 3))
    book.begin(book.take().ticket)
    book.call()
    book.answer(UnitReply())
    for _ in range(2):
        book.begin(book.take().ticket)
    book.take()
    book.finish(2)
    assert book.state() == {"kept": [[0, "kept"], [1, "claimed"]], "finished": [[2, True]]}
