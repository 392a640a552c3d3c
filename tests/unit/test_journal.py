"""Facts on a stream: both forms, changes only, and a reader that has gone."""

from __future__ import annotations

import io
import json
import re

from ddl.journal import Journal, Troubles
from ddl.names import counted


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1_000_000.0004


def test_text_has_time_name_and_sentence() -> None:
    """One line a fact, its columns aligned."""
    stream = io.StringIO()
    Journal(stream, clock=Clock()).tell("lease.taken", "epoch 1", epoch=1)
    clock, name, sentence = stream.getvalue().split(maxsplit=2)
    assert len(clock) == len("HH:MM:SS")
    assert (name, sentence) == ("lease.taken", "epoch 1\n")


def test_colours_are_only_around_the_words() -> None:
    """Without the escapes, a line on a terminal is the line in a file."""
    coloured, plain = io.StringIO(), io.StringIO()
    Journal(coloured, form="colour", clock=Clock()).tell("lease.taken", "epoch 1")
    Journal(plain, clock=Clock()).tell("lease.taken", "epoch 1")
    assert coloured.getvalue() != plain.getvalue()
    assert re.sub(r"\033\[\d+m", "", coloured.getvalue()) == plain.getvalue()


def test_json_has_all_fields() -> None:
    """For programs: one object a line."""
    stream = io.StringIO()
    journal = Journal(stream, form="json", clock=Clock())
    journal.tell("lease.taken", "epoch 1", epoch=1, text="a field of that name gives way")
    assert json.loads(stream.getvalue()) == {
        "at": 1_000_000.0,
        "name": "lease.taken",
        "text": "epoch 1",
        "epoch": 1,
    }


def test_what_is_asked_often_is_told_once() -> None:
    """Until the sentence changes, or the topic was forgotten; topics do not mix."""
    stream = io.StringIO()
    journal = Journal(stream)
    for topic, text in [("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]:
        journal.on_change(topic, "n", text)
    assert stream.getvalue().count("\n") == 4
    assert journal.forget("a")
    assert not journal.forget("a")
    journal.on_change("a", "n", "x")
    assert stream.getvalue().count("\n") == 5


def test_a_reader_that_has_gone_ends_nothing() -> None:
    """A closed stream is written to once, and then no more."""
    stream = io.StringIO()
    journal = Journal(stream)
    stream.close()
    journal.tell("a.b", "text")
    journal.tell("a.b", "text")
    Journal(None).tell("a.b", "text")


class Ticking(Clock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_trouble_is_told_at_both_its_ends_and_now_and_then_between() -> None:
    """Not once a try, though each fails in other words; subjects do not mix."""
    stream, clock = io.StringIO(), Ticking()
    troubles = Troubles(Journal(stream, clock=clock), clock)
    for second in range(101):
        clock.now = float(second)
        troubles.begin("spool writes", f"try {second} failed: disk full")
    troubles.begin("uploads", "no route")
    assert troubles.seconds("spool writes", "uploads") == 100.0
    assert troubles.seconds("uploads") == 0.0
    assert troubles.reasons == "try 100 failed: disk full; no route"
    clock.now = 141.0
    troubles.end("spool writes", "downloads")
    troubles.end("spool writes")
    assert troubles.reasons == "no route"
    told = [line.split(maxsplit=1)[1] for line in stream.getvalue().splitlines()]
    assert told == [
        "spool_writes.failed      try 0 failed: disk full; trying again",
        "spool_writes.failed      try 60 failed: disk full; trying again (for 60 s now)",
        "uploads.failed           no route; trying again",
        "spool_writes.recovered   spool writes work again after 141 s",
    ]


def test_a_trouble_that_comes_and_goes_is_not_told_each_time() -> None:
    """Again only once it has lasted for 5 s, or a minute after the last word; its end if its begin."""
    stream, clock = io.StringIO(), Ticking()
    troubles = Troubles(Journal(stream, clock=clock), clock)

    def fail_at(*instants: float) -> None:
        for clock.now in instants:
            troubles.begin("uploads", f"failed at {clock.now:g}")
        clock.now += 0.5
        troubles.end("uploads")

    fail_at(0.0)
    fail_at(1.0)
    fail_at(2.0, 4.0, 6.9)
    fail_at(10.0, 12.0, 15.0, 18.0)
    fail_at(74.0)
    fail_at(75.0)
    told = [line.split(maxsplit=1)[1] for line in stream.getvalue().splitlines()]
    assert told == [
        "uploads.failed           failed at 0; trying again",
        "uploads.recovered        uploads work again after 0 s",
        "uploads.failed           failed at 15; trying again (for 5 s now)",
        "uploads.recovered        uploads work again after 8 s",
        "uploads.failed           failed at 75; trying again",
        "uploads.recovered        uploads work again after 0 s",
    ]


def test_numbers_have_their_nouns() -> None:
    """One is one, and thousands are told apart."""
    assert [counted(n, "step") for n in (0, 1, 2, 1000)] == [
        "0 steps",
        "1 step",
        "2 steps",
        "1,000 steps",
    ]
