"""What `ddl chaos` makes of a trial, worked out by hand.

Two learners in a window of 10 s, with steps of 100 tokens; fragments weigh 3/4 and 1/4:

    anna    there all the time: a step in each second. 800 tokens merged, 200 in hand when it left
    bert    life 1 ends at 4 s after 4 steps: 300 tokens merged, 100 lost
            life 2 begins at 6 s, steps at 8.25 and 9.25 s: 100 tokens wait, 100 in hand when it left
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ddl.config import Scalar, Settings, TaskSettings
from ddl.protocol.records import Health, Waits, Work
from ddl.protocol.wire import canonical
from ddl.simulate.tape import Fault
from ddl_cli.chaos.course import Course, Incident
from ddl_cli.chaos.measure import Measured, useful_steps
from ddl_cli.chaos.page import render
from ddl_cli.chaos.report import DdlReport, Losses, Report, judge, text
from ddl_cli.chaos.schedule import tape_of
from ddl_cli.chaos.steps import Span, Step
from ddl_cli.report.story import Step as Version
from ddl_cli.report.story import Story
from tests.views import NOW, books_of, handin, learner, receipt, view

ARGS: dict[str, Scalar] = {"batch": 10, "context": 10, "step_s": 1.0}
SETTINGS = Settings(task=TaskSettings(args=ARGS))
ANNA = [Step(NOW + second + 0.5, 1, 3.0) for second in range(10)]
BERT = [Step(NOW + at, 1, 3.0) for at in (0.25, 1.25, 2.25, 3.25)]
BERT += [Step(NOW + at, 2, 3.0) for at in (8.25, 9.25)]

TAPE = tape_of(
    [Fault(time_s=4.0, learner=1, kind="kill", duration_s=2.0)], learners=2, horizon_s=10.0
)


def version(number: int, at: float, *names: str) -> Version:
    """Made so many seconds after the window began (the run is 100 s older)."""
    return Version(
        at_s=100.0 + at,
        progress=500.0 * number,
        version=number,
        fragment=0,
        tokens=dict.fromkeys(names, 500.0),
        carried=0,
        health=Health(loss_mean=3.0 - number),
        waits=Waits(),
        up_bytes=0,
        down_bytes=0,
    )


def hit(kind: Any, target: str, at: float, over_at: float, number: int | None = None) -> Incident:
    fault = Fault(time_s=at, learner=number, kind=kind, duration_s=over_at - at)
    return Incident(fault, target, 4711, NOW + at, NOW + over_at)


def course(**changes: Any) -> Course:
    made = Course(window=Span(NOW, NOW + 10.0), left={"anna", "bert"}, **changes)
    made.alive.begin("anna", NOW - 50)
    made.alive.end("anna", NOW + 12)
    made.alive.begin("bert", NOW - 50)
    made.alive.end("bert", NOW + 4)
    made.alive.begin("bert", NOW + 6)
    made.alive.end("bert", NOW + 12)
    anna = learner("anna", state="left", handed_in=work(800), in_u=work(200), tokens=1000)
    bert = learner("bert", state="left", handed_in=work(100), in_u=work(100), tokens=200)
    waiting = msgspec.structs.replace(handin("bert", 1, 1, 400), incarnation=2)
    made.view = view(
        learners={"anna": anna, "bert": msgspec.structs.replace(bert, incarnation=2)},
        handins={"bert/2/1": waiting},
        receipts={},
    )
    return made


def work(tokens: float) -> Work:
    return Work(steps=1, tokens=tokens)


def chaos(**changes: Any) -> Measured:
    receipts = (
        receipt("anna", 0, 1, tokens=800),
        receipt("anna", 1, 1, tokens=800),
        receipt("bert", 0, 1, tokens=400),
        receipt("bert", 1, 1, tokens=400, fate="lost"),
    )
    books = books_of(receipts, settings=SETTINGS)
    story = Story(run=books.run, steps=[version(1, 7.0, "bert"), version(2, 9.0, "anna")])
    return Measured(course(**changes), books, story, {"anna": ANNA, "bert": BERT}, 0)


def free() -> Measured:
    """The same fleet without faults: one learner's steps of a second each will do."""
    measured = chaos()
    return measured._replace(steps={"anna": ANNA})


def test_steps_that_came_to_some_use() -> None:
    """Merged, waiting and in hand: anna 10, bert's first life 3 of 4, its second both."""
    measured = chaos()
    assert useful_steps(measured.course, measured.books) == {
        "anna": {1: pytest.approx(10.0)},
        "bert": {1: pytest.approx(3.0), 2: pytest.approx(2.0)},
    }
    assert measured.lost_steps == pytest.approx(1.0)


def test_what_a_dead_learner_had_in_hand_is_lost() -> None:
    """bert never came back: the last word of its second life says what it had, and that is gone."""
    measured = chaos()
    measured.course.left.discard("bert")
    assert measured.lost_steps == pytest.approx(2.0)


