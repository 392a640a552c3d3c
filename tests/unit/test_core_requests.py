"""What is said of a request that was answered; what comes of each is shown in lockstep."""

from __future__ import annotations

from typing import Any

import pytest

from ddl.core.membership import Membership
from ddl.core.requests import Entry, Refusal, answer, decide
from ddl.protocol.records import Request
from tests.core_records import genesis


@pytest.mark.parametrize(
    ("changes", "wish"),
    [
        ({"kind": "stop"}, "eve asked to stop the run"),
        ({"kind": "pause"}, "eve asked to pause the run"),
        (
            {"kind": "set", "changes": {"round.quorum": 2, "outer.lr": 0.5}},
            "eve asked to set round.quorum = 2, outer.lr = 0.5",
        ),
        ({"kind": "rollback", "version": 7}, "eve asked to go back to version 7"),
        ({"kind": "drain", "learner": "a"}, "eve asked to have a hand in what it has and leave"),
        ({"kind": "kick", "learner": "a"}, "eve asked to kick a"),
        ({"kind": "allow", "learner": "a"}, "eve asked to let a in again"),
    ],
)
def test_an_answer_names_the_wish_and_whose_it_was(changes: dict[str, Any], wish: str) -> None:
    """So that the event can be read by those who did not ask."""
    answered = answer(Request(id="1", who="eve", **changes), "done")
    assert (answered.request_id, answered.text, answered.wish) == ("1", "done", wish)


def test_more_rounds_at_once_than_fragments_are_refused() -> None:
    """As in files, where `fragments.num` is said; a run knows how many it has in any case."""
    log = genesis()
    num = len(log.fragments)
    assert num == 2

    def asked(in_flight: int) -> object:
        wish = Request(id="1", kind="set", who="eve", changes={"round.in_flight": in_flight})
        return decide(wish, log=log, membership=Membership())

    assert isinstance(asked(num), Entry)
    refused = asked(99)
    assert isinstance(refused, Refusal)
    assert "round.in_flight (99) is more than the run's 2 fragments" in refused.reason
