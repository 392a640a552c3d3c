"""Addresses of stores: what opens, and what is refused with which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddl.config import StoreSettings
from ddl.errors import AddressError, ConfigError, DdlError
from ddl.store.limits import LimitedStore
from ddl.store.local import LocalStore
from ddl.store.open_url import open_url
from ddl.store.s3 import S3Store


def test_a_directory(tmp_path: Path) -> None:
    """A file URL opens a directory; escapes are undone."""
    store = open_url(f"file://{tmp_path}/two%20words")
    assert isinstance(store, LocalStore)
    store.put("run/x", b"x")
    assert (tmp_path / "two words" / "run" / "x").is_file()
    assert store.url == f"file://{tmp_path}/two%20words"


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b/"])
def test_a_bucket(url: str) -> None:
    """An S3 URL opens without a request, so that opening never waits."""
    settings = StoreSettings(endpoint_url="http://192.0.2.1:9000")
    store = open_url(url, settings=settings, environment={})
    assert isinstance(store, S3Store)
    assert store.url == url.rstrip("/")
    store.close()


def test_caps_wrap_any_store(tmp_path: Path) -> None:
    """With a cap the store is limited, and keeps its address."""
    store = open_url(tmp_path.as_uri(), up_mbit=10)
    assert isinstance(store, LimitedStore)
    assert store.url == tmp_path.as_uri()
    store.close()


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("/var/lib/ddl", r"no scheme\. Write file:///var/lib/ddl"),
        ("relative/dir", r"no scheme\. Write file:///"),
        ("file://relative/dir", "three slashes"),
        ("files:///dir", "Did you mean file://"),
        ("s3a://bucket", "Did you mean s3://"),
        ("gopher://bucket", "Use file:///DIR or s3://BUCKET/PREFIX"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://bucket/x?endpoint=y", r"store\.endpoint_url"),
        ("file:///missing-parent/store", "does not exist"),
        ("s3://[bucket", "cannot be read"),
    ],
)
def test_bad_addresses(url: str, match: str) -> None:
    """What cannot be opened is named, with what to write instead."""
    with pytest.raises(AddressError, match=match):
        open_url(url, environment={})


def test_secrets_in_addresses_are_refused_and_not_repeated() -> None:
    """A secret written into an address does not come out in the message."""
    for url, settings in (
        ("s3://key:hunter2@bucket/x", StoreSettings()),
        ("s3://bucket/x", StoreSettings(endpoint_url="https://key:hunter2@minio.local")),
    ):
        with pytest.raises(DdlError, match="must not hold credentials") as caught:
            open_url(url, settings=settings, environment={})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "match"),
    [
        ("minio.local:9000", "Write https://minio.local:9000"),
        ("ftp://minio.local", "Write https://minio.local"),
        ("https://", "is not a web address"),
        ("http://minio.local:9000/data", "Use http://minio.local:9000, and s3://data"),
        ("https://data.s3.example.com", "Use https://s3.example.com"),
    ],
)
def test_bad_endpoints(endpoint: str, match: str) -> None:
    """Scheme missing, bucket in the path or in the host: each is told apart, with the cure."""
    with pytest.raises(AddressError, match=match):
        open_url("s3://data/x", settings=StoreSettings(endpoint_url=endpoint), environment={})
    with pytest.raises(AddressError, match=match):
        open_url("s3://data/x", environment={"AWS_ENDPOINT_URL_S3": endpoint})


@pytest.mark.parametrize("mbit", [0.0, -1.0, 0.1, float("inf"), float("nan")])
def test_bad_caps(tmp_path: Path, mbit: float) -> None:
    """Caps that would stop everything are refused."""
    with pytest.raises(ConfigError, match="Mbit/s"):
        open_url(tmp_path.as_uri(), down_mbit=mbit)


def test_a_directory_needs_no_boto3(tmp_path: Path) -> None:
    """Opening a directory store does not import the S3 client."""
    code = (
        "import sys; from ddl.store.open_url import open_url; open_url(sys.argv[1]);"
        "sys.exit('boto3' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, tmp_path.as_uri()], check=True, cwd=Path(__file__).parents[2]
    )
