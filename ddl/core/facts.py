"""What the coordinator tells people: every fact's name, sentence and fields, in one place.

Displays read some of them back (`ddl.core.snapshot`), so names and fields are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ddl.core.chain import because
from ddl.core.events import Say
from ddl.core.membership import Member
from ddl.core.rounds import OpenRound
from ddl.core.selection import Verdict
from ddl.protocol.records import (
    Fact,
    Handin,
    HandinId,
    LearnerRecord,
    LogRecord,
    Order,
    RunState,
)


def by_time(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Facts as they came about; they are told in another order by several processes, and by a
    coordinator that finds out later what happened while there was none."""
    return tuple(sorted(facts, key=lambda fact: fact.at))


def identity(fact: Fact) -> tuple[float, str, str]:
    """What two tellings of the same fact have in common: of a learner that something became of it
    then, whatever is known of the time before; of all else, the whole sentence."""
    is_learners = fact.name.startswith("learner.")
    return fact.at, fact.name, str(fact.fields.get("learner")) if is_learners else fact.text


def learner_joined(record: LearnerRecord) -> Say:
    return Say(
        "learner.joined",
        f"{record.id} joined from {record.host} ({record.device})",
        {"learner": record.id, "incarnation": record.incarnation},
        at=record.started_at or None,
    )


def learner_changed(member: Member, before: str) -> Say:
    """The fact is called after the new state: `learner.suspect`."""
    sentence = f"{member.id} left" if member.state == "left" else f"{member.id} is {member.state}"
    if before != "joining":  # where each begins for a coordinator that has just started
        sentence += f" (was {before})"
    if reason := member.record.error or member.record.why:
        sentence += f": {reason}"
    return Say(f"learner.{member.state}", sentence, {"learner": member.id}, at=member.since_at)


def contribution_settled(handin: Handin, verdict: Verdict) -> Say:
    """The fact is called after the fate: `contribution.refused`. Merges are told by their record."""
    return _settled(handin.id, verdict)


def _settled(id_: HandinId, verdict: Verdict) -> Say:
    return Say(
        f"contribution.{verdict.fate}",
        f"{id_} {verdict.fate}: {verdict.reason}",
        {"learner": id_.learner, "contribution": str(id_), "reason": verdict.reason},
    )


def contribution_asked_again(handin: Handin, outcome: str, reason: str) -> Say:
    return Say(
        "contribution.asked_again",
        f"{handin.id} is {outcome} ({reason}); asked to put it again",
        {"learner": handin.learner, "contribution": str(handin.id)},
    )


def round_extended(round_: OpenRound) -> Say:
    return _about_round("round.extended", round_, round_.reason)


def round_failed(round_: OpenRound, reason: str) -> Say:
    return _about_round("round.failed", round_, reason)


def _about_round(name: str, round_: OpenRound, reason: str) -> Say:
    return Say(
        name,
        f"fragment {round_.fragment} v{round_.version_before + 1}: {reason}",
        {"fragment": round_.fragment, "launch": round_.launch},
    )


def order_given(learner: str, order: Order, who: str) -> Say:
    meanings = {
        "kick": "has to leave, and nothing of it is merged any more",
        "drain": "is to hand in what it has and leave",
        "realign": "is to take the run's weights anew",
    }
    sentence = f"{learner} {meanings[order.kind]}"
    sentence += f": {order.reason}" if order.reason else ""
    sentence += f" ({who})" if who else ""
    return Say(f"order.{order.kind}", sentence, {"learner": learner})


def record_logged(record: LogRecord, before: RunState) -> list[Say]:
    """Of records that people wait for; receipts were told when they were decided.

    Args:
        before: the run's state until then.
    """
    said = list(_state_changed(record, before))
    if record.kind == "settings" and record.changes:
        changes = ", ".join(f"{key} = {value}" for key, value in record.changes.items())
        said.append(Say("run.settings", f"{changes}{_because(record)}", {"who": record.who}))
    for learner, reason in record.barred.items():
        if not reason:
            said.append(Say("order.allow", f"{learner} may join again{_because(record)}", {}))
    if record.kind == "rollback":
        text = (
            f"version {record.global_version} is version {record.back_to} again{_because(record)}"
        )
        said.append(Say("run.rolled_back", text, {"seq": record.seq, "back_to": record.back_to}))
    if record.kind == "step":
        said.append(_published(record))
    return said


def told_by(records: Iterable[LogRecord], before: RunState) -> Iterator[Fact]:
    """What a stretch of the log tells, for whoever did not hear it at the time.

    Args:
        before: the run's state until then.
    """
    for record in records:
        for receipt in record.receipts:
            if receipt.fate != "merged":
                verdict = Verdict(receipt.fate, receipt.reason)
                yield _at(record.written_at, _settled(receipt.id, verdict))
        for said in record_logged(record, before):
            yield _at(record.written_at, said)
        before = record.state


def _at(at: float, said: Say) -> Fact:
    return Fact(at=at, name=said.name, text=said.text, fields=said.fields)


def _state_changed(record: LogRecord, before: RunState) -> Iterator[Say]:
    if record.state == before:
        return
    names = {"running": "resumed", "stopped": "stop"}
    name = names.get(record.state, record.state)
    now = "was resumed" if record.state == "running" else f"is {record.state}"
    text = f"the run {now}{_because(record)}"
    yield Say(f"run.{name}", text, {"seq": record.seq})


def _because(record: LogRecord) -> str:
    """Why, and by whom."""
    colon = ":" if record.why else ""
    words = because(record)
    return f"{colon} {words}" if words else ""


def _published(record: LogRecord) -> Say:
    merged = [r for r in record.receipts if r.fate == "merged"]
    names = ", ".join(sorted({r.learner for r in merged}))
    moves = ", ".join(f"fragment {s.fragment} v{s.version_after}" for s in record.fragments)
    loss = record.health.loss_mean
    return Say(
        "version.published",
        f"version {record.global_version}: {moves} from {names}"
        + (f", loss {loss:.3f}" if loss is not None else ""),
        {
            "seq": record.seq,
            "version": record.global_version,
            "loss": loss,
            "cos_prev": record.health.cos_prev,
            "waits": msgspec.to_builtins(record.waits),
            "fragment": record.fragments[0].fragment,
            "learners": [r.learner for r in merged],
            "contributions": [str(r.id) for r in merged],
            "carried": len(record.carried),
        },
    )
