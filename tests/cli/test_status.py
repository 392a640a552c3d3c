"""`ddl status` against a real server: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import redis

from ddl.embedded import EmbeddedRedis
from ddl.protocol.keys import ObjectKeys, RegistryKeys
from ddl.protocol.records import RunSnapshot
from ddl.protocol.wire import canonical
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl.store.local import LocalStore
from ddl_cli.reading import Source
from ddl_cli.resolve import resolve
from tests.cli.conftest import publish
from tests.coordinating import RUN, write_run
from tests.views import NOW, fact, learner, run_record

DDL = [sys.executable, "-m", "ddl_cli"]
PATIENCE_S = 30.0


def status(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DDL, "status", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_not_a_terminal_prints_one_plain_table(published: str) -> None:
    """Without --once too: no control codes, and it ends."""
    shown = status(published)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert re.search(r"^anna +training", shown.stdout, re.MULTILINE)
    assert "version 15" in shown.stdout
    assert shown.stderr == ""


def test_json_is_one_snapshot(published: str) -> None:
    """One document, the RunSnapshot record, and nothing else on stdout."""
    shown = status(published, "--json")
    assert shown.returncode == 0
    snapshot = msgspec.json.decode(shown.stdout, type=RunSnapshot, strict=True)
    assert snapshot.schema == 1
    assert snapshot.run.global_version == 15
    assert [learner.id for learner in snapshot.learners] == ["anna"]
    assert snapshot.services["redis"].ok


def test_watch_with_json_is_a_line_each(published: str) -> None:
    """N looks, N lines, each of them a whole document."""
    shown = status(published, "--json", "--watch", "3", "--interval", "0.1")
    lines = shown.stdout.splitlines()
    assert len(lines) == 3
    snapshots = [msgspec.json.decode(line, type=RunSnapshot) for line in lines]
    assert snapshots[0].taken_at < snapshots[1].taken_at < snapshots[2].taken_at


def test_watch_in_a_log_is_a_line_per_event(redis_url: str) -> None:
    """Every new event once, and where the run stands; nothing old, no table, no control codes."""
    to_come = NOW - time.time() - 1000  # by the clock of the server, to which NOW is long past
    new = (fact(to_come, "x", "first thing"), fact(to_come - 1, "x", "second thing"))
    publish(redis_url, facts=(fact(5, "x", "an old thing"), *new))
    shown = status("demo", "--redis", redis_url, "--watch", "3", "--interval", "0.1")
    lines = shown.stdout.splitlines()
    assert [line[9:] for line in lines[:2]] == ["first thing", "second thing"]
    assert "version 15 (40%)" in lines[2]
    assert len(lines) == 3


@pytest.mark.parametrize("others", [0, 200])
def test_a_look_is_one_request_however_many_learners_there_are(
    own_redis: EmbeddedRedis, others: int
) -> None:
    """One script, as of one instant; the backlog of events is read once, at the start."""
    publish(own_redis.url)
    with closing(RedisLearner(own_redis.url, "demo")) as member:
        for number in range(others):
            member.register(learner(f"l{number}"), gone_s=15.0, takeover=False)
    source = Source(resolve("demo", redis=own_redis.url, environment={}))
    assert source.read() is not None  # the server knows the script from here on
    with redis.Redis.from_url(own_redis.url) as client:
        before = requests(client)
        source.backlog()
        for _ in range(5):
            shown = source.read()
            assert shown is not None
            assert len(shown.learners) == 1 + others
        assert requests(client) - before == {
            "evalsha": 5,
            "xrevrange": 1 + 5,
        }  # 5 inside of scripts


@pytest.mark.parametrize("variable", ["right", "another", ""])
def test_a_cure_can_be_typed_as_it_stands(
    own_redis: EmbeddedRedis, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run's name only where DDL_REDIS says where that is."""
    named = variable == "right"
    publish(own_redis.url)
    address = f"{own_redis.url}?run=demo"
    monkeypatch.delenv("DDL_REDIS", raising=False)
    if variable:
        monkeypatch.setenv("DDL_REDIS", own_redis.url if named else "redis://elsewhere/0")
    with redis.Redis.from_url(own_redis.url) as client:
        head = json.loads(client.get(RegistryKeys("demo").head) or "")
        client.set(RegistryKeys("demo").head, json.dumps(head | {"state": "paused"}))
    shown = Source(resolve("demo" if named else address)).read()
    assert shown is not None
    (cure,) = [t.cure for t in shown.troubles if t.name == "run.paused"]
    assert cure == f"`ddl resume {'demo' if named else shlex.quote(address)}`"


def requests(client: redis.Redis) -> Counter[str]:
    """How often the server ran a script, or read events, within scripts and without."""
    stats: dict[str, dict[str, int]] = client.info("commandstats")
    names = ("evalsha", "eval", "xrevrange", "xrange")
    return Counter({n: stats[f"cmdstat_{n}"]["calls"] for n in names if f"cmdstat_{n}" in stats})


