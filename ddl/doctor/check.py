"""The outcome of one check."""

from __future__ import annotations

from typing import Literal

import msgspec

from ddl.errors import DdlError

Status = Literal["ok", "warn", "fail"]
"""warn: works, but not as well or as safely as it could. fail: a run would not work like this."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, how it is, and what to do about it.

    Attributes:
        name: "part.thing", stable between versions, such as "redis.eviction".
        text: what was seen, with its numbers. Holds no secret.
        cure: what to do, a sentence; empty when there is nothing to do.
    """

    name: str
    status: Status
    text: str
    cure: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name=name, status="ok", text=text)


def warn(name: str, text: str, cure: str) -> Check:
    return Check(name=name, status="warn", text=text, cure=cure)


def fail(name: str, text: str, cure: str) -> Check:
    return Check(name=name, status="fail", text=text, cure=cure)


def failed(name: str, error: DdlError, *, step: str = "") -> Check:
    """The failure that `error` tells of; `step` names what was tried."""
    said = str(error.args[0])
    return fail(name, f"{step}: {said}" if step else said, error.hint)
