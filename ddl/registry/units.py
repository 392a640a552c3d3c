"""How the key `units` and the script of that name are read (`ddl.protocol.units`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ddl.core.units import ranges_of
from ddl.errors import RefusedError
from ddl.protocol.units import Grant, Repeat, UnitCall, UnitReply, UnitsDone
from ddl.registry.run import fields


def unit_reply(raw: Sequence[Any], call: UnitCall) -> UnitReply | None:
    """What the script answered. Raises: RefusedError if the run's data is cut in another way."""
    match raw[0]:
        case b"unknown":
            return None
        case b"plan":
            raise RefusedError(
                f"the data {call.name!r} is cut as {call.plan} here, and as {raw[1].decode()} in the "
                "run",
                hint="Give every learner the same data, unit_size and seed, or other data another name",
            )
    granted, lost, settled, repeated = raw[1:]
    return UnitReply(
        granted=tuple(Grant(*grant) for grant in granted),
        lost=tuple(lost),
        settled=tuple(settled),
        repeated=tuple(Repeat(ticket, reason.decode()) for ticket, reason in repeated),
    )


def units_done(raw: Sequence[bytes], key: str, broken: list[str]) -> dict[str, UnitsDone]:
    """What the hash `key` says is finished, by data set; data sets without a plan are left out, and
    so is what is none of ours, with a sentence in `broken`.
    """
    plans: dict[str, str] = {}
    finished: dict[str, list[int]] = {}
    repeated: dict[str, dict[str, int]] = {}
    for field, value in fields(raw):
        try:
            match field.split("/"):
                case name, "plan":
                    plans[name] = value.decode()
                case name, "read", ticket:
                    finished.setdefault(name, []).append(int(ticket))
                case name, "repeated":
                    repeated[name] = msgspec.json.decode(value, type=dict[str, int])
        except (ValueError, msgspec.DecodeError):
            broken.append(f"Redis key {key}, field {field} cannot be read: {value[:40]!r}")
    return {
        name: UnitsDone(
            plan=plan,
            finished=ranges_of(finished.get(name, ())),
            repeated=repeated.get(name, {}),
        )
        for name, plan in plans.items()
    }