def test_once_and_watch_exclude_each_other(published: str) -> None:
    """A usage error, before anything is asked of Redis."""
    shown = status(published, "--once", "--watch", "3")
    assert shown.returncode == 2
    assert "exclude" in shown.stderr


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_plain_terminals_get_no_colours(published: str, variable: tuple[str, str]) -> None:
    """On a terminal with NO_COLOR no colour is set; on a dumb one nothing is redrawn at all."""
    shown, code = on_terminal([*DDL, "status", published, "--once"], dict([variable]))
    assert code == 0
    assert re.search(r"anna +(\x1b\[[0-9;]*m)*training", shown)
    assert not re.search(r"\x1b\[(?:[0-9]+;)*3[0-7]m", shown)


def test_a_live_view_restores_the_terminal_on_ctrl_c(published: str) -> None:
    """The cursor is shown again, the last picture stays, and the exit code is 130."""
    shown, code = on_terminal(
        [*DDL, "status", published, "--interval", "0.1"],
        {"TERM": "xterm"},
        Step("anna"),
        Step("anna", "\x03"),
    )
    assert code == 130
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "Traceback" not in shown


def test_a_closed_pipe_is_no_traceback(published: str) -> None:
    """`ddl status --watch 0 | head -1` ends soon, without a word on stderr."""
    command = f"{' '.join(DDL)} status '{published}' --watch 0 --interval 0.1 --json | head -1"
    shown = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert len(shown.stdout.splitlines()) == 1
    assert shown.stderr == ""


