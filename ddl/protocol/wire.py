"""Records to and from bytes.

JSON with sorted keys and no white space: one record has one spelling, so its digest can be chained.
Readers accept unknown fields (a newer minor version may add some) and refuse a newer `schema`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from ddl.errors import ProtocolError

T = TypeVar("T", bound=msgspec.Struct)

SCHEMA = 1
"""Number that every stored record carries; raised when an old reader would misread a new record."""


def canonical(value: Any) -> bytes:
    """Canonical JSON of a record: UTF-8, keys sorted, no white space."""
    return msgspec.json.encode(value, order="sorted")


def digest(data: bytes) -> str:
    """SHA-256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes | str, kind: type[T], *, what: str) -> T:
    """Read one record of type `kind`.

    Raises:
        ProtocolError: not JSON, wrong fields, or written with a newer schema; `what` names it.
    """
    try:
        record: T = _decoder(kind).decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{what} cannot be read: {error}") from error
    schema = getattr(record, "schema", SCHEMA)
    if schema > SCHEMA:
        raise ProtocolError(
            f"{what} has schema {schema}; this ddl reads up to {SCHEMA}",
            hint="Install the ddl version that the run uses",
        )
    return record


def parse_all(rows: Sequence[bytes], kind: type[T]) -> list[T] | None:
    """Read many records at once, several times as fast as one by one; None if any of them cannot be
    read, which `parse` then says of the one."""
    try:
        records: list[T] = _rows_decoder(kind).decode(b"[%s]" % b",".join(rows))
    except msgspec.DecodeError:
        return None
    if len(records) != len(rows):  # a row that is several
        return None
    if any(getattr(record, "schema", SCHEMA) > SCHEMA for record in records):
        return None
    return records


@cache
def _rows_decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    rows: Any = list[kind]  # type: ignore[valid-type]  # a type made at run time
    return msgspec.json.Decoder(rows)


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
