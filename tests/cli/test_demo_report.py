"""The demo's own check: what it must find, and that it finds nothing where all is well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddl.core.snapshot import snapshot
from ddl.protocol.records import LearnerRecord, Receipt, Work
from ddl.protocol.wire import canonical
from ddl.registry.base import View
from ddl_cli.demo.books import Books, problems, run_totals
from ddl_cli.demo.report import Losses, Report, judge, text
from ddl_cli.demo.stage import Played, still_counted
from tests.views import books_of, handin, learner, receipt, view

# Shares are 3/4 and 1/4. What each learner handed in, in weighted tokens:
#   anna    7,500 merged (f0) + 2,500 merged (f1) + 3,000 outstanding (f1)
#   bert    7,500 merged (f0) + 2,500 refused (f1)
#   cleo    2,500 merged (f1)
RECEIPTS = (
    receipt("anna", 0, 1),
    receipt("anna", 1, 1),
    receipt("bert", 0, 1),
    receipt("bert", 1, 1, fate="refused", reason="norm"),
    receipt("cleo", 1, 1),
)
HANDED_IN = {"anna": 13_000.0, "bert": 10_000.0, "cleo": 2_500.0}
GOOD = Losses(first=5.4, last=2.3)


def the_books(receipts: tuple[Receipt, ...] = RECEIPTS) -> Books:
    """A log of one step on each fragment, with these receipts."""
    return books_of(receipts)


def member(name: str, **changes: Any) -> LearnerRecord:
    """A learner whose own books balance: it kept 2,000 tokens and threw 1,000 away."""
    handed_in = HANDED_IN[name]
    whole = learner(
        name,
        state="left",
        handed_in=Work(steps=1, tokens=handed_in),
        discarded=Work(steps=1, tokens=1_000),
        in_u=Work(steps=1, tokens=2_000),
        tokens=int(handed_in) + 3_000,
    )
    return msgspec.structs.replace(whole, **changes)


def the_view(**learners: LearnerRecord) -> View:
    everyone = {name: member(name) for name in HANDED_IN} | learners
    return view(learners=everyone, handins={"anna/1/1": handin("anna", 1, 2, 12_000)}, receipts={})


def judged(
    losses: Losses = GOOD,
    *,
    seen: View | None = None,
    books: Books | None = None,
    joined_late: tuple[str, ...] = ("cleo",),
    found: tuple[str, ...] = (),
) -> Report:
    seen = seen or the_view()
    shown = snapshot(seen)
    assert shown is not None
    played = Played(
        view=seen,
        snapshot=shown,
        killed=("bert",),
        joined_late=joined_late,
        seconds=61.0,
        problems=found,
    )
    return judge(played, books or the_books(), losses, export=Path("x"), loss_target=2.6)


def test_books_that_balance_give_no_problem() -> None:
    """Handed in 25,500 weighted tokens: 20,000 merged, 2,500 refused, 3,000 without a receipt."""
    assert problems(the_books(), the_view(), killed=()) == []
    totals = run_totals(the_books(), the_view())
    assert (totals.handed_in, totals.merged, totals.refused, totals.outstanding) == (
        25_500.0,
        20_000.0,
        2_500.0,
        3_000.0,
    )
    assert totals.discarded == 3_000.0


def test_work_that_vanished_is_found() -> None:
    """A learner that handed in more than the log and the open announcements know of."""
    shown = the_view(cleo=member("cleo", handed_in=Work(steps=1, tokens=2_600), tokens=5_600))
    assert problems(the_books(), shown, killed=()) == [
        "cleo handed in 2600.0 tokens, but 2500.0 have a receipt or wait for one"
    ]


def test_work_that_a_learner_forgot_is_found() -> None:
    """Trained = handed in + discarded + kept, at every learner."""
    (sentence,) = problems(the_books(), the_view(cleo=member("cleo", tokens=9_000)), killed=())
    assert sentence == "cleo trained on 9000 tokens, but handed in, discarded and kept 5500.0"


def test_a_ledger_that_says_more_than_its_receipts_is_found() -> None:
    """The coordinator's sums are checked against single receipts, not against themselves."""
    books = the_books()
    row = books.state.ledger[1]
    books.state.ledger[1] = row.add("merged", books.state.ledger[0].merged)
    (sentence,) = problems(books, the_view(), killed=())
    assert "25500.0 tokens were handed in, but 27500.0 have a fate" in sentence


