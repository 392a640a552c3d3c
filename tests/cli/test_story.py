"""`ddl explain` and `ddl events`: from a log in a store, and from what Redis remembers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from ddl.coordinator.history import History
from ddl.core.log import LogState
from ddl.core.snapshot import snapshot
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import FragmentStep, Health, LogRecord, Receipt, Waits
from ddl.protocol.wire import canonical
from ddl.registry.coordinator import RedisCoordinator
from ddl.store.local import LocalStore
from ddl_cli.app import app
from ddl_cli.made import of_round, of_version
from ddl_cli.story import Line, Sources, of_contribution, of_learner
from tests.cli.conftest import publish
from tests.views import NOW, REF, fact, handin, merged, receipt, run_record, view

LAUNCH = 1_000_001


class Log:
    """A log of `demo`, written record by record, ten seconds apart."""

    def __init__(self, store: LocalStore) -> None:
        run = run_record()
        store.put(ObjectKeys(run.name).run_record, canonical(run), mode="create")
        self.history = History(store, run.name)
        self.state = self.history.genesis(run)
        self.records: list[LogRecord] = []

    def write(self, kind: Any, **more: Any) -> None:
        record = self.state.next_record(
            kind,
            epoch=1,
            holder="host-a-77",
            written_at=NOW - 90 + 10 * self.state.seq,
            ddl_version="0",
            **more,
        )
        entry = self.history.write(record)
        self.state.apply(record, entry.digest)
        self.records.append(record)

    def step(self, fragment: int, *receipts: Receipt, **more: Any) -> None:
        version = self.state.fragments[fragment].version
        move = FragmentStep(
            fragment=fragment, version_before=version, version_after=version + 1, published=REF
        )
        self.write("step", fragments=[move], receipts=receipts, **more)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def log(store: LocalStore) -> Log:
    """Two versions, a refusal, a learner kicked and let in again, a larger budget, the end."""
    log = Log(store)
    log.step(
        0,
        receipt("anna", 0, 1, weight=300.0, norm=2.5),
        receipt("bert", 0, 1, weight=100.0, staleness=1),
        launch=LAUNCH,
        carried=("cleo/1/f0/1",),
        why="all live learners are in (2); bert came last",
        waits=Waits(quorum_s=1.2, grace_s=0.3, fetch_s=0.004, merge_s=0.02, publish_s=0.1),
        health=Health(loss_mean=2.75, cos_peers=0.8),
    )
    log.step(
        1,
        receipt("anna", 1, 1, weight=300.0),
        receipt("bert", 1, 1, fate="refused", reason="3 values are not finite"),
        launch=LAUNCH + 1,
        health=Health(loss_mean=2.5),
    )
    log.write(
        "settings", barred={"bert": "its fan is dead (by ann)"}, who="ann", why="its fan is dead"
    )
    log.write("settings", barred={"bert": ""}, who="ann")
    log.write("settings", changes={"stop.tokens": 12_000_000}, who="ann", why="more")
    log.write("stop", who="ann", why="enough")
    return log


def ddl(*words: str) -> Result:
    return CliRunner().invoke(
        app, list(words), env={"DDL_REDIS": "", "DDL_STORE": "", "LC_ALL": "C"}
    )


def texts(lines: Iterator[Line]) -> list[str]:
    return [line.text for line in lines]


def told(log: Log, **more: Any) -> Sources:
    return Sources(run_record(), "demo", log.records, **more)


def test_the_story_of_a_version(log: Log) -> None:
    """What moved, by whom, from which contributions and with which weight; its round is another story."""
    assert texts(of_version(1, told(log))) == [
        "version 1 moved fragment 0 from v0 to v1 (4B); by coordinator host-a-77 (epoch 1), record 1",
        "merged anna/1/f0/1: 10 steps, 10,000 tokens, 75% of the weight",
        "merged bert/1/f0/1: 10 steps, 10,000 tokens, 25% of the weight, 1 version late",
        "the learners' loss 2.75, agreement of contributions 0.8",
        "what its round waited for, and what was not merged: `ddl explain demo round 1`",
    ]
    assert texts(of_version(0, told(log))) == [
        "version 0 is what demo was created with: 1,000 parameters in 2 fragments"
    ]
    assert texts(of_version(3, told(log))) == []


def test_the_story_of_a_version_that_was_given_up(store: LocalStore) -> None:
    """A rollback is told at the version it went to, at those it gave up, and at the one it made."""
    log = Log(store)
    for _ in range(3):
        log.step(0, receipt("anna", 0, log.state.global_version + 1, weight=1.0))
    moves = [
        FragmentStep(
            fragment=p, version_before=head.version, version_after=head.version + 1, published=REF
        )
        for p, head in enumerate(log.state.fragments)
    ]
    log.write("rollback", fragments=moves, back_to=1, who="ann", why="it diverged")
    assert texts(of_version(1, told(log)))[-1] == (
        "it was taken up again as version 4: it diverged (ann)"
    )
    assert texts(of_version(3, told(log)))[-1] == (
        "it was given up: the run went back to version 1: it diverged (ann)"
    )
    assert texts(of_version(4, told(log)))[0].startswith(
        "version 4 is version 1 again: it diverged (ann); by coordinator host-a-77"
    )


def test_the_story_of_a_round(log: Log) -> None:
    """By its launch number or by the version it made: what it waited for, and what came of it."""
    extended = fact(88, "round.extended", "fragment 0 v1: needs 2", fragment=0, launch=LAUNCH)
    sources = told(log, facts=(extended,))
    by_launch = texts(of_round(LAUNCH, sources))
    assert by_launch == [
        "extended: fragment 0 v1: needs 2",
        "closed with 2 contributions: anna/1/f0/1, bert/1/f0/1 (1 version late); "
        "all live learners are in (2); bert came last",
        "it took 1.2 s to the quorum and 300 ms of grace; fetching 4 ms, merging 20 ms, "
        "publishing 100 ms",
        "came too late for it, and was carried into the next round: cleo/1/f0/1",
        "it made version 1; its weights and health: `ddl explain demo version 1`",
    ]
    assert texts(of_round(1, sources)) == by_launch
    assert "in the same record: bert/1/f1/1 was refused: 3 values are not finite" in texts(
        of_round(2, sources)
    )


def test_the_story_of_an_open_round(log: Log) -> None:
    """Who is in, who is awaited, and why it has not closed."""
    (opened, now) = of_round(3_000_017, told(log, shown=snapshot(view())))
    assert opened.text == "opened, to make v8 of fragment 1"
    assert (now.at, now.text) == (
        None,
        "open now: 1 contribution of 2 in (anna); awaits bert; needs 2 contributions, 1 in",
    )


def test_the_story_of_a_contribution(log: Log) -> None:
    """Merged with its share, refused with the reason, carried, or still without a receipt."""
    assert texts(of_contribution("anna/1/f0/1", told(log))) == [
        "anna/1/f0/1 was merged; 10 steps, 10,000 tokens, length 2.5; it is 75% of version 1 (record 1)"
    ]
    (refused,) = texts(of_contribution("bert/1/f1/1", told(log)))
    assert refused.startswith("bert/1/f1/1 was refused: 3 values are not finite")
    waiting = told(log, handins=(handin("anna", 1, 8, 12_000),))
    (pending,) = of_contribution("anna/1/f1/8", waiting)
    assert (pending.at, pending.text) == (
        None,
        "anna/1/f1/8 is announced and has no receipt yet: 10 steps, 12,000 tokens, 4B as fp32, "
        "on v6 of fragment 1",
    )
    (carried,) = texts(of_contribution("cleo/1/f0/1", told(log)))
    assert carried == "it missed the round that made version 1, and was carried"


def test_the_story_of_a_learner(log: Log) -> None:
    """Its lives with their receipts, what was not merged and why, what it met, how it is now."""
    gone = fact(70, "learner.gone", "bert is gone (was suspect)", learner="bert")
    lines = texts(of_learner("bert", told(log, facts=(gone,), shown=snapshot(view()))))
    assert lines[0] == (
        "life 1: of its hand-ins 1 merged, 1 refused over 10 s, which is 10 steps of the whole model, "
        "10k tokens"
    )
    assert "bert/1/f1/1 was refused: 3 values are not finite" in lines
    assert "bert was kicked: its fan is dead (by ann)" in lines
    assert "bert was allowed in again (by ann)" in lines
    assert "bert is gone (was suspect)" in lines
    assert lines[-2].startswith("it is training, for 1m00s now; on host-a (cpu), step ")
    assert lines[-1].startswith("the last hand-in of bert was refused: norm. Look at that machine")


def test_explain_needs_only_the_store(log: Log, store: LocalStore) -> None:
    """Lines with their time, oldest first; `--json` is one Story."""
    shown = ddl("explain", f"{store.url}/demo", "contribution", "bert/1/f1/1")
    assert shown.exit_code == 0, shown.output
    (line,) = shown.stdout.splitlines()
    assert line.partition("  ")[2].startswith("bert/1/f1/1 was refused")
    document = ddl("explain", f"{store.url}/demo", "version", "1", "--json")
    story = msgspec.json.decode(document.stdout)
    assert (story["schema"], story["run"], story["subject"]) == (1, "demo", "version 1")
    assert story["lines"][0].keys() == {"at", "text"}


@pytest.mark.parametrize("words", [("version", "9"), ("version", "x"), ("learner", "nobody")])
def test_what_the_run_never_had_is_two(log: Log, store: LocalStore, words: tuple[str, str]) -> None:
    """A name that cannot be is a mistake of who asks; nothing is made up."""
    run = subprocess.run(
        [sys.executable, "-m", "ddl_cli", "explain", f"{store.url}/demo", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert words[1] in run.stderr
    assert ("Its versions are 0 to 2" in run.stderr) == (words == ("version", "9"))
    assert ("It has anna, bert" in run.stderr) == (words[0] == "learner")
    assert run.stdout == ""


def test_events_of_a_store_are_those_of_its_log(log: Log, store: LocalStore) -> None:
    """Versions, refusals and decisions, though no Redis remembers them."""
    shown = ddl("events", f"{store.url}/demo")
    names = [line.split()[2] for line in shown.stdout.splitlines()]
    assert names == [
        "version.published",
        "contribution.refused",
        "version.published",
        "order.allow",
        "run.settings",
        "run.stop",
    ]
    lately = ddl("events", f"{store.url}/demo", "--since", "15s")
    assert [line.split()[2] for line in lately.stdout.splitlines()] == ["run.settings", "run.stop"]
    newest = ddl("events", f"{store.url}/demo", "--last", "3")
    assert newest.stdout.splitlines() == shown.stdout.splitlines()[-3:]


@pytest.mark.parametrize("gone", [False, True], ids=["unknown", "away"])
def test_events_of_the_log_where_redis_does_not_tell(
    log: Log, store: LocalStore, redis_url: str, gone: bool
) -> None:
    """It is said that they are; to follow them, Redis is needed."""
    redis = "redis://127.0.0.1:1/0" if gone else redis_url
    words = ("events", f"{redis}?run=demo", "--store", store.url)
    shown = ddl(*words)
    assert shown.exit_code == 0
    assert "told from the log alone: Redis" in shown.stderr
    assert shown.stdout == ddl("events", f"{store.url}/demo").stdout
    assert ddl(*words, "--follow").exit_code != 0


def test_events_of_redis_as_json_lines(redis_url: str) -> None:
    """What it remembers, each a document with its schema; `--since` counts from now."""
    publish(redis_url)
    address = f"{redis_url}?run=demo"
    rows = [
        msgspec.json.decode(line) for line in ddl("events", address, "--json").stdout.splitlines()
    ]
    assert [row["name"] for row in rows] == [one.name for one in view().facts]
    assert all(row.keys() == {"schema", "at", "name", "text", "fields"} for row in rows)
    assert ddl("events", address, "--last", "1", "--json").stdout.count("\n") == 1
    assert ddl("events", address, "--since", "1h").stdout == ""
    assert ddl("events", address, "--since", "2000d").stdout.count("\n") == len(rows)


def test_events_come_in_the_order_of_their_time(redis_url: str) -> None:
    """Also what a coordinator found out later: who came and went while there was none."""
    publish(redis_url)
    late = [fact(200, "learner.left", "ann left"), fact(300, "learner.joined", "ann joined")]
    with closing(RedisCoordinator(redis_url, "demo")) as coordinator:
        coordinator.tell(late)
    shown = ddl("events", f"{redis_url}?run=demo", "--json").stdout.splitlines()
    rows = [msgspec.json.decode(line) for line in shown]
    assert len(rows) == len(view().facts) + 2
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    names = [row["name"] for row in rows if row["text"].startswith("ann ")]
    assert names == ["learner.joined", "learner.left"]


@pytest.mark.parametrize(
    ("words", "code"), [(("--since", "soon"), 2), (("--redis", "redis://127.0.0.1:1/0"), 3)]
)
def test_events_that_cannot_be_had(redis_url: str, words: tuple[str, ...], code: int) -> None:
    """An age that is none; a Redis that is not there."""
    command = [sys.executable, "-m", "ddl_cli", "events", "demo", "--redis", redis_url, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stdout == ""


def test_following_events(redis_url: str) -> None:
    """What comes is shown when it comes, until Ctrl-C."""
    publish(redis_url, facts=(fact(5, "x", "an old thing"),))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ddl_cli", "events", "demo", "--redis", redis_url, "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as lines:
        try:
            assert lines.readline().endswith("an old thing\n")
            with closing(RedisCoordinator(redis_url, "demo")) as coordinator:
                coordinator.tell([merged(0, 16, 1, "anna/1/f1/9")])
            assert "version 16: fragment 1 from anna/1/f1/9" in lines.readline()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


def test_a_run_that_redis_does_not_know(redis_url: str) -> None:
    """One sentence, as everywhere."""
    command = [sys.executable, "-m", "ddl_cli", "events", "nobody", "--redis", redis_url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "does not know the run 'nobody'" in ended.stderr


def test_a_run_from_its_log_alone(log: Log, store: LocalStore) -> None:
    """The settings in force now, not those of genesis; the loss as steps told it; and dates, since
    nobody knows how long ago that was."""
    shown = ddl("status", f"{store.url}/demo")
    assert shown.exit_code == 0
    assert "demo  stopped  version 2  3% of 12M tokens or 60 commits" in shown.stdout
    assert "loss 2.500 #_ since v1: 2.750" in shown.stdout
    assert "refused" in shown.stdout
    assert " ago" not in shown.stdout
    assert "11-29 13:59:20  the run is stopped: enough (ann)" in shown.stdout
    assert "no coordinator" not in shown.stdout
    listed = ddl("runs", "--store", store.url).stdout.splitlines()[-1].split()
    assert listed[:5] == ["demo", "stopped", "2", "18k", "2.500"]


def test_settings_of_a_run_from_its_log_alone(log: Log, store: LocalStore) -> None:
    """Those in force at its end; of one that was changed, what it was before."""
    shown = ddl("config", "show", f"{store.url}/demo", "--json")
    assert shown.exit_code == 0, shown.output
    document = msgspec.json.decode(shown.stdout)
    before = run_record().settings.stop.tokens
    assert document["settings"]["stop"]["tokens"] == 12_000_000 != before
    origins = document["origins"]
    assert origins["stop.tokens"] == f"changed during the run, was {before:_}"
    assert {origins[key] for key in origins.keys() - {"stop.tokens", "redis.url"}} == {"run"}


def test_the_state_of_a_log_is_what_its_records_say(log: Log) -> None:
    """Who brought the run to its end, when and why stays with it, for every view."""
    state: LogState = log.state
    assert (state.state, state.why, state.state_at) == ("stopped", "enough (ann)", NOW - 40)
    assert state.settings.stop.tokens == 12_000_000
