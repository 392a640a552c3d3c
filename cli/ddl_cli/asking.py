"""Asking a run's coordinator for something, and waiting for its answer."""

from __future__ import annotations

import getpass
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from ddl.errors import DdlError, RefusedError, RunOverError
from ddl_cli.resolve import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddl.protocol.records import Fact, Head, Request

LOOK_S: Final = 0.2
"""Between two looks for the answer."""

FACTS_READ: Final = 200
"""Newest facts that one look brings: more than come between two looks."""

WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the log.")]
FormerWhyOption = Annotated[str, typer.Option("--reason", metavar="TEXT", hidden=True)]
"""What `--why` was called where an order goes to one learner."""

TimeoutOption = Annotated[
    float, typer.Option(metavar="S", min=0, help="Seconds to wait for the answer.")
]


def ask(place: Place, wish: Request, *, timeout_s: float) -> Head:
    """Have the coordinator do something; return the run's head once it is done.

    Args:
        wish: its id, who asks and when are filled in here.
    Raises:
        RefusedError: with the coordinator's reason.
        DdlError: no coordinator is there to ask, or it does not answer in time.
        RegistryError.
    """
    registry = place.reader()
    try:
        view = registry.view(num_facts=0)
        if view.lease is None and view.head is not None and view.head.state == "stopped":
            raise RunOverError(f"nobody can {_words(wish)}: {place.run!r} is over, {view.head.why}")
        if view.entry is not None and view.lease is None:
            raise DdlError(
                f"no coordinator of {place.run!r} is running, so nobody can {_words(wish)}",
                hint="Start one with `ddl coordinator start RUN.toml`",
            )
        wish = msgspec.structs.replace(
            wish, id=secrets.token_hex(8), who=getpass.getuser(), at=view.now
        )
        registry.request(wish)
        deadline = time.monotonic() + timeout_s
        while True:
            view = registry.view(num_facts=FACTS_READ)
            answer = _answer(view.facts, wish.id)
            if answer is not None and view.head is not None:
                break
            if time.monotonic() >= deadline:
                raise DdlError(
                    f"the coordinator of {place.run!r} has not answered within {timeout_s:g} s; "
                    "the wish stands, and is served as soon as it does",
                    hint=f"`ddl status {place.run} --once` shows whether it works",
                )
            time.sleep(LOOK_S)
    finally:
        registry.close()
    refusal = answer.removeprefix("refused: ")
    if refusal != answer:
        raise RefusedError(f"{place.run!r}: {refusal}")
    return view.head


def _answer(facts: Iterable[Fact], id_: str) -> str | None:
    for fact in facts:
        if fact.name == "request.answered" and fact.fields.get("request") == id_:
            return str(fact.fields["answer"])
    return None


def _words(wish: Request) -> str:
    whom = f"learner {wish.learner!r}" if wish.learner else "the run"
    words = {"set": "change a setting of", "rollback": "roll back", "stop": "stop"}
    return f"{words.get(wish.kind, wish.kind)} {whom}"
