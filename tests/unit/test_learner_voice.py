"""The lines on progress: what they say, and how seldom they come."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from ddl.config import RoundSettings, Settings, StopSettings
from ddl.core.learner import LearnerMachine
from ddl.journal import Journal, Troubles
from ddl.learner.meters import LossMeter, StepClock, Transfers
from ddl.learner.session import SPOOL, Session
from ddl.learner.shared import Shared
from ddl.learner.voice import PROGRESS_S, Voice
from ddl.protocol.records import Receipt
from tests.contract.registry_records import head
from tests.views import handin


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Speaker:
    """A voice whose learner's machine and clock the test owns."""

    def __init__(self, incarnation: int = 1) -> None:
        self.clock = Clock()
        self.stream = io.StringIO()
        journal = Journal(self.stream, form="json", clock=self.clock)
        self.troubles = Troubles(journal, self.clock)
        session = SimpleNamespace(
            learner="a",
            incarnation=incarnation,
            clock=self.clock,
            journal=journal,
            troubles=self.troubles,
            run=SimpleNamespace(run=SimpleNamespace(layout=SimpleNamespace(num_fragments=2))),
        )
        settings = Settings(stop=StopSettings(tokens=1000), round=RoundSettings(every_steps=8))
        self.machine = LearnerMachine(
            learner="a", incarnation=1, shares=(0.5, 0.5), settings=settings, now=0.0
        )
        self.shared = Shared(
            machine=self.machine, loss=LossMeter(), clock=StepClock(0.0), transfers=Transfers()
        )
        self.voice = Voice(cast("Session", session), self.shared)

    def said(self) -> list[dict[str, Any]]:
        """What was said since the last call."""
        lines = self.stream.getvalue().splitlines()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in lines]

    def pass_time(self, seconds: float, *, tokens: int = 0) -> None:
        """Let time pass in tenths of a second, one step of so many tokens each (0: none)."""
        for _ in range(round(seconds * 10)):
            if tokens:
                self.machine.on_step(tokens)
            self.clock.now += 0.1
            self.voice.tell_progress()


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


def test_a_line_now_and_then(speaker: Speaker) -> None:
    """Two in a minute, with the step, the rate since the last one, the loss and how much of the budget is
    merged, as `ddl status` tells it, whatever this learner has in hand."""
    speaker.machine.started = True
    speaker.machine.head = replace(head(3), progress=250.0)
    speaker.shared.loss.add(2.5)
    speaker.pass_time(2 * PROGRESS_S + 1, tokens=1)
    first, second = speaker.said()
    assert first["name"] == "learner.progress"
    assert first["step"] == pytest.approx(300, abs=2)
    assert second["step"] == pytest.approx(600, abs=4)
    assert second["tokens_per_s"] == pytest.approx(10.0, rel=0.02)
    assert second["text"].startswith(f"step {second['step']}, 10 tokens/s, loss 2.5; ")
    assert "the run is at version 3 (25% of its budget merged)" in second["text"]


def test_why_there_is_no_progress(speaker: Speaker) -> None:
    """A learner that still joins, one whose loop takes no step, and none for one that was paused."""
    speaker.pass_time(PROGRESS_S + 1)
    (joining,) = speaker.said()
    assert "still joining: 0 of 2 fragments of version 0" in joining["text"]
    speaker.machine.started = True
    speaker.pass_time(PROGRESS_S + 1)
    (stuck,) = speaker.said()
    assert "no step in the last 30 s" in stuck["text"]
    speaker.machine.paused = True
    speaker.pass_time(3 * PROGRESS_S)
    assert speaker.said() == []


def test_many_steps_left_out_are_warned_of_once(speaker: Speaker) -> None:
    """T42: a scaler that skips 5 of 20 steps is told in every line and warned of once while it lasts;
    one that begins too high, and a rare overflow, are not; one that skips all is not called stuck.
    """
    speaker.machine.started = True

    def names_and_text(skipped: int, applied: int) -> tuple[list[str], str]:
        speaker.shared.skipped += skipped
        for _ in range(applied):
            speaker.machine.on_step(1)
        speaker.pass_time(PROGRESS_S + 0.1)
        said = speaker.said()
        return [line["name"] for line in said], said[-1]["text"]

    names, text = names_and_text(5, 2)
    assert names == ["learner.progress"]
    assert ", 5 of 7 steps left out; " in text
    for told in (["steps.skipped"], [], []):
        names, text = names_and_text(75, 225)
        assert names == [*told, "learner.progress"]
        assert ", 75 of 300 steps left out; " in text
    names, text = names_and_text(0, 300)
    assert names == ["learner.progress"]
    assert "left out" not in text
    names, text = names_and_text(300, 0)
    assert names == ["steps.skipped", "learner.progress"]
    assert ", 300 of 300 steps left out; " in text
    assert "stuck" not in text


