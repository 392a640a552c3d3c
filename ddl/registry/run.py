"""What all sides of the control plane share: one run in one Redis, and how its fields are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from ddl.errors import ProtocolError
from ddl.protocol.keys import RegistryKeys
from ddl.protocol.records import Fact, Round, RunEntry
from ddl.protocol.wire import canonical, parse, parse_all
from ddl.registry.redis import RedisServer

T = TypeVar("T", bound=msgspec.Struct)


class OpenRounds(msgspec.Struct, frozen=True):
    """What the key `rounds` holds."""

    rounds: tuple[Round, ...] = ()


class RedisRun:
    """One run in one Redis.

    Raises: AddressError if `url` cannot be read; ConfigError if `run` cannot name a run.
    """

    def __init__(self, url: str, run: str) -> None:
        self._keys = RegistryKeys(run)
        self._server = RedisServer(url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._server.where!r}, {self._keys.prefix!r})"

    def now(self) -> float:
        """Redis server time in seconds."""
        seconds, microseconds = self._server.call("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def read_entry(self) -> RunEntry | None:
        """The run's entry, or None if Redis does not know the run."""
        raw = self._server.call("HGET", self._keys.run, "entry")
        return optional(raw, RunEntry, what=f"Redis key {self._keys.run}")

    def tell(self, facts: Sequence[Fact]) -> None:
        """Append to the events stream; a run that Redis has lost has none."""
        if facts:
            keys = [self._keys.run, self._keys.events]
            self._server.run("tell", keys, *map(canonical, facts))

    def close(self) -> None:
        """Free connections."""
        self._server.close()


def optional(raw: bytes | None, kind: type[T], *, what: str) -> T | None:
    """Read a record that may be missing (None or empty). Raises: ProtocolError naming `what`."""
    return parse(raw, kind, what=what) if raw else None


def readable(raw: bytes | None, kind: type[T], key: str, broken: list[str]) -> T | None:
    """As `optional`; what cannot be read counts as missing, and a sentence of it goes to `broken`."""
    try:
        return optional(raw, kind, what=f"Redis key {key}")
    except ProtocolError as error:
        broken.append(str(error))
        return None


def open_rounds(raw: bytes | None, key: str) -> tuple[Round, ...]:
    """Read the key `rounds`, which may be missing. Raises: ProtocolError."""
    record = optional(raw, OpenRounds, what=f"Redis key {key}")
    return record.rounds if record else ()


def table(raw: Sequence[bytes], kind: type[T], key: str, broken: list[str]) -> dict[str, T]:
    """Read the hash `key` of records; a sentence for each that cannot be read goes to `broken`.

    One learner of another version must not blind the coordinator to all others.
    """
    names = [text(name) for name in raw[::2]]
    at_once = parse_all(raw[1::2], kind)
    if at_once is not None:
        return dict(zip(names, at_once, strict=True))
    records: dict[str, T] = {}
    for field, value in fields(raw):
        try:
            records[field] = parse(value, kind, what=f"Redis key {key}, field {field}")
        except ProtocolError as error:
            broken.append(str(error))
    return records


def rows(raw: Sequence[bytes], kind: type[T], key: str, broken: list[str]) -> list[T]:
    """Read records in a row; as `table` what cannot be read."""
    at_once = parse_all(raw, kind)
    if at_once is not None:
        return at_once
    each = (readable(row, kind, key, broken) for row in raw)
    return [row for row in each if row is not None]


def instants(raw: Sequence[bytes], key: str, broken: list[str]) -> dict[str, float]:
    """Read the hash `key` of instants, in seconds of Redis time; as `table` what is none."""
    found: dict[str, float] = {}
    for field, value in fields(raw):
        with suppress(ValueError):
            found[field] = float(value)
        if not math.isfinite(found.get(field, math.nan)):
            found.pop(field, None)
            broken.append(f"Redis key {key}, field {field} is no instant: {value[:40]!r}")
    return found


def fields(raw: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Fields of a hash that came as a flat list of names and values."""
    for name, value in zip(raw[::2], raw[1::2], strict=True):
        yield text(name), value


def text(name: bytes) -> str:
    """A name that stands in Redis; one that is not ours may be of any bytes."""
    return name.decode(errors="backslashreplace")