def test_a_killed_learner_is_not_asked() -> None:
    """Its last beat may be older than its last hand-in; the log's word counts for it."""
    shown = the_view(bert=member("bert", handed_in=Work(steps=1, tokens=1)))
    assert problems(the_books(), shown, killed=("bert",)) == []
    assert problems(the_books(), shown, killed=()) != []


def test_a_good_run_has_no_problem() -> None:
    """And its document says who was killed and who came late."""
    report = judged()
    assert report.problems == ()
    assert (report.killed, report.joined_late) == (("bert",), ("cleo",))
    assert report.loss == GOOD


def test_the_summary_ends_with_what_the_killing_has_cost() -> None:
    """By the ledger: what is lost is said."""
    report = judged()
    end = "bert was killed after 200 steps, and the others went on; of what was handed in, "
    assert text(report, the_books()).splitlines()[-1] == f"{end}nothing was lost"
    losing = msgspec.structs.replace(report.tokens, lost=2_500.0)
    report = msgspec.structs.replace(report, tokens=losing)
    assert text(report, the_books()).splitlines()[-1] == f"{end}2.5k tokens were lost"


@pytest.mark.parametrize("last", [5.4, 2.61, float("nan"), float("inf")])
def test_a_model_that_has_not_learned_fails(last: float) -> None:
    """As after merges that do nothing: the last version is no better than the first."""
    report = judged(Losses(first=5.4, last=last))
    assert any("is not below 2.6" in problem for problem in report.problems)


def test_a_model_that_was_good_from_the_start_fails() -> None:
    """Below the target, but not by training."""
    (problem,) = judged(Losses(first=2.35, last=2.3)).problems
    assert "not clearly below 2.350" in problem


def test_a_late_joiner_must_have_taken_part() -> None:
    """Something of it was merged, and somebody did join late."""
    alone = tuple(row for row in RECEIPTS if row.learner != "cleo")
    idle = member("cleo", handed_in=Work(), tokens=3_000)
    report = judged(books=the_books(alone), seen=the_view(cleo=idle))
    assert report.problems == ("cleo joined late, and nothing of it was merged",)
    assert any("could join late" in problem for problem in judged(joined_late=()).problems)


@pytest.mark.parametrize(("dead_s", "counted"), [(7.9, []), (8.1, ["bert"])])
def test_a_dead_learner_may_be_counted_until_it_can_be_noticed(
    dead_s: float, counted: list[str]
) -> None:
    """`gone_s` and two seconds more; then neither its state nor a round may still count on it."""
    shown = snapshot(view())  # bert trains, and the open round waits for it
    assert shown is not None
    assert still_counted(shown, {"bert": shown.taken_at - dead_s}, gone_s=6.0) == counted


def test_a_round_that_waits_for_a_dead_learner_counts_on_it() -> None:
    """Even where its state is shown rightly; dora is gone, and no round waits for it."""
    shown = snapshot(view(learners={"dora": learner("dora")}))
    assert shown is not None
    killed_at = {"bert": shown.taken_at - 60, "dora": shown.taken_at - 60}
    assert still_counted(shown, killed_at, gone_s=6.0) == ["bert"]


def test_what_was_seen_on_the_way_is_not_forgotten() -> None:
    """Problems of the performance itself fail the demo too."""
    assert judged(found=("bert is still counted",)).problems == ("bert is still counted",)


def test_the_document_has_the_fields_that_are_promised() -> None:
    """Written out, because scripts read them."""
    document = msgspec.json.decode(canonical(judged()))
    assert set(document) == {
        "schema", "commits", "tokens", "loss", "learners", "killed", "joined_late",
        "seconds", "export", "problems",
    }  # fmt: skip
    assert set(document["tokens"]) == {
        "handed_in", "merged", "refused", "expired", "lost", "rolled_back", "outstanding",
        "discarded",
    }  # fmt: skip
    assert set(document["loss"]) == {"first", "last"}
    assert set(document["learners"][0]) == {"id", "state", "steps", "tokens", "stall_s", "busy_s"}


def test_the_summary_names_what_happened() -> None:
    """Both losses, the fates that occurred, the killed, the late, and the model's place."""
    shown = text(judged(), the_books())
    assert "5.400 at version 0, 2.300 at the last" in shown
    assert (
        "26k handed in, 20k merged, 2.5k refused, 3.0k after the last version, 3.0k discarded"
        in shown
    )
    assert "killed on the way" in shown
    assert "joined late" in shown