def test_fates_are_told_unless_all_went_well(speaker: Speaker) -> None:
    """A refusal with its reason; a merge is what is expected."""
    receipt = Receipt(
        learner="a", incarnation=1, fragment=0, seq=3, fate="merged", steps=8, tokens=80
    )
    speaker.voice.settled(receipt)
    assert speaker.said() == []
    refused = {"fate": "refused", "reason": "norm 9 of 1 steps"}
    speaker.voice.settled(
        Receipt(**({f: getattr(receipt, f) for f in receipt.__struct_fields__} | refused))
    )
    (told,) = speaker.said()
    assert told["name"] == "contribution.refused"
    assert told["text"] == "a/1/f0/3 is refused: norm 9 of 1 steps"


@pytest.mark.parametrize("spool_fails", [False, True])
def test_the_last_word_says_what_is_left_behind(speaker: Speaker, spool_fails: bool) -> None:
    """Steps not handed in, and whether the spool keeps what was not uploaded."""
    speaker.machine.started = True
    for _ in range(3):
        speaker.machine.on_step(10)
    speaker.machine.tracks[0].uploading = True
    if spool_fails:
        speaker.troubles.begin(SPOOL, "disk full")
        speaker.clock.now += 1.0
        speaker.said()
    speaker.voice.left("SIGTERM")
    (last,) = speaker.said()
    kept = "" if spool_fails else ", kept in the spool"
    assert last["text"] == (
        "a ends after 3 steps, the run is at version 0: SIGTERM; 1 contribution not uploaded"
        f"{kept}; 30 tokens were not handed in, and are lost"
    )


def test_what_is_beyond_the_budget_is_not_called_lost(speaker: Speaker) -> None:
    """The run has merged as many tokens as it was to: what is trained beyond that is nobody's loss."""
    speaker.machine.started = True
    speaker.machine.on_step(10)
    speaker.machine.head = replace(head(4), progress=1000.0)
    speaker.voice.left("the run is over")
    (last,) = speaker.said()
    assert last["text"].endswith("the run is over; 10 tokens are more than the run's budget takes")


@pytest.mark.parametrize(
    ("life", "since"), [(1, ""), (3, " since it came back as life 3")], ids=["new", "back"]
)
def test_the_first_contribution_is_worth_a_line(life: int, since: str) -> None:
    """Of this process, and no later one; the run may have earlier ones of a learner that came back."""
    speaker = Speaker(life)
    for seq in (5, 6):
        speaker.voice.handed_in(handin("a", 0, seq, 40))
    (first,) = speaker.said()
    assert first["name"] == "contribution.first"
    assert first["text"].startswith(f"the first one{since} is in the store: a/1/f0/5, ")


def test_the_end_of_a_kicked_learner_says_what_lets_it_back(speaker: Speaker) -> None:
    """By whom and why it was sent away, and the command; it has not failed."""
    cure = "`ddl learner allow 'redis://h/0?run=demo' a` lets it in again"
    speaker.voice.left("kicked: its fan is dead (by ann)", cure=cure)
    (last,) = speaker.said()
    assert last["text"] == (
        "a ends after 0 steps, the run is at version 0: kicked: its fan is dead (by ann). " + cure
    )


def test_an_error_is_told_once(speaker: Speaker) -> None:
    """Whoever ends the process prints it; programs that read the log find it there, too."""
    speaker.voice.left("", error="task.py:7: training raised ValueError: no such row")
    (last,) = speaker.said()
    assert last["text"] == "a ends after 0 steps, the run is at version 0: it cannot go on"
    assert last["why"] == "task.py:7: training raised ValueError: no such row"
