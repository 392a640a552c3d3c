"""How the key `units` and the script of that name are read (`ddl.protocol.units`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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


def units_done(raw: Sequence[bytes]) -> dict[str, UnitsDone]:
    """What the hash says is finished, by data set; data sets without a plan are left out."""
    plans: dict[str, str] = {}
    finished: dict[str, list[int]] = {}
    repeated: dict[str, dict[str, int]] = {}
    for field, value in fields(raw):
        name, kind, *ticket = field.split("/")
        match kind:
            case "plan":
                plans[name] = value.decode()
            case "read":
                finished.setdefault(name, []).append(int(ticket[0]))
            case "repeated":
                repeated[name] = json.loads(value)
    return {
        name: UnitsDone(
            plan=plan,
            finished=ranges_of(finished.get(name, ())),
            repeated=repeated.get(name, {}),
        )
        for name, plan in plans.items()
    }
