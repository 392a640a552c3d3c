"""A TCP proxy on the loopback that answers late, or changes words in what the server says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer


@contextmanager
def tcp_proxy(
    port: int, *, delay_s: float = 0.0, replace: Mapping[bytes, bytes] | None = None
) -> Iterator[int]:
    """Forward connections to `port` of the loopback; gives the port to connect to.

    Args:
        delay_s: hold back each piece of an answer for so long.
        replace: words in answers -> others of the same length.
    """
    words = dict(replace or {})
    assert all(len(old) == len(new) for old, new in words.items())

    def changed(answer: bytes) -> bytes:
        time.sleep(delay_s)
        for old, new in words.items():
            answer = answer.replace(old, new)
        return answer

    class Link(BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                answers = threading.Thread(target=_pump, args=(server, self.request, changed))
                answers.start()
                _pump(self.request, server, bytes)
                answers.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Link) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()
            thread.join()


def _pump(source: socket.socket, sink: socket.socket, passed: Callable[[bytes], bytes]) -> None:
    """Move bytes until `source` has no more; a side that breaks off ends it too."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(passed(data))
        sink.shutdown(socket.SHUT_WR)
