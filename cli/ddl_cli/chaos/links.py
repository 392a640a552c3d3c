"""A TCP proxy on the loopback that can be cut: then nothing passes, and nobody is told.

That is how a network fails: no reset, no refusal, only silence. What was sent meanwhile arrives when
the link is mended, as TCP would send it again.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit, urlunsplit

from ddl.errors import ConfigError
from ddl.protocol.address import safe_url

HOST: Final = "127.0.0.1"
PORT: Final = 6379
"""Of a Redis whose address names none."""

POLL_S: Final = 0.05
"""How soon the proxy notices that it is to end."""


class Link:
    """Forwards connections to a server; a context manager.

    Args:
        url: of the server, as redis://HOST:PORT/0.
    Raises: ConfigError: TLS, whose certificate is not for this machine.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "redis" or parts.hostname is None:
            raise ConfigError(
                f"{safe_url(url)} cannot be cut: only redis://HOST:PORT/DB can be reached by a proxy",
                hint="Give such an address with --redis",
            )
        self._whole = threading.Event()
        self._whole.set()
        self._server = _server((parts.hostname, parts.port or PORT), self._whole)
        port = self._server.server_address[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = urlunsplit(parts._replace(netloc=f"{user}{at}{HOST}:{port}"))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="link", daemon=True
        )

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self._whole.clear()

    def mend(self) -> None:
        """Let all pass again, and what has been held up first."""
        self._whole.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.mend()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Proxy(ThreadingTCPServer):
    daemon_threads = True  # a connection whose ends live on must not hold this process up
    request_queue_size = 64


def _server(target: tuple[str, int], whole: threading.Event) -> _Proxy:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            whole.wait()
            try:
                server = socket.create_connection(target)
            except OSError:
                return  # refused there, so closed here: the client sees it at once
            with server:
                answers = threading.Thread(
                    target=_pump, args=(server, self.request, whole), daemon=True
                )
                answers.start()
                _pump(self.request, server, whole)
                answers.join()

    return _Proxy((HOST, 0), Handler)


def _pump(source: socket.socket, sink: socket.socket, whole: threading.Event) -> None:
    """Move bytes until one side has no more, or breaks off; then the other one is told."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            whole.wait()
            sink.sendall(data)
    for side in (source, sink):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
