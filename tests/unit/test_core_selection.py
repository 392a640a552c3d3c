"""What is let in, with what weight, and every sentence of refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl.config import CodecSettings, GateSettings, RoundSettings, Settings
from ddl.core.log import LogState
from ddl.core.selection import (
    Verdict,
    admission,
    choose,
    expiry,
    norm_outliers,
    staleness,
    weight,
)
from ddl.names import counted
from ddl.protocol.records import Amount, HandinId, ObjectRef
from tests.core_records import KEYS, apply, genesis, handin, receipt, step_record


def moved_on(versions: int) -> LogState:
    """A log whose fragment 0 is at `versions`, merged from learner x each time."""
    log = genesis()
    for _ in range(versions):
        apply(log, step_record(log, receipts=(receipt(log, "x"),)))
    return log


@pytest.mark.parametrize(
    ("base", "version", "expected"), [(7, 7, 0), (6, 7, 0), (5, 7, 1), (0, 7, 6)]
)
def test_staleness(base: int, version: int, expected: int) -> None:
    """Work on the present version, or begun one before, is fresh; beyond that each version counts."""
    assert staleness(handin(genesis(), oldest_base=base), version) == expected


@pytest.mark.parametrize(
    ("steps", "tokens", "decay", "base", "expected"),
    [
        (8, 800, 1.0, 7, 80_000.0),  # 800^2 / 8
        (16, 800, 1.0, 7, 40_000.0),  # the same tokens in twice the steps: half the quality
        (1, 100, 1.0, 7, 10_000.0),
        (48, 4_800, 1.0, 7, 480_000.0),  # 2H = 48 steps count
        (96, 9_600, 1.0, 7, 480_000.0),  # and no more: (9600 * 48/96)^2 / 48
        (8, 800, 0.5, 5, 40_000.0),  # staleness 1
        (8, 800, 0.5, 3, 10_000.0),  # staleness 3
        (8, 800, 0.0, 7, 80_000.0),  # 0^0 = 1: fresh work keeps its weight
        (8, 800, 0.0, 5, 0.0),
    ],
)
def test_weight(steps: int, tokens: int, decay: float, base: int, expected: float) -> None:
    """tokens^2 / steps, at most 2H steps, times decay^staleness; H = 24, version 7."""
    settings = RoundSettings(every_steps=24, staleness_decay=decay)
    given = handin(genesis(), steps=steps, tokens=tokens, oldest_base=base)
    assert weight(given, version=7, settings=settings) == pytest.approx(expected)


def test_what_fits_is_let_in() -> None:
    """A hand-in on the newest versions, the next of its account."""
    log = moved_on(2)
    assert admission(handin(log), log=log, keys=KEYS) is None
    assert admission(handin(log, "x"), log=log, keys=KEYS) is None


@pytest.mark.parametrize(
    "changes",
    [{"lineage": "other"}, {"seq": 2}, {"seq": 0}],
)
def test_what_can_have_no_receipt_is_ignored(changes: dict[str, Any]) -> None:
    """Of another run, settled already, or ahead of one that has no receipt yet."""
    log = genesis()
    assert admission(handin(log, **changes), log=log, keys=KEYS) == "ignore"


def test_another_line_was_rolled_back() -> None:
    """Work on a line that the run has left gets its own fate."""
    log = genesis()
    verdict = admission(handin(log, line=1), log=log, keys=KEYS)
    assert verdict == Verdict("rolled_back", "made on line 1, the run is on 0")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"steps": 0}, "0 steps and 800 tokens: both must be from 1 to 2^53"),
        ({"tokens": 0}, "8 steps and 0 tokens: both must be from 1 to 2^53"),
        ({"tokens": 10**400}, "tokens: both must be from 1 to 2^53"),
        (
            {"total": Amount(steps=9, tokens=800)},
            "total of 9 steps and 800 tokens, but the log makes it 8 and 800",
        ),
        ({"codec": "int8-b64-absmax/1"}, "codec 'int8-b64-absmax/1', but the run uses 'fp32'"),
        ({"payload": ObjectRef(key="demo/run.json", bytes=1, sha256="ab")}, "is expected"),
        ({"held": (2,)}, "1 held versions for 2 fragments"),
        ({"held": (9, 0)}, "holds version 9 of fragment 0, which is unknown or long gone"),
        ({"held": (-1, 0)}, "holds version -1 of fragment 0, which is unknown or long gone"),
        ({"oldest_base": 3}, "oldest base 3 is not a version of fragment 0"),
        ({"oldest_base": -1}, "oldest base -1 is not a version of fragment 0"),
        ({"held_digest": "0" * 64}, "not aligned: the weights that the learner holds are not"),
        ({"held": (1, 0)}, "not aligned: the weights that the learner holds are not"),
    ],
)
def test_refusals_say_what_is_wrong(changes: dict[str, Any], reason: str) -> None:
    """Each number or digest that does not fit is named, with what was expected."""
    log = moved_on(2)
    verdict = admission(handin(log, **changes), log=log, keys=KEYS)
    assert isinstance(verdict, Verdict)
    assert verdict.fate == "refused"
    assert reason in verdict.reason


def test_codecs_are_known_by_their_family() -> None:
    """The setting names a family (`int4`), the announcement its exact form (`int4-b64-absmax/1`)."""
    settings = msgspec.structs.replace(Settings(), codec=CodecSettings(up="int4"))
    log = genesis(settings)
    fitting = handin(log, codec="int4-b64-absmax/1")
    assert admission(fitting, log=log, keys=KEYS) is None
    assert isinstance(admission(handin(log, codec="int44/1"), log=log, keys=KEYS), Verdict)


def test_the_key_of_a_payload_is_made_and_never_taken() -> None:
    """An announcement that names another learner's object is refused."""
    log = genesis()
    theirs = handin(log, "b").payload
    verdict = admission(handin(log, payload=theirs), log=log, keys=KEYS)
    assert isinstance(verdict, Verdict)
    assert "payload key" in verdict.reason


