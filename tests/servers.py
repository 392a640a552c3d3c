"""Real S3 servers for tests: moto's, and SeaweedFS as a second, independent one.

Both are started once a session, on free ports of the loopback, and killed by process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ddl.config import StoreSettings
from ddl.errors import DdlError
from ddl_cli.demo import bucket
from ddl_cli.demo.bucket import free_port

BUCKET = "ddl-tests"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "tester-secret-0123456789"}
START_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server with an empty bucket `BUCKET`."""

    endpoint_url: str
    pid: int
    bucket: str = BUCKET
    environment: dict[str, str] = field(default_factory=lambda: dict(CREDENTIALS))

    @property
    def settings(self) -> StoreSettings:
        return StoreSettings(endpoint_url=self.endpoint_url, part_bytes=5 * 1024 * 1024)

    def client(self) -> Any:
        """A bare boto3 client, for what the test looks at or compares with."""
        return boto3.session.Session(
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        ).client(
            "s3",
            endpoint_url=self.endpoint_url,
            config=Config(
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=30
            ),
        )


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS: checks signatures and digests, and holds create-once against races."""
    yield from _running(*weed_command(tmp_path_factory.mktemp("weed")))


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server of moto: lenient, and a second opinion on the protocol."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    yield from _running(command, port, tmp_path_factory.mktemp("moto"))


def weed_command(folder: Path, *, port: int | None = None) -> tuple[list[str], int, Path]:
    """Command line, S3 port and working folder of a SeaweedFS that keeps its data in `folder`."""
    try:
        command, port = bucket.weed_command(folder, bucket=BUCKET, port=port)
    except DdlError as error:
        pytest.fail(str(error))
    return command, port, folder


def start(command: list[str], port: int, folder: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    """Start a server and wait until its bucket answers."""
    environment = {**os.environ, **CREDENTIALS, "GOMEMLIMIT": "300MiB"}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    server = S3Server(endpoint_url=f"http://127.0.0.1:{port}", pid=process.pid)
    try:
        _wait_for_bucket(server, process)
    except BaseException:
        stop(process)
        raise
    return process, server


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a server that `start` started (SeaweedFS takes 12 s to end in peace)."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def _running(command: list[str], port: int, folder: Path) -> Iterator[S3Server]:
    process, server = start(command, port, folder)
    try:
        yield server
    finally:
        stop(process)


def _wait_for_bucket(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    client = server.client()
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.create_bucket(Bucket=server.bucket)
        except (BotoCoreError, ClientError) as error:
            if "BucketAlready" in str(error):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{process.args!r} did not come up at {server.endpoint_url}: {error}")
            time.sleep(0.05)
        else:
            break
    client.close()
