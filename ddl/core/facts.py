"""What the coordinator tells people: every fact's name, sentence and fields, in one place.

Displays read some of them back (`ddl.core.snapshot`), so names and fields are kept.
"""

from __future__ import annotations

from ddl.core.events import Say
from ddl.core.membership import Member
from ddl.core.rounds import OpenRound
from ddl.core.selection import Verdict
from ddl.protocol.records import Handin, LearnerRecord, LogRecord


def learner_joined(record: LearnerRecord) -> Say:
    return Say(
        "learner.joined",
        f"{record.id} joined from {record.host} ({record.device})",
        {"learner": record.id, "incarnation": record.incarnation},
    )


def learner_changed(member: Member, before: str) -> Say:
    """The fact is called after the new state: `learner.suspect`."""
    sentence = f"{member.id} is {member.state} (was {before})"
    if member.record.error:
        sentence += f": {member.record.error}"
    return Say(f"learner.{member.state}", sentence, {"learner": member.id})


def contribution_settled(handin: Handin, verdict: Verdict) -> Say:
    """The fact is called after the fate: `contribution.refused`. Merges are told by their record."""
    return Say(
        f"contribution.{verdict.fate}",
        f"{handin.id} {verdict.fate}: {verdict.reason}",
        {"learner": handin.learner, "contribution": str(handin.id), "reason": verdict.reason},
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


def record_logged(record: LogRecord) -> list[Say]:
    """Of records that people wait for; receipts were told when they were decided."""
    if record.kind in ("settings", "stop"):
        return [Say(f"run.{record.kind}", f"{record.kind}: {record.why} ({record.who})", {})]
    if record.kind != "step":
        return []
    merged = [r for r in record.receipts if r.fate == "merged"]
    names = ", ".join(sorted({r.learner for r in merged}))
    moves = ", ".join(f"fragment {s.fragment} v{s.version_after}" for s in record.fragments)
    loss = record.health.loss_mean
    return [
        Say(
            "version.published",
            f"version {record.global_version}: {moves} from {names}"
            + (f", loss {loss:.3f}" if loss is not None else ""),
            {
                "seq": record.seq,
                "fragment": record.fragments[0].fragment,
                "learners": [r.learner for r in merged],
                "contributions": [str(r.id) for r in merged],
                "carried": len(record.carried),
            },
        )
    ]
