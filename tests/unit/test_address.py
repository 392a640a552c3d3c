"""The grammar of RUN: what an address says, and what is said of a wrong one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddl.errors import AddressError
from ddl.protocol.address import (
    RunAddress,
    check_redis_url,
    join_address,
    parse_address,
    safe_url,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("demo", RunAddress(run="demo")),
        (" demo ", RunAddress(run="demo")),
        ("run.toml", RunAddress(toml_path=Path("run.toml"))),
        ("a/b", RunAddress(toml_path=Path("a/b"))),
        ("redis://box/0?run=demo", RunAddress(run="demo", redis_url="redis://box/0")),
        (
            "rediss://me:p%40ss@box:7000/2?ssl_ca_certs=ca.pem&run=demo&protocol=3",
            RunAddress(
                run="demo",
                redis_url="rediss://me:p%40ss@box:7000/2?ssl_ca_certs=ca.pem&protocol=3",
            ),
        ),
        ("redis://[::1]:6379?run=demo", RunAddress(run="demo", redis_url="redis://[::1]:6379")),
        ("unix:///tmp/r.sock?run=demo", RunAddress(run="demo", redis_url="unix:///tmp/r.sock")),
        (
            "unix://me:pw@/tmp/r.sock?db=1&run=demo",
            RunAddress(run="demo", redis_url="unix://me:pw@/tmp/r.sock?db=1"),
        ),
        ("s3://bucket/demo", RunAddress(run="demo", store_url="s3://bucket")),
        ("s3://bucket/a/b/demo/", RunAddress(run="demo", store_url="s3://bucket/a/b")),
        ("file:///var/lib/ddl/demo", RunAddress(run="demo", store_url="file:///var/lib/ddl")),
        ("file:///demo", RunAddress(run="demo", store_url="file:///")),
        ("file:///a%20b/demo", RunAddress(run="demo", store_url="file:///a%20b")),
    ],
)
def test_every_form_is_read(text: str, address: RunAddress) -> None:
    """Each says where the run is; what it does not say is left open."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("Demo", "run name 'Demo' is not usable"),
        ("http://box/demo", "unknown scheme 'http'"),
        ("redis://box/0", "names no run"),
        ("redis://box/0?run=a&run=b", "names 2 runs"),
        ("redis://box/0?run=", "run name '' is not usable"),
        ("redis://box/0?run=../x", "run name '../x' is not usable"),
        ("redis:///0?run=demo", "names no host"),
        ("redis://box/first?run=demo", "the database 'first' is not a number"),
        ("redis://box:port/0?run=demo", "its port is not a number"),
        ("redis://box:99999/0?run=demo", "its port is not a number"),
        ("redis://[::1/0?run=demo", "is not a URL"),
        ("redis://me:a#b@box/0?run=demo", "has a '#'"),
        ("redis://b ox/0?run=demo", "has a blank"),
        ("unix://?run=demo", "names no socket"),
        ("s3://bucket", "names no run"),
        ("s3:///demo", "names no bucket"),
        ("s3://bucket/demo?x=1", "takes no '?'"),
        ("file://host/demo", "has a host, 'host'"),
        ("file:///", "names no run"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(text: str, words: str) -> None:
    """One sentence that names the part; never a traceback of a URL library."""
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert words in str(caught.value)


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters="*"), min_size=4))
def test_no_error_and_no_repr_shows_a_password(password: str) -> None:
    """Even one that was pasted raw and breaks the URL in pieces."""
    secret = f"Xy{password}yX"
    for url in (f"redis://me:{secret}@box/0?run=demo", f"redis://box/0?run=demo&password={secret}"):
        try:
            shown = repr(parse_address(url))
        except AddressError as error:
            shown = f"{error} {error!r}"
        assert "Xy" not in shown


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://box/0", "redis://box/0"),
        ("redis://:pw@box/0", "redis://:***@box/0"),
        ("redis://me:p@w/d@box/0", "redis://me:***@box/0"),
        ("redis://box?ssl_password=a&db=1", "redis://box?ssl_password=***&db=1"),
        ("s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_a_safe_url_hides_passwords_and_nothing_else(url: str, safe: str) -> None:
    """What is left still says which server is meant."""
    assert safe_url(url) == safe


def test_rich_shows_no_password_either() -> None:
    """Pretty printers and tracebacks with locals go through repr."""
    out = io.StringIO()
    Console(file=out).print(parse_address("redis://me:hush@box/0?run=demo"))
    assert "hush" not in out.getvalue()
    assert "redis://me:***@box/0" in out.getvalue()


@pytest.mark.parametrize("url", ["redis://me:p%40ss@box:1/2", "unix:///r.sock?db=1"])
def test_a_join_address_is_read_back(url: str) -> None:
    """What a coordinator prints is what a learner understands."""
    assert parse_address(join_address(url, "demo")) == RunAddress(run="demo", redis_url=url)


def test_another_url_is_not_taken_for_a_redis() -> None:
    """--redis with a store's address is named as such."""
    with pytest.raises(AddressError, match="is not the address of a Redis"):
        check_redis_url("s3://bucket/a")
