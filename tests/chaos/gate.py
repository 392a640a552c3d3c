"""A gate before a TCP server: shut, it drops all links and lets nobody in."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Gate:
    """Forwards connections to `port` of the loopback while it is open; a context manager.

    Attributes:
        port: where to connect to, open or shut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._links: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def shut(self) -> None:
        """Drop what is connected, and everybody who knocks."""
        self._open.clear()
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Let clients in again."""
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._open.is_set():
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._links += [client, server]
                for ways in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=ways, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
