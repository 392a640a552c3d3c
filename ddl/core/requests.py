"""What people ask of a run, and what comes of it: a record, an order, or a refusal with its reason.

Deciding changes nothing. What changes the run's state becomes a record, so that it is in the log who
asked, when and why, and a new coordinator knows; the record names its request, so that a request
which its coordinator did not live to remove is not served twice.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal, NamedTuple

from ddl import config
from ddl.core.events import Answer
from ddl.core.log import LogState
from ddl.core.membership import Membership
from ddl.errors import ConfigError
from ddl.names import counted
from ddl.protocol.records import Order, Request

DONE: Final = "done"
"""The answer to a request that was served."""


class Refusal(NamedTuple):
    """It cannot be done."""

    reason: str


class Ordered(NamedTuple):
    """One learner is given an order, and that is all."""

    learner: str
    order: Order


class Entry(NamedTuple):
    """A record is to be written."""

    kind: Literal["settings", "stop"]
    fields: dict[str, Any]


class Return(NamedTuple):
    """The run is to go back to this global version, once it has been found in the store."""

    version: int


Decision = Refusal | Ordered | Entry | Return


class Queue:
    """Requests in the order they came, each once."""

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._seen: set[str] = set()

    def add(self, request: Request) -> None:
        """Take a request, unless it is known."""
        if request.id not in self._seen:
            self._seen.add(request.id)
            self._waiting.append(request)

    def put_back(self, request: Request) -> None:
        """It could not be served, and is the next one again."""
        self._waiting.appendleft(request)

    def next(self) -> Request | None:
        """The next one, taken off."""
        return self._waiting.popleft() if self._waiting else None


def answer(request: Request, text: str) -> Answer:
    """What becomes of a request, with a sentence on what it was."""
    wish = {
        "set": f"set {', '.join(f'{key} = {value}' for key, value in request.changes.items())}",
        "rollback": f"go back to version {request.version}",
        "allow": f"let {request.learner} in again",
        "drain": f"have {request.learner} hand in what it has and leave",
        "kick": f"kick {request.learner}",
    }.get(request.kind, f"{request.kind} the run")
    return Answer(request.id, text, f"{request.who} asked to {wish}")


def decide(request: Request, *, log: LogState, membership: Membership) -> Decision:  # noqa: C901 - one branch a kind
    """What comes of a request, as the run stands."""
    why = request.why
    match request.kind:
        case "stop":
            return Entry("stop", {"why": why or "asked to stop"})
        case "pause" if log.state == "paused":
            return Refusal("the run is paused already")
        case "pause":
            return Entry("settings", {"state": "paused"})
        case "resume" if log.state == "running":
            return Refusal("the run is running already")
        case "resume":
            return Entry("settings", {"state": "running"})
        case "set":
            try:
                after = config.amend(log.settings, request.changes)
            except ConfigError as error:
                return Refusal(str(error))
            in_flight, num = after.round.in_flight, len(log.fragments)
            if "round.in_flight" in request.changes and in_flight > num:
                return Refusal(
                    f"round.in_flight ({in_flight}) is more than the run's {counted(num, 'fragment')}: "
                    f"a fragment has one open round at most. Use round.in_flight = {num}"
                )
            theirs = [key for key in config.CHOSEN if key in request.changes]
            if theirs and after.outer.preset == "auto":
                return Refusal(
                    f'{theirs[0]} is chosen by outer.preset = "auto"; to choose it yourself, '
                    "set outer.preset=fixed along with it"
                )
            return Entry("settings", {"changes": request.changes, "outdone": request.outdone})
        case "rollback":
            problem = no_way_back(request.version, log)
            return Refusal(problem) if problem else Return(request.version)
        case "allow":
            if request.learner not in log.barred:
                return Refusal(f"{request.learner!r} was not kicked")
            return Entry("settings", {"barred": {request.learner: ""}})
    member = membership.members.get(request.learner)
    if member is None:
        known = ", ".join(sorted(membership.members)) or "nobody"
        return Refusal(f"no learner {request.learner!r} is known in the run; known: {known}")
    if request.kind == "kick":
        reason = f"{why or 'no reason given'} (by {request.who})"
        return Entry("settings", {"barred": {member.id: reason}})
    if not member.present:
        has = "has left" if member.state == "left" else f"is {member.state}"
        return Refusal(f"{member.id} {has}")
    order = Order(kind="drain", incarnation=member.record.incarnation, reason=why)
    return Ordered(member.id, order)


def no_way_back(version: int, log: LogState) -> str:
    """Why the run cannot go back to a global version; empty if by the rules of `[keep]` it can.

    What these let go, now or at any time before, may be gone at any moment, so it is refused although
    it may still be there.
    """
    newest = log.global_version
    if not 0 <= version <= newest:
        return f"there is no version {version}: the run's versions are 0 to {newest}"
    if version == newest:
        return f"version {version} is the newest one"
    if version >= log.vitals.healthy_version:
        return ""
    why = log.promises.why_gone(version)
    near = [v for v in log.promises.nearest(version) if v != newest]
    return (
        f"{why}; the nearest that are kept: {' and '.join(map(str, near)) or 'none'}" if why else ""
    )
