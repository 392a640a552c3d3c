"""What keys change of what is shown, how a terminal sends them, and what many looks tell."""

from __future__ import annotations

import threading
from dataclasses import replace

import msgspec
import pytest

from ddl.core.snapshot import snapshot
from ddl.errors import ProtocolError
from ddl.protocol.records import RunSnapshot
from ddl_cli.view.keyboard import keys
from ddl_cli.view.learners import TABLE
from ddl_cli.view.look import Look, press
from ddl_cli.view.screen import Watch
from ddl_cli.view.trail import Rates, Trail
from tests.views import fact, merged, view

IDS = ["anna", "bert", "cleo"]


def typed(look: Look, *names: str) -> Look:
    for name in names:
        look = press(look, name, IDS)
    return look


@pytest.mark.parametrize(
    ("sent", "names"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA", ["up"]),
        ("\x1b[5~\x1b[6~\x1b[H\x1b[F", ["pageup", "pagedown", "home", "end"]),
        ("\r\x7f", ["enter", "backspace"]),
        ("\x1b", ["esc"]),
        ("\x1bj", ["esc", "j"]),
        ("\x1b[1;5Cx", ["x"]),
        ("\x1b[", []),
        ("\x01a\u00e9", ["a", "\u00e9"]),
    ],
)
def test_keys_by_what_a_terminal_sends(sent: str, names: list[str]) -> None:
    """Letters, arrows in both forms, Escape alone; sequences that mean nothing here are left out."""
    assert list(keys(sent)) == names


def test_pages_and_back() -> None:
    """A page by its key; Esc leads from one learner and from the help to where one was."""
    look = typed(Look(), "2")
    assert look.page == "learners"
    one = typed(look, "down", "down", "enter")
    assert (one.page, one.selected) == ("learner", "bert")
    assert typed(one, "esc").page == "learners"
    assert typed(one, "?", "esc").page == "overview"
    assert typed(look, "?").page == "help"
    assert typed(look, "?", "esc") == replace(look, back="learners")


def test_the_choice_stays_within_the_table() -> None:
    """Up from the first and down from the last change nothing; Enter without a choice takes the first."""
    assert typed(Look(), "up").selected == "anna"
    assert typed(Look(), "end", "down").selected == "cleo"
    assert typed(Look(), "pagedown").selected == "cleo"
    assert typed(Look(), "end", "home").selected == "anna"
    assert typed(Look(), "enter").selected == "anna"
    assert press(Look(), "enter", []) == Look()
    assert press(Look(), "down", []) == Look()


def test_sorting_goes_round() -> None:
    """By each column that has an order, and then by none again; S turns it round."""
    look = Look()
    seen = []
    for _ in range(len(TABLE.sortable) + 1):
        look = typed(look, "s")
        seen.append(look.sort)
    assert seen == [*TABLE.sortable, ""]
    assert typed(Look(), "s").descending is False, "names go upwards"
    assert typed(Look(), "s", "s").descending is True, "of numbers, the largest first"
    assert typed(Look(), "s", "s", "S").descending is False


def test_typing_goes_into_the_filter() -> None:
    """Letters that are keys elsewhere, too; Enter keeps it, Esc drops it, Backspace takes one back."""
    look = typed(Look(), "/", "q", "p", "backspace", "enter")
    assert (look.filter, look.typing, look.over, look.paused) == ("q", False, False, False)
    assert typed(look, "esc").filter == ""
    assert typed(Look(), "/", "x", "esc").filter == ""


def test_events_scroll_and_stop_at_the_newest() -> None:
    """Up goes into the past, End comes back."""
    look = typed(Look(), "4", "up", "up", "pageup")
    assert look.top == 12
    assert typed(look, "down").top == 11
    assert typed(look, "end").top == 0
    assert typed(Look(page="events"), "down").top == 0


def test_pause_and_quit() -> None:
    """A second p goes on; q ends; a key without a meaning does nothing."""
    assert typed(Look(), "p").paused
    assert not typed(Look(), "p", " ").paused
    assert typed(Look(), "q").over
    assert typed(Look(), "x") == Look()


def test_a_look_that_fails_is_told_to_the_one_who_draws() -> None:
    """Whatever it raised; nothing freezes in silence."""
    told = threading.Event()
    error = ProtocolError("a newer schema")

    def read() -> tuple[RunSnapshot, str]:
        raise error

    shown = snapshot(view())
    assert shown is not None
    watch = Watch(shown, read, facts=(), interval_s=0.0, told=told.set)
    watch.start()
    assert told.wait(5)
    assert watch.failed is error


def test_a_trail_remembers_and_measures() -> None:
    """Events and losses that a later look no longer shows; bytes by the clock of Redis."""
    first = snapshot(view(facts=(merged(20, 1, 0, "anna/1/f0/1"),)))
    assert first is not None
    trail = Trail([fact(100, "learner.joined", "anna joined", learner="anna")])
    assert trail.add(first).events[0].text == "anna joined"
    assert trail.rates == Rates(None, None)
    moved = tuple(
        msgspec.structs.replace(one, up_bytes=5_000, down_bytes=500) for one in first.learners
    )
    later = msgspec.structs.replace(
        first,
        taken_at=first.taken_at + 5.0,
        learners=moved,
        events=(merged(0, 2, 1, "anna/1/f1/1"),),
    )
    shown = trail.add(later)
    assert [one.name for one in shown.events] == ["learner.joined", *["version.published"] * 2]
    assert shown.losses == ((1, 2.969), (2, 2.938))
    assert trail.rates == Rates(4 * 1_000.0, 4 * 100.0)
    gone = msgspec.structs.replace(later, taken_at=later.taken_at + 5.0, learners=moved[:1])
    trail.add(gone)
    assert trail.rates.up == 2_000.0, "who leaves takes nothing back"
