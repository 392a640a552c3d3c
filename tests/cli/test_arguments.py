"""KEY=VALUE options, and what people may type for RUN."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddl import config
from ddl.config import Scalar
from ddl.errors import AddressError, ConfigError
from ddl_cli.arguments import key_values, scalar
from ddl_cli.resolve import resolve

REDIS = "redis://127.0.0.1:7000/0"


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    """A value may hold more of them; the last one of a key counts."""
    assert key_values(["a=1", "b = x=y", "a=2"], option="--arg") == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("text", ["width", "=3", " =3"])
def test_a_pair_without_a_key_or_sign_is_refused(text: str) -> None:
    """The option and the text are named."""
    with pytest.raises(ConfigError, match=r"--arg .* is not KEY=VALUE"):
        key_values([text], option="--arg")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ('"3"', "3"),
        ("/data/text.txt", "/data/text.txt"),
        ("2026-11-29", "2026-11-29"),
        ("[1, 2]", "[1, 2]"),
        ("", ""),
    ],
)
def test_values_read_as_in_run_toml(text: str, value: Scalar) -> None:
    """What is no TOML scalar is text."""
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_a_name_needs_a_redis_from_elsewhere() -> None:
    """Flag above environment; without either a reader cannot be made, and the cure is named."""
    place = resolve("demo", environment={"DDL_REDIS": REDIS})
    assert (place.run, place.redis_url, place.store_url) == ("demo", REDIS, None)
    place = resolve("demo", redis="redis://other:1/0", environment={"DDL_REDIS": REDIS})
    assert place.redis_url == "redis://other:1/0"
    with pytest.raises(ConfigError, match="DDL_REDIS"):
        resolve("demo", environment={}).reader()


def test_an_address_stands_above_the_environment() -> None:
    """Whoever types a place means it."""
    place = resolve(f"{REDIS}?run=demo", environment={"DDL_REDIS": "redis://other:1/0"})
    assert (place.run, place.redis_url) == ("demo", REDIS)
    place = resolve("file:///srv/ddl/demo", environment={"DDL_STORE": "file:///other"})
    assert (place.run, place.store_url, place.redis_url) == ("demo", "file:///srv/ddl", None)


def test_a_settings_file_names_everything(tmp_path: Path) -> None:
    """File below environment below flag, as for the coordinator."""
    file = tmp_path / "run.toml"
    file.write_text(f'[run]\nname = "x"\n[redis]\nurl = "{REDIS}"\n[store]\nurl = "file:///a"\n')
    place = resolve(str(file), environment={})
    assert (place.run, place.redis_url, place.store_url) == ("x", REDIS, "file:///a")
    place = resolve(str(file), environment={"DDL_REDIS": "redis://b:1/0"})
    assert place.redis_url == "redis://b:1/0"
    place = resolve(str(file), redis="redis://c:1/0", environment={"DDL_REDIS": "redis://b:1/0"})
    assert place.redis_url == "redis://c:1/0"


def test_a_password_is_never_shown() -> None:
    """Neither in an error nor in a repr."""
    with pytest.raises(AddressError) as raised:
        resolve("demo", redis="http://user:secret@host/0", environment={})
    assert "secret" not in str(raised.value)
    place = resolve("demo", redis="redis://user:secret@host:1/0", environment={})
    assert "secret" not in repr(place)
    assert "secret" not in repr(place.reader())


def test_a_whole_number_may_be_typed_as_people_write_it() -> None:
    """In a change of settings as on the command line; what is none by that is refused."""
    typed = {"stop.tokens": "1.5B", "stop.commits": "40M", "round.quorum": "3"}
    assert config.read_changes(typed) == {
        "stop.tokens": 1_500_000_000,
        "stop.commits": 40_000_000,
        "round.quorum": 3,
    }
    for text in ("2.5", "1.2345k", "M", "40MB"):
        with pytest.raises(ConfigError, match="must be a whole number"):
            config.read_changes({"stop.commits": text})
