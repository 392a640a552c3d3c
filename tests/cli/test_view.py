"""The pages of the live view, drawn from snapshots alone, at the sizes that people have."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.text import Text

from ddl.core.snapshot import snapshot
from ddl.protocol.records import Health, RunSnapshot, ServiceView, Trouble
from ddl.protocol.wire import canonical
from ddl_cli.view.curve import chart, curve
from ddl_cli.view.head import done_ratio, head, summary
from ddl_cli.view.look import Look, Page
from ddl_cli.view.pages import Frame, printed, rows_of, screenful
from ddl_cli.view.paper import canvas as canvas_of
from ddl_cli.view.paper import speaks_unicode
from ddl_cli.view.text import Canvas
from ddl_cli.view.trail import Rates
from tests.views import NOW, fact, learner, merged, view

GOLDEN = Path(__file__).parent / "golden"
SIZES = [(80, 24), (120, 30), (200, 50)]
PAGES: list[Page] = ["overview", "learners", "rounds", "events", "learner", "help"]


def sample(**changes: Any) -> RunSnapshot:
    shown = snapshot(view(**changes))
    assert shown is not None
    return msgspec.structs.replace(
        shown, health=Health(cos_peers=0.81, cos_prev=0.12, step_norm=0.034, loss_mean=2.5432)
    )


def plain(lines: list[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


def overview(shown: RunSnapshot, width: int = 80, height: int = 24, notice: str = "") -> list[str]:
    return plain(screenful(Frame(shown, Look(), Canvas(width), notice=notice), height))


def check_golden(name: str, lines: list[str]) -> None:
    """REWRITE_GOLDEN=1 in front of pytest writes the file anew, to be looked at."""
    file = GOLDEN / f"{name}.txt"
    drawn = "\n".join(lines) + "\n"
    if os.environ.get("REWRITE_GOLDEN"):
        file.write_text(drawn, "utf-8")
    assert drawn == file.read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_pages_are_those_on_file(page: Page, width: int, height: int) -> None:
    """Byte for byte, and exactly as large as the window; wide ones with the bars of Unicode."""
    look = Look(page=page, selected="bert")
    canvas = Canvas(width, ascii=width == 80)
    lines = screenful(Frame(sample(), look, canvas, Rates(up=1.2e6, down=340.0)), height)
    assert len(lines) == height
    check_golden(f"status-{page}-{width}", plain(lines))


def test_the_json_is_the_one_on_file() -> None:
    """Programs rely on its fields: who renames one breaks them, and sees it here."""
    pretty = msgspec.json.format(canonical(sample()), indent=2).decode()
    check_golden("status-json", pretty.splitlines())


def test_what_is_piped_is_whole_and_never_wrapped() -> None:
    """No window, so no width: every column, and a sentence is a line however long it is."""
    lines = plain(printed(sample(), Canvas()))
    check_golden("status-printed", lines)
    assert any(len(line) > 140 for line in lines)
    assert any(line.startswith("learner") and line.endswith("host") for line in lines)


@pytest.mark.parametrize(("columns", "width"), [("50", 50), ("3", 20), ("wide", None), ("", None)])
def test_columns_is_the_width_where_there_is_no_window(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int | None
) -> None:
    """Who sets it for a pipe wants lines of that width."""
    monkeypatch.setenv("COLUMNS", columns)
    assert canvas_of(Console(file=io.StringIO())).width == width


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("page", PAGES)
def test_no_line_is_wider_than_the_window(width: int, page: Page) -> None:
    """Nothing is cut in the middle of a cell: columns go, sentences wrap; down to six lines."""
    look = Look(page=page, selected="bert")
    for height in (6, 24):
        lines = screenful(Frame(sample(), look, Canvas(width)), height)
        assert len(lines) == height
        assert all(len(line) <= width for line in lines)


def test_long_ids_are_told_apart_in_a_narrow_window() -> None:
    """Hosts of one cluster differ in a few characters, and these are kept."""
    ids = [f"gpu-cluster-frankfurt-node-{n}-a3f2" for n in (17, 18, 19)]
    shown = sample(learners={id_: learner(id_) for id_ in ids}, beats=dict.fromkeys(ids, NOW))
    lines = overview(shown, 40)
    start = next(i for i, line in enumerate(lines) if line.startswith("learner"))
    names = {line.split()[0] for line in lines[start + 1 : start + 4]}
    assert len(names) == 3


def test_a_low_window_shows_fewer_learners_and_says_so() -> None:
    """The present ones come first; the rest is counted."""
    learners = {f"l{n:02d}": learner(f"l{n:02d}") for n in range(30)}
    lines = overview(sample(learners=learners, beats={"l29": NOW}))
    table = [line for line in lines if line[:1] == "l" and line[1:3].isdigit()]
    assert table[0].startswith("l29")
    assert f"and {30 - len(table)} more, 0 of them present" in lines


def test_the_chosen_learner_is_always_in_sight() -> None:
    """However long the table is, it moves with the choice."""
    learners = {f"l{n:02d}": learner(f"l{n:02d}") for n in range(60)}
    shown = sample(learners=learners, beats=dict.fromkeys(learners, NOW))
    for selected in ("l00", "l31", "l59"):
        look = Look(page="learners", selected=selected)
        lines = plain(screenful(Frame(shown, look, Canvas(80)), 24))
        assert any(line.startswith(selected) for line in lines)


def test_counts_of_a_learner_that_came_back_are_those_of_its_life() -> None:
    """In the table, and where all of it is told; one that never went says nothing of lives."""
    both = {"anna": learner("anna"), "bert": learner("bert", incarnation=3, step=12, tokens=400)}
    shown = sample(learners=both)
    rows = {line.split()[0]: line for line in plain(printed(shown, Canvas())) if line[:4] in both}
    assert "training, life 3 " in rows["bert"]
    assert "life" not in rows["anna"]
    frame = Frame(shown, Look(page="learner", selected="bert"), Canvas(100), Rates())
    lines = plain(screenful(frame, 40))
    assert "trained       12 steps, 400 tokens since it came back as life 3" in " ".join(lines)


def test_what_is_outstanding_when_a_run_is_over_is_explained() -> None:
    """It waits for the run to go on; while that runs, the next round takes it."""
    words = "outstanding 0.7% (too late for the last version; taken up if the run goes on)"
    head = view().head
    assert head is not None
    over = sample(head=msgspec.structs.replace(head, state="stopped"))
    assert words in " ".join(plain(printed(over, Canvas())))
    assert words not in " ".join(plain(printed(sample(), Canvas())))


def test_many_troubles_of_one_kind_are_one() -> None:
    """Forty dead learners leave room for the rest of the picture."""
    learners = {f"l{n:02d}": learner(f"l{n:02d}") for n in range(40)}
    lines = overview(sample(learners=learners, beats={}))
    told = [line for line in lines if line.startswith("!")]
    assert told[0].startswith("!! no round can close: each needs 2 contributions, and 0 learners")
    assert told[1].startswith("!  l00 on host-a is gone")
    assert len(told) == 2
    assert "the same with l01, l02, l03 and 36 more" in " ".join(" ".join(lines).split())


def test_what_is_wrong_stays_however_much_happens() -> None:
    """A thousand versions later the dead and the failed are still named, with their error."""
    events = tuple(merged(1000.0 - n, n, 0, "anna/1/f0/8") for n in range(999))
    failed = learner("cleo", state="left", error="TaskError: no such file")
    shown = sample(learners={"anna": learner("anna"), "cleo": failed}, facts=events)
    text = "\n".join(overview(shown))
    assert "cleo ended with an error: TaskError: no such file" in text
    assert "versions 0 to 998 from anna, loss" in text


def test_a_notice_stands_above_all_troubles() -> None:
    """What is shown is old; all the rest must be read so."""
    lines = overview(sample(), notice="Redis does not answer (for 4 s)")
    first = next(line for line in lines if line.startswith("!"))
    assert first == "!! Redis does not answer (for 4 s)"


def test_a_round_says_what_it_waits_for() -> None:
    """Quorum, who is in and who is awaited, how long it is open, deadline and reason."""
    text = " ".join(" ".join(overview(sample())).split())
    assert (
        "f1 -> v8 1 in (anna), quorum 2, awaits bert, open 1.5 s, deadline in 3.5 s; "
        "needs 2 contributions, 1 in" in text
    )


def test_many_open_rounds_are_counted() -> None:
    """They never take more than their part of a low window."""
    one = view().rounds[0]
    rounds = tuple(msgspec.structs.replace(one, fragment=n) for n in range(12))
    lines = overview(sample(rounds=rounds))
    assert any(line.endswith("more open rounds") for line in lines)
    assert any(line.startswith("anna") for line in lines)


def test_versions_that_follow_each_other_share_a_line() -> None:
    """Anything else in between is seen between them."""
    facts = (
        *(merged(60.0 - n, n, 0, "anna/1/f0/8") for n in range(1, 5)),
        fact(50.0, "learner.gone", "dora is gone", learner="dora"),
        *(merged(40.0 - n, n, 0, "bert/1/f0/8") for n in range(5, 8)),
    )
    lines = overview(sample(facts=facts))
    told = [line.partition(" ago  ")[2] for line in lines if " ago  " in line]
    assert told[-3:] == [
        "versions 1 to 4 from anna, loss 2.875",
        "dora is gone",
        "versions 5 to 7 from bert, loss 2.781",
    ]


def test_from_the_store_alone_nobody_is_said_to_be_missing() -> None:
    """Without Redis nothing is known of a coordinator; the view says where its word is from."""
    shown = sample()
    shown = msgspec.structs.replace(
        shown,
        learners=(),
        rounds=(),
        troubles=(Trouble(name="run.held", alarm=True, what="the run is held", since_at=NOW),),
        run=msgspec.structs.replace(shown.run, state="running", committed_at=shown.taken_at),
        coordinator=msgspec.structs.replace(shown.coordinator, known=False, lease_left_s=None),
        services={"redis": ServiceView(ok=False, asked=False), "store": ServiceView(ok=True)},
    )
    text = "\n".join(plain(printed(shown, Canvas())))
    assert "from the log in the store alone, whose newest record is of 2025-11-29" in text
    assert "!! the run is held (since 2025-11-29 " in text
    assert "no Redis is named" in text
    assert "no coordinator" not in text
    assert "nothing merged for" not in text


def test_learners_can_be_sorted_and_found() -> None:
    """By a column both ways, by name among equals; by a part of what they say of themselves."""
    shown = sample()
    assert [one.id for one in rows_of(shown, Look())] == ["anna", "bert", "cleo", "dora"]
    by_rate = Look(sort="tok/s", descending=True)
    assert [one.id for one in rows_of(shown, by_rate)] == ["anna", "bert", "cleo", "dora"]
    upwards = Look(sort="step")
    assert [one.id for one in rows_of(shown, upwards)] == ["cleo", "bert", "anna", "dora"]
    assert [one.id for one in rows_of(shown, Look(filter="gone"))] == ["dora"]


def test_the_summary_is_one_line() -> None:
    """For logs: version, share done, loss, learners, pace, time left."""
    assert summary(sample()) == (
        "version 15 (40%), loss 2.543, 2 of 4 learners training, 15k tokens/s, 40 s left"
    )


def test_what_rollbacks_undid_is_told() -> None:
    """Fewer tokens are in the model than were merged: the heading says how many, and why."""
    shown = sample()
    run = msgspec.structs.replace(shown.run, line=1, progress=shown.ledger.merged - 5_000)
    told = plain(head(msgspec.structs.replace(shown, run=run), Canvas(), Rates()))
    assert told[0].startswith("demo  running  version 15, rolled back once  ")
    assert "tokens merged (rollbacks undid 5.0k more), " in told[2]
    assert not any("roll" in line for line in plain(head(shown, Canvas(), Rates())))


def test_without_a_budget_no_share_is_shown() -> None:
    """A run without an end has no percentage."""
    run = msgspec.structs.replace(sample().run, stop_tokens=0, stop_commits=0)
    assert done_ratio(msgspec.structs.replace(sample(), run=run)) is None


def test_a_curve_shows_where_it_goes() -> None:
    """Mean of each part; equal values are flat; what is not finite is left out."""
    assert curve([4.0, 3.0, 2.0, 1.0], 4, ascii_only=True) == "#+-_"
    assert curve([4.0, 4.0, 1.0, 1.0], 2, ascii_only=True) == "#_"
    assert curve([1.0, 1.0], 8, ascii_only=False) == "\u2581\u2581"
    assert curve([float("nan"), 2.0, float("inf")], 8, ascii_only=True) == "_"
    assert curve([], 8, ascii_only=True) == ""


def test_a_chart_is_as_high_as_asked() -> None:
    """Columns between the highest and the lowest value; eighths of a line where they can be shown."""
    assert chart([4.0, 3.0, 2.0, 1.0], 4, 4, ascii_only=True) == [
        "4 #",
        "  ##",
        "  ###",
        "1 ####",
    ]
    assert chart([2.0, 1.0], 2, 2, ascii_only=False) == ["2 \u2588", "1 \u2588\u2581"]
    assert chart([], 4, 4, ascii_only=True) == []


def test_what_room_is_left_shows_the_loss_and_the_last_rounds() -> None:
    """In a large window; in a low one the learners and what is wrong come first."""
    facts = tuple(merged(100.0 - n, n, n % 2, "anna/1/f0/8") for n in range(40))
    shown = sample(facts=facts)
    large = overview(shown, 120, 50)
    assert "loss, v0 to v39" in large
    assert any(line.startswith("v39") for line in large)
    assert not any(line.startswith("loss, ") for line in overview(shown))
    check_golden("status-overview-large", large)


@pytest.mark.parametrize(
    ("encoding", "environment", "speaks"),
    [
        ("utf-8", {"LANG": "en_US.UTF-8"}, True),
        ("utf-8", {"LANG": "de_DE.UTF-8", "LC_CTYPE": "C.UTF-8"}, True),
        ("utf-8", {"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ("utf-8", {"LC_CTYPE": "C.UTF-8"}, False),
        ("utf-8", {}, False),
        ("cp1252", {"LANG": "en_US.UTF-8"}, False),
        ("no-such", {"LANG": "en_US.UTF-8"}, False),
    ],
)
def test_bars_are_shown_where_they_are_understood(
    encoding: str, environment: dict[str, str], speaks: bool
) -> None:
    """By the encoding of the terminal and the user's locale, not by what Python makes of it."""
    assert speaks_unicode(encoding, environment) == speaks
