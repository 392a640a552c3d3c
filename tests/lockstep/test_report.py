"""`ddl report`: the story of a run in virtual time, and the page that tells it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from ddl.config import KeepSettings, RoundSettings
from ddl.core import events as e
from ddl.core.snapshot import outcomes
from ddl.protocol.records import FATES, Fact, Request
from ddl_cli.report.canvas import panels, time_along, tokens_along, versions_along
from ddl_cli.report.page import render
from ddl_cli.report.plots import MEANINGS, STYLES, draw_all
from ddl_cli.report.story import MarkKind, Story, gather
from ddl_cli.units import short_number
from tests.lockstep.runner import Run, infos, settings_of
from tests.lockstep.tasks import ConstantGradient

FRAGMENTS = 2
PAYLOAD_BYTES = (1_000, 100)


@pytest.fixture(scope="module")
def run() -> Run:
    """Three learners; one dies and comes back, one joins late; a rollback, a change of settings, and
    a second coordinator."""
    run = Run(
        settings_of(
            FRAGMENTS,
            keep=KeepSettings(versions=1000),
            round=RoundSettings(every_steps=8, overlap_steps=2, in_flight=2),
        ),
        infos(FRAGMENTS),
    )
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=6)
    run.learners["b"].kill()
    run.add_learner("late", ConstantGradient(run.layout, lr=0.1), step_s=2.0)
    run.go(commits=12)
    run.add_learner("b", ConstantGradient(run.layout, lr=0.1))
    ask(run, Request(id="1", kind="rollback", version=8, who="ann", why="<spike> & co"))
    run.go(commits=18)
    assert run.coordinator is not None
    run.coordinator.die()
    run.start_coordinator()
    same = {"keep.versions": run.coordinator.machine.log.settings.keep.versions}
    ask(run, Request(id="2", kind="set", changes={"round.quorum": 2, **same}, who="ann"))
    run.go(commits=26)
    return run


def ask(run: Run, request: Request) -> None:
    coordinator = run.coordinator
    assert coordinator is not None
    coordinator.tell(e.Requested(request))
    assert run.time.run(60.0, until=lambda: request.id in coordinator.answers)
    assert coordinator.answers[request.id] == "done"


@pytest.fixture(scope="module")
def story(run: Run) -> Story:
    death = Fact(at=run.record.created_at + 20.0, name="learner.gone", text="b is gone")
    return gather(run.record, run.records(), payload_bytes=PAYLOAD_BYTES, facts=[death])


def test_the_story_adds_up_to_the_ledger(run: Run, story: Story) -> None:
    """Tokens by fate are those of the last record's ledger, weighted by the fragments' shares."""
    rows = run.log.ledger
    for fate in FATES:
        expected = sum(
            share * getattr(row, fate).tokens
            for share, row in zip(run.layout.shares, rows, strict=True)
        )
        assert story.tokens[fate] == pytest.approx(expected)
        assert story.tokens[fate] == pytest.approx(
            sum(part.tokens[fate] for part in story.parts.values())
        )
    receipts = run.receipts()
    assert sum(part.contributions for part in story.parts.values()) == len(receipts)
    assert sum(step.up_bytes for step in story.steps) == sum(
        PAYLOAD_BYTES[r.fragment]
        for record in run.records()
        if record.kind == "step"
        for r in record.receipts
    )


def test_steps_are_those_of_the_log(run: Run, story: Story) -> None:
    records = [record for record in run.records() if record.kind == "step"]
    assert [step.version for step in story.steps] == [r.global_version for r in records]
    assert [step.down_bytes for step in story.steps] == [
        r.fragments[0].published.bytes for r in records
    ]
    for step, record in zip(story.steps, records, strict=True):
        merged = [r for r in record.receipts if r.fate == "merged"]
        assert set(step.tokens) == {r.learner for r in merged}
        share = run.layout.shares[step.fragment]
        assert sum(step.tokens.values()) == pytest.approx(share * sum(r.tokens for r in merged))


def test_what_happened_is_marked_in_order(story: Story) -> None:
    """Who came, who died, who came back, and what people and coordinators did."""
    assert [mark.at_s for mark in story.marks] == sorted(mark.at_s for mark in story.marks)
    by_kind: dict[str, list[str]] = {}
    for mark in story.marks:
        by_kind.setdefault(mark.kind, []).append(mark.text)
    assert sorted(by_kind["joined"]) == ["a", "b", "late"]
    assert by_kind["back"] == ["b"]
    assert by_kind["gone"] == ["b is gone"]
    assert by_kind["coordinator"] == ["c2 coordinates (epoch 2)"]
    assert any("round.quorum = 2" in text for text in by_kind["changed"])
    assert len(by_kind["rollback"]) == 1
    (death,) = [mark for mark in story.marks if mark.kind == "gone"]
    earlier = [step.progress for step in story.steps if step.at_s <= death.at_s]
    assert death.progress == earlier[-1]


def test_what_a_rollback_undid_is_told(run: Run, story: Story) -> None:
    """Merged tokens are those that are in the model; those that are no more have a word of their own."""
    steps = {record.global_version: record for record in run.records() if record.kind == "step"}
    (rollback,) = [record for record in run.records() if record.kind == "rollback"]
    undone = steps[rollback.global_version - 1].progress - steps[8].progress
    assert undone > 0
    told = outcomes(story.tokens, story.progress)
    assert told["merged"] == story.progress
    assert told["undone by rollbacks"] == pytest.approx(undone)
    assert f", {short_number(undone)} undone by rollbacks" in render(story, [], written_at=0.0)


def test_settings_are_told_as_they_were_and_became(story: Story) -> None:
    """Each change with when, from what to what and by whom, but not what an order left as it was; the
    table has beginning and end."""
    (change,) = story.changes
    assert (change.key, change.before, change.after) == ("round.quorum", 1, 2)
    assert (change.by, story.settings.round.quorum) == ("by ann", 2)
    assert story.run.settings.round.quorum == 1
    page = render(story, [], written_at=0.0)
    assert f", version {change.version}</td><td>round.quorum</td><td>1 to 2</td>" in page
    assert "<td>round.quorum</td><td>1</td><td>2</td>" in page


def test_every_kind_of_mark_has_a_symbol_and_a_meaning() -> None:
    assert set(STYLES) == set(MEANINGS) == set(get_args(MarkKind))


class Outline(HTMLParser):
    """Tags that are open, and those that refer to anything outside of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_stands_alone(story: Story) -> None:
    """Every picture is well-formed and says in words what it shows; nothing is loaded from anywhere;
    what people wrote is text, never markup; and the same run gives the same page."""
    plots = draw_all(story)
    for plot in plots:
        ET.fromstring(plot.svg)
        assert plot.says
    titles = [plot.title for plot in plots]
    assert "Who took part" in titles
    assert len(titles) >= 6
    page = render(story, plots, written_at=0.0)
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.outside == []
    assert "<script" not in page
    assert "<spike>" not in page
    assert "<spike> & co" in outline.text
    assert page.count("<svg") == len(plots)
    assert render(story, draw_all(story), written_at=0.0) == page


