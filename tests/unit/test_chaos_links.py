"""A link that can be cut: nothing passes, nobody is told, and nothing is lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from ddl.errors import ConfigError
from ddl_cli.chaos.links import Link


class Echo(StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server that says every line back."""
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"redis://user:secret@127.0.0.1:{server.server_address[1]}/3"
        server.shutdown()
        thread.join()


def connect(link: Link) -> socket.socket:
    port = int(link.url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), timeout=5.0)


def test_its_address_is_the_server_s_but_for_the_place(url: str) -> None:
    """User, password and database stay."""
    with Link(url) as link:
        assert link.url.startswith("redis://user:secret@127.0.0.1:")
        assert link.url.endswith("/3")
        assert link.url != url


def test_what_was_held_up_arrives_when_the_link_is_mended(url: str) -> None:
    """Silence on a connection that was there and on a new one; then all lines, in order."""
    with Link(url) as link, connect(link) as before:
        before.sendall(b"one\n")
        assert before.recv(100) == b"one\n"
        link.cut()
        with connect(link) as after:
            for connection in (before, after):
                connection.sendall(b"two\n")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(100)
                connection.settimeout(5.0)
            link.mend()
            assert before.recv(100) == after.recv(100) == b"two\n"


def test_a_server_that_is_not_there_closes_the_connection() -> None:
    """As a refusal would: at once, not after a time-out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Link(f"redis://127.0.0.1:{port}/0") as link, connect(link) as connection:
        assert connection.recv(100) == b""


def test_an_address_that_no_proxy_can_stand_for_is_refused() -> None:
    """TLS, whose certificate is for another host; the password is not told."""
    with pytest.raises(ConfigError, match="cannot be cut") as raised:
        Link("rediss://user:secret@redis.example:6380/0")
    assert "secret" not in str(raised.value)
