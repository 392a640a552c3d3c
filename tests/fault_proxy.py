"""A proxy in front of a real S3 server that fails when it is told to.

    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.inject(Fault(method="PUT", status=503, code="SlowDown", times=6))
        store = ...  # with proxy.endpoint_url

Requests pass through unchanged, signatures and all. A fault applies to the next `times` requests
that match it; of several that match, the first injected. It also serves as an HTTP forward proxy.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

_CHUNK = 64 * 1024
_HOP = {"connection", "expect", "keep-alive", "proxy-connection", "transfer-encoding"}


@dataclass(kw_only=True)
class Fault:
    """What goes wrong, with which requests, and how often."""

    method: str = ""
    """Only requests with this method; "" for all."""
    contains: str = ""
    """Only requests whose path and query contain this."""
    signed_by: str = ""
    """Only requests signed with this access key."""
    times: float = 1

    status: int = 0
    """Answer this instead of the server, with an S3 error body of `code` (none: `body`)."""
    code: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    forward: bool = False
    """With `status` or `cut`: let the server act first, then lose its reply."""
    cut: bool = False
    """Close the connection instead of answering."""
    cut_after: int | None = None
    """Close the connection after this many bytes of the reply's body."""
    stall_after: int | None = None
    """Say nothing more after this many bytes of the reply's body, without closing."""
    drop_headers: tuple[str, ...] = ()
    """Hide these from the server; works only with one that does not check signatures."""

    def matches(self, request: Request) -> bool:
        return (
            self.times > 0
            and self.method in ("", request.method)
            and self.contains in request.path
            and f"Credential={self.signed_by}"
            in request.headers.get("authorization", "Credential=")
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that came to the proxy; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    through_proxy: bool
    """Whether the client took us for a forward proxy."""


class FaultProxy:
    """The proxy, listening on a free port of the loopback while its block runs."""

    def __init__(
        self,
        upstream: str,
        *,
        tls: ssl.SSLContext | None = None,
        refuse_checksums: bool = False,
    ) -> None:
        """`refuse_checksums`: answer 501 to every request with the newer SDK checksums."""
        self.upstream = urlsplit(upstream).netloc
        self.refuse_checksums = refuse_checksums
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        scheme = "https" if tls else "http"
        self.endpoint_url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def inject(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Forget faults and past requests."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def count(self, method: str, contains: str = "") -> int:
        """How many such requests came."""
        with self._lock:
            return sum(r.method == method and contains in r.path for r in self.requests)

    def take(self, request: Request) -> Fault | None:
        """Note the request and use up one occurrence of the fault that it meets."""
        with self._lock:
            self.requests.append(request)
            fault = next((fault for fault in self._faults if fault.matches(request)), None)
            if fault:
                fault.times -= 1
            return fault

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what these tests are about; it is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        url = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            through_proxy=bool(url.netloc),
        )
        body = self.rfile.read(int(request.headers.get("content-length", 0)))
        fault = proxy.take(request)
        if proxy.refuse_checksums and _has_sdk_checksum(request):
            fault = Fault(status=501, code="NotImplemented")
        if fault is None:
            fault = Fault()
        replaced = bool(fault.status) or fault.cut
        if not replaced or fault.forward:
            with self._forward(request, body, fault.drop_headers) as reply:
                if not replaced:
                    self._pass_on(reply, fault)
        if fault.cut:
            self.close_connection = True
        elif fault.status:
            self._answer(fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names it asks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Requests are kept in `FaultProxy.requests`."""

    @contextmanager
    def _forward(
        self, request: Request, body: bytes, drop: tuple[str, ...]
    ) -> Iterator[http.client.HTTPResponse]:
        dropped = _HOP | {name.lower() for name in drop}
        headers = {name: value for name, value in request.headers.items() if name not in dropped}
        path = urlsplit(request.path)._replace(scheme="", netloc="").geturl()
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=30)
        try:
            connection.request(request.method, path, body or None, headers)
            yield connection.getresponse()
        finally:
            connection.close()

    def _pass_on(self, reply: http.client.HTTPResponse, fault: Fault) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _HOP and name.lower() not in fault.headers:
                self.send_header(name, value)
        data = reply.read() if reply.getheader("content-length") is None else None
        if data is not None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        limit = min(
            (n for n in (fault.cut_after, fault.stall_after) if n is not None), default=None
        )
        sent = 0
        while chunk := (data[sent : sent + _CHUNK] if data is not None else reply.read(_CHUNK)):
            if limit is not None and sent + len(chunk) > limit:
                self.wfile.write(chunk[: limit - sent])
                if fault.stall_after is not None:
                    self.server.proxy.ended.wait(60)
                self.close_connection = True
                return
            self.wfile.write(chunk)
            sent += len(chunk)

    def _answer(self, fault: Fault) -> None:
        body = fault.body
        if fault.code:
            body = (
                f"<?xml version='1.0'?><Error><Code>{fault.code}</Code>"
                "<Message>injected</Message></Error>"
            ).encode()
        self.send_response_only(fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _has_sdk_checksum(request: Request) -> bool:
    return any(
        name.startswith(("x-amz-checksum-", "x-amz-trailer", "x-amz-sdk-checksum"))
        for name in request.headers
    ) or "aws-chunked" in request.headers.get("content-encoding", "")
