"""Facts on a stream: both forms, changes only, and a reader that has gone."""

from __future__ import annotations

import io
import json

from ddl.journal import Journal


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