def test_work_too_old_expires_on_arrival_and_while_it_waits() -> None:
    """Staleness 5 with `staleness_max` 4; one less is let in."""
    log = moved_on(6)
    old = handin(log, oldest_base=0)
    expected = Verdict("expired", "staleness 5 is above round.staleness_max = 4")
    assert admission(old, log=log, keys=KEYS) == expected
    assert expiry(old, log=log) == expected
    assert admission(handin(log, oldest_base=1), log=log, keys=KEYS) is None
    assert expiry(handin(log, oldest_base=1), log=log) is None


def outliers(norms: dict[str, float], *, history: list[float], merges: int = 9) -> list[str]:
    head = genesis().fragments[0]
    head.norms, head.root_norms, head.merges = history, history, merges
    by_id = {HandinId(name, 1, 0, 1): (norm, 1) for name, norm in norms.items()}
    gate = GateSettings(norm_factor=10.0, calm_rounds=5)
    return [id_.learner for id_ in norm_outliers(by_id, head, gate)]


@pytest.mark.parametrize(
    ("norms", "history", "expected"),
    [
        ({"a": 1.0, "b": 1.2, "c": 50.0}, [1.0], ["c"]),
        ({"a": 1.0, "b": 1.2, "c": 9.0}, [1.0], []),  # below 10 x 1.1
        ({"a": 1.0, "b": 60.0, "c": 50.0}, [1.0], []),  # for b and c the peers' medians are large
        ({"a": 50.0, "b": 55.0, "c": 52.0}, [1.0], []),  # all changed together
        ({"a": 1.0, "b": 50.0}, [8.0], []),  # the fragment's history is the larger
        ({"a": 50.0}, [1.0, 2.0, 3.0], ["a"]),  # alone: against the history's median 2
        ({"a": 15.0}, [1.0, 2.0, 3.0], []),
        ({"a": 1e9}, [], []),  # nothing to compare with
    ],
)
def test_norm_outliers(norms: dict[str, float], history: list[float], expected: list[str]) -> None:
    """Above 10 times the larger of two medians: of the round's others, and of the history."""
    assert outliers(norms, history=history) == expected


@pytest.mark.parametrize(
    ("norm", "steps", "refused"),
    [
        # peers and history: norm 4 in 16 steps, so 1/4 a step, and 1 per root of steps
        (9.9, 1, False),  # 40 times the peers' norm per step, but not 10 times that per root
        (10.1, 1, True),
        (39.0, 16, False),
        (41.0, 16, True),  # of their own length: more than 10 times by both measures
        (4_000.0, 1_600, False),  # 100 per root of steps, but 2.5 per step: all in one direction
        (4_100.0, 1_600, True),
    ],
)
def test_a_movement_is_judged_by_its_number_of_steps(
    norm: float, steps: int, refused: bool
) -> None:
    """A newcomer's first short one and a long one after an outage pass; outliers of any length do not."""
    head = genesis().fragments[0]
    head.norms, head.root_norms, head.merges = [0.25], [1.0], 9
    norms = {HandinId(name, 1, 0, 1): (4.0, 16) for name in "abc"}
    judged = HandinId("new", 1, 0, 1)
    outliers = norm_outliers(norms | {judged: (norm, steps)}, head, GateSettings(norm_factor=10.0))
    assert (judged in outliers) is refused
    assert len(outliers) == refused
    if refused:
        assert outliers[judged].startswith(
            f"norm {norm:.3g} of {counted(steps, 'step')} is more than 10 times"
        )


def test_the_first_rounds_are_calm() -> None:
    """Until `calm_rounds` merges nothing is refused for its norm."""
    assert outliers({"a": 1.0, "b": 1e6}, history=[1.0], merges=4) == []
    assert outliers({"a": 1.0, "b": 1e6}, history=[1.0], merges=5) == ["b"]


def test_a_closing_round_takes_what_is_sound_in_the_order_of_ids() -> None:
    """Chosen ones by id with their weights; an outlier and a weightless one are refused."""
    log = moved_on(6)
    settings = msgspec.structs.replace(
        log.settings, round=RoundSettings(every_steps=24, staleness_decay=0.0)
    )
    ready = [
        (handin(log, "d"), 8.0),
        (handin(log, "c", oldest_base=2), 8.0),
        (handin(log, "b"), 8e6),
        (handin(log, "a", steps=4, tokens=400), 4.0),
    ]
    chosen, refused = choose(ready, head=log.fragments[0], settings=settings)
    assert [(h.learner, w) for h, w in chosen] == [("a", 40_000.0), ("d", 80_000.0)]
    reasons = {h.learner: v.reason for h, v in refused}
    assert reasons["c"] == "staleness 3 and round.staleness_decay leave it no weight"
    assert reasons["b"].startswith("norm 8e+06 of 8 steps is more than 10 times")