def test_goodput() -> None:
    """16 steps, 1 of them lost, in 10 + 8 s of learner-time at 1 step/s: 15 / 18."""
    report = judge(chaos(), free(), None, tape=TAPE)
    assert report.failure_free_steps_per_s == pytest.approx(1.0)
    assert report.steps == 16
    assert report.lost_steps == pytest.approx(1.0)
    assert report.learner_time.whole_s == pytest.approx(20.0)
    assert report.learner_time.living_s == pytest.approx(18.0)
    # before a first step: anna 0.5 s, bert 0.25 s and 2.25 s
    assert report.learner_time.starting_s == pytest.approx(3.0)
    assert report.goodput_ratio == pytest.approx(15 / 18)
    assert report.step_rate_ratio == pytest.approx(16 / 20)
    # bert's second process took 2.25 s; the model has whole steps only: 9 of anna's, 4 of bert's
    assert report.model_rate_ratio == pytest.approx(13 / 20)
    assert report.seconds_without_any_step == 0
    assert report.ledger.merged == pytest.approx(1100.0)
    assert report.ledger.lost == pytest.approx(100.0)
    assert report.problems == ()


def test_recovery() -> None:
    """A killed learner by its step, one cut off by a merge of its work, a service by a version."""
    measured = chaos(
        incidents=[
            hit("stop", "bert", 9.5, 9.75, 1),
            hit("kill", "bert", 4.0, 6.0, 1),
            hit("kill-coordinator", "coordinator", 5.0, 5.5),
            hit("cut", "anna", 6.0, 6.5, 0),
            hit("flush-redis", "redis", 9.8, 9.8),
        ]
    )
    report = judge(measured, free(), None, tape=TAPE)
    rows = {row.kind: row for row in report.faults}
    assert list(rows) == ["kill", "kill-coordinator", "cut", "stop", "flush-redis"]
    assert rows["kill"].recovery_s == pytest.approx(2.25)
    assert rows["kill-coordinator"].recovery_s == pytest.approx(1.5)
    assert rows["cut"].recovery_s == pytest.approx(2.5)
    assert rows["stop"].recovery_s is rows["flush-redis"].recovery_s is None
    assert (rows["kill"].pid, rows["kill"].at_s, rows["kill"].at) == (4711, 4.0, NOW + 4.0)
    assert report.median_recovery_s.keys() == {"kill", "kill-coordinator", "cut"}


def test_a_lost_version_and_books_that_do_not_balance_are_told() -> None:
    """Both fail the command."""
    measured = chaos()._replace(versions_lost=1)
    assert measured.course.view is not None
    anna = measured.course.view.learners["anna"]
    measured.course.view.learners["anna"] = msgspec.structs.replace(anna, handed_in=work(700))
    found = judge(measured, free(), None, tape=TAPE).problems
    assert any("anna handed in 700" in problem for problem in found)
    assert any("is lost" in problem for problem in found)


def test_the_document_has_what_scripts_rely_on() -> None:
    """`ddl` with its five figures, and the tape."""
    document = json.loads(canonical(Report(ddl=judge(chaos(), free(), None, tape=TAPE), tape=TAPE)))
    assert document.keys() == {"schema", "ddl", "tape"}
    assert document["ddl"].keys() >= {
        *("goodput_ratio", "versions_lost", "seconds_without_any_step", "faults", "ledger"),
    }
    assert document["tape"]["learners"] == 2


def report_with_faults() -> tuple[DdlReport, Measured]:
    measured = chaos(incidents=[hit("kill", "bert", 4.0, 6.0, 1)])
    losses = Losses(tokens=1000.0, chaos=2.9, failure_free=2.8)
    return judge(measured, free(), losses, tape=TAPE), measured


def test_the_text_for_people() -> None:
    """Every figure with its unit, and what the steps are."""
    report = Report(ddl=report_with_faults()[0], tape=TAPE)
    title, *lines = text(report).splitlines()
    assert title == "ddl"
    assert lines[0].split(maxsplit=1) == [
        "goodput",
        "83.3% of what the living learner-time allows: 16 steps, 1 of them lost, 18 allowed; "
        "75.0% of the step rate without faults",
    ]
    assert "80.0% were kept" in lines[1]
    assert "a simulated one of 1 s" in lines[3]
    assert "2 made, 0 lost" in lines[4]
    assert "1 x kill 2.2 s" in lines[7]
    assert "2.9000, without faults 2.8000, both after 1.0k merged tokens" in lines[8]


def test_the_page_stands_alone() -> None:
    """Three plots, the faults with their processes, no script, nothing from elsewhere."""
    report, measured = report_with_faults()
    whole = Report(ddl=report, tape=TAPE)
    page = render(whole, measured, free(), written_at=NOW)
    assert page.count("<svg") == 3
    assert "83.3%" in page
    assert "4711" in page
    assert "<script" not in page
    assert "src=" not in page