@pytest.mark.parametrize("num", [1, 2])
@pytest.mark.parametrize("end", [8.0, 4_321.0, 50_000.0, 3.1e6, 2.7e9])
def test_labels_of_an_axis_stand_apart(num: int, end: float) -> None:
    """However long the run is, and however narrow the panel: enough of them to read it by."""
    for along in (time_along, tokens_along, versions_along):
        figure, panes = panels(num)
        for axes in panes:
            axes.plot([0.0, end], [0.0, 1.0])
            along(axes)
        figure.draw_without_rendering()
        for axes in panes:
            begin, last = axes.get_xlim()
            labels = [
                label.get_window_extent()
                for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
                if begin <= place <= last
            ]
            assert len(labels) >= 2
            gaps = [b.x0 - a.x1 for a, b in pairwise(labels)]
            assert min(gaps) > 2, (along, [label.get_text() for label in axes.get_xticklabels()])


def test_a_run_without_versions_has_a_page_too(run: Run) -> None:
    empty = gather(run.record, [], payload_bytes=PAYLOAD_BYTES)
    page = render(empty, draw_all(empty), written_at=0.0)
    assert re.search(r"version 0, 0 tokens", page)
    assert "<svg" not in page


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_a_browser_shows_the_page(story: Story, tmp_path: Path) -> None:
    """A real one, offline: it draws every picture, on a wide screen and on a telephone's."""
    page = tmp_path / "index.html"
    page.write_text(render(story, draw_all(story), written_at=0.0))
    for width in (400, 1200):
        picture = tmp_path / f"{width}.png"
        command = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},5000"),
            *(f"--screenshot={picture}", page.as_uri()),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert "CONSOLE" not in done.stderr
        image = Image.open(picture)
        assert image.width == width
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 24) or ()}
        assert {(31, 119, 180), (255, 127, 14)} <= colours  # the bars and lines of the plots