def test_it_survives_a_redis_that_goes_away(own_redis: EmbeddedRedis) -> None:
    """It says so, goes on, and says when it is back."""
    publish(own_redis.url)
    process = subprocess.Popen(
        [*DDL, "status", "demo", "--redis", own_redis.url, "--watch", "0", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "version 15" in line)
        own_redis.stop()
        assert next(line for line in lines if "cannot be reached" in line)
        own_redis.start()
        assert next(line for line in lines if "Redis is back" in line)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stdout is not None
        process.stdout.close()


def test_an_unreachable_redis_is_three(tmp_path: Path) -> None:
    """One sentence with the address and a cure; no traceback, nothing on stdout."""
    shown = status("demo", "--redis", "redis://:secret@127.0.0.1:1/0")
    assert shown.returncode == 3
    assert "127.0.0.1:1" in shown.stderr
    assert "secret" not in shown.stderr
    assert "Traceback" not in shown.stderr
    assert shown.stdout == ""


def test_an_unknown_run_is_two(redis_url: str) -> None:
    """Redis answers, but has no such run."""
    shown = status("nobody", "--redis", redis_url)
    assert shown.returncode == 2
    assert "does not know the run 'nobody'" in shown.stderr


def test_a_run_that_cannot_be_named_is_two() -> None:
    """A settings error, with the rule."""
    assert status("No_Such_Name").returncode == 2
    assert status("demo").returncode == 2  # no Redis is named anywhere


def test_the_store_tells_when_redis_does_not(tmp_path: Path, redis_url: str) -> None:
    """Redis empty: the newest record in the store, exit code 0. Redis away: the same, and 3."""
    store = LocalStore(tmp_path / "store")
    store.put(ObjectKeys("demo").run_record, canonical(run_record()), mode="create")
    address = f"{store.url}/demo"
    alone = status(address)
    assert alone.returncode == 0
    assert "version 0" in alone.stdout
    empty = status(address, "--redis", redis_url)
    assert empty.returncode == 0
    assert "does not know this run" in empty.stdout
    away = status("demo", "--redis", "redis://127.0.0.1:1/0", "--store", store.url)
    assert away.returncode == 3
    assert "cannot be reached" in away.stdout


def test_a_store_without_the_run_is_said(tmp_path: Path) -> None:
    """Neither place knows it, or there is no such place; looking leaves nothing behind."""
    shown = status(f"{tmp_path.as_uri()}/demo")
    assert (shown.returncode, "there is no run 'demo'" in shown.stderr) == (2, True)
    shown = status(f"{(tmp_path / 'store').as_uri()}/demo")
    assert (shown.returncode, "store does not exist" in shown.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_not_started_yet_is_said(tmp_path: Path, redis_url: str) -> None:
    """Right after `ddl init` nothing may listen at the Redis that its file names, or Redis answers and
    neither it nor the store, which is not made yet, knows the run."""
    toml = write_run(tmp_path, redis_url="redis://127.0.0.1:1/0")
    away = status(str(toml))
    assert (away.returncode, "127.0.0.1:1/0 cannot be reached" in away.stderr) == (3, True)
    for _ in ("no store", "a store without it"):
        early = status(str(toml), "--redis", redis_url)
        assert early.returncode == 2
        assert f"the run '{RUN}' is not started yet" in early.stderr
        assert "`ddl coordinator start run.toml`" in early.stderr
        (tmp_path / "store").mkdir(exist_ok=True)


@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_other_locales_get_what_they_can_show(redis_url: str, locale: str) -> None:
    """Nothing of our own but ASCII; letters that the encoding lacks are spelled out, no failure."""
    text = "cleo raised: \u00bbd\u00e9j\u00e0\u00ab \u4e2d"
    publish(redis_url, facts=(fact(5, "learner.left", text),))
    shown = subprocess.run(
        [*DDL, "status", "demo", "--redis", redis_url],
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": locale, "PYTHONIOENCODING": "cp1252"},
    )
    assert shown.returncode == 0
    printed = shown.stdout.decode("cp1252")
    assert text.replace("\u4e2d", "\\u4e2d") in printed
    assert printed.replace(text[:-1], "").isascii()


def test_keys_turn_pages(published: str) -> None:
    """Each page has its key, Enter shows the chosen learner, Esc goes back, and q ends with 0."""
    shown, code = on_terminal(
        [*DDL, "status", published, "--interval", "0.2"],
        {"TERM": "xterm"},
        Step("last hand-in", "3"),
        Step("merge", "4"),
        Step("anna joined from host-a", "?"),
        Step("all about the chosen learner", "\x1b"),
        Step("anna joined from host-a", "1"),
        Step("last hand-in", "\x1b[B\r"),
        Step("incarnation 1", "q"),
    )
    assert code == 0
    assert "Traceback" not in shown
    assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h"), "the terminal is as it was"


def test_sigterm_restores_the_terminal(published: str) -> None:
    """As Ctrl-C does; the exit code is the one that a shell gives."""
    shown, code = on_terminal(
        [*DDL, "status", published, "--interval", "60"],
        {"TERM": "xterm"},
        Step("anna", act=lambda pid: os.kill(pid, signal.SIGTERM)),
    )
    assert code == 128 + signal.SIGTERM
    assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h")
    assert "Traceback" not in shown


def test_learners_are_found_by_typing(published: str) -> None:
    """A slash, a part of a name, Enter; p lets the picture stand still."""
    shown, code = on_terminal(
        [*DDL, "status", published, "--interval", "0.2"],
        {"TERM": "xterm"},
        Step("anna", "/"),
        Step("filter: _", "zz\r"),
        Step("filter 'zz'", "p"),
        Step("STANDS STILL", "q"),
    )
    assert code == 0
    assert "Traceback" not in shown


def test_a_window_that_changes_its_size_is_drawn_anew(published: str) -> None:
    """At once, however long the interval is; and wide windows show more."""
    shown, code = on_terminal(
        [*DDL, "status", published, "--interval", "60"],
        {"TERM": "xterm"},
        Step("anna", size=(50, 200)),
        Step("steps/s", "q"),
    )
    assert code == 0
    assert "Traceback" not in shown


def test_the_live_view_survives_a_redis_that_goes_away(own_redis: EmbeddedRedis) -> None:
    """Keys work meanwhile, what was seen last stays, and it goes on when Redis is back."""
    publish(own_redis.url)

    def come_back(_: int) -> None:
        own_redis.start()
        with closing(RedisCoordinator(own_redis.url, "demo")) as coordinator:
            coordinator.tell([fact(0, "x", "something new")])

    shown, code = on_terminal(
        [*DDL, "status", "demo", "--redis", own_redis.url, "--interval", "0.2"],
        {"TERM": "xterm"},
        Step("anna", act=lambda _: own_redis.stop()),
        Step("cannot be reached", "4"),
        Step("this is what was seen last", act=come_back),
        Step("something new", "q"),
    )
    assert code == 0
    assert "Traceback" not in shown


class Step(NamedTuple):
    """Once `seen` was written since the last step: type, resize (lines, columns), or do something
    to the process of this id."""

    seen: str
    typed: str = ""
    size: tuple[int, int] | None = None
    act: Callable[[int], object] = lambda _: None


def on_terminal(command: list[str], environment: dict[str, str], *steps: Step) -> tuple[str, int]:
    """Run a command on a terminal of 24 lines and 80 columns; all that it wrote, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", **environment})
    termios.tcsetwinsize(terminal, (24, 80))
    written, since = b"", 0
    left = list(steps)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not part:
            break
        written += part
        if left and left[0].seen in written[since:].decode(errors="replace"):
            step, since = left.pop(0), len(written)
            step.act(pid)
            if step.size is not None:
                termios.tcsetwinsize(terminal, step.size)
            os.write(terminal, step.typed.encode())
    os.close(terminal)
    _, ended = os.waitpid(pid, 0)
    text = written.decode(errors="replace")
    assert not left, f"never seen: {left[0].seen!r} in {text[since:]!r}"
    return text, os.waitstatus_to_exitcode(ended)
