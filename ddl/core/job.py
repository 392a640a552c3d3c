"""The one record that is under way, and all that it came from."""

from __future__ import annotations

from collections.abc import Sequence

from ddl.core import events as e
from ddl.core.inbox import Pending
from ddl.core.rounds import OpenRound
from ddl.protocol.records import LogRecord, Request


class Job:
    """The record under way: what it came from, and once it is ordered, the record itself.

    It comes from a round, a request, or neither. `back_to`: the version looked for, to go back to.
    """

    __slots__ = (
        "back_to",
        "closed_at",
        "inputs",
        "pendings",
        "record",
        "request",
        "round",
        "who",
        "why",
    )

    def __init__(
        self,
        *,
        round_: OpenRound | None = None,
        pendings: Sequence[Pending] = (),
        inputs: Sequence[e.MergeInput] = (),
        closed_at: float = 0.0,
        request: Request | None = None,
        back_to: int | None = None,
        who: str = "",
        why: str = "",
    ) -> None:
        self.round = round_
        self.pendings = tuple(pendings)
        self.inputs = tuple(inputs)
        self.closed_at = closed_at
        self.request = request
        self.back_to = back_to
        self.who = who
        self.why = why
        self.record: LogRecord | None = None
