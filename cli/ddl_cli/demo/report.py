"""What the demo found: as a record, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ddl.protocol.records import LedgerTotals, Record
from ddl.protocol.wire import SCHEMA
from ddl_cli.demo import books as bookkeeping
from ddl_cli.demo.books import Books
from ddl_cli.demo.stage import Played
from ddl_cli.units import short_number, short_time

IN_WORDS: Final = {"outstanding": "after the last version", "rolled_back": "rolled back"}
"""What people are told in place of a fate's name, of a run that is over."""

CLEARLY_BELOW: Final = 0.1
"""Nats per byte by which the last loss must be below the first, whatever the target."""


class Losses(Record, frozen=True, kw_only=True):
    """Held-out loss of the exported models: version 0 and the last one."""

    first: float
    last: float


class LearnerRow(Record, frozen=True, kw_only=True):
    id: str
    state: str
    steps: int
    tokens: int
    stall_s: float
    busy_s: float


class Report(Record, frozen=True, kw_only=True):
    """The document that `ddl demo --json` ends with.

    `tokens` are weighted by the fragments' shares; `problems` is empty if the demo succeeded.
    `export` is the file of the last version.
    """

    schema: int = SCHEMA
    commits: int
    tokens: LedgerTotals
    loss: Losses
    learners: tuple[LearnerRow, ...]
    killed: tuple[str, ...]
    joined_late: tuple[str, ...]
    seconds: float
    export: str
    problems: tuple[str, ...]


def judge(
    played: Played, books: Books, losses: Losses, *, export: Path, loss_target: float
) -> Report:
    """Put everything together, and say what is not as it must be."""
    problems = [
        *played.problems,
        *_loss_problems(losses, loss_target),
        *bookkeeping.problems(books, played.view, killed=played.killed),
        *(
            f"{name} joined late, and nothing of it was merged"
            for name in played.joined_late
            if books.merged_tokens(name) <= 0
        ),
    ]
    if not played.joined_late:
        problems.append("the run was over before another learner could join late")
    learners = tuple(
        LearnerRow(
            id=row.id,
            state=row.state,
            steps=row.step,
            tokens=row.tokens,
            stall_s=row.stall_s,
            busy_s=row.busy_s,
        )
        for row in played.snapshot.learners
    )
    return Report(
        commits=sum(fragment.merges for fragment in books.state.fragments),
        tokens=bookkeeping.run_totals(books, played.view),
        loss=losses,
        learners=learners,
        killed=played.killed,
        joined_late=played.joined_late,
        seconds=played.seconds,
        export=str(export),
        problems=tuple(problems),
    )


def _loss_problems(losses: Losses, target: float) -> list[str]:
    """`not <` rather than `>=`, so that a loss that is no number is a problem too."""
    found = []
    if not losses.last < target:
        found.append(f"held-out loss {losses.last:.3f} of the last version is not below {target:g}")
    if not losses.last < losses.first - CLEARLY_BELOW:
        found.append(
            f"held-out loss {losses.last:.3f} of the last version is not clearly below "
            f"{losses.first:.3f} of the first"
        )
    return found


def text(report: Report, books: Books, *, then: Iterable[tuple[str, str]] = ()) -> str:
    """The summary for people; `then` are rows on what they may do next."""
    fates = {
        name: tokens
        for name, tokens in msgspec.structs.asdict(report.tokens).items()
        if name not in ("handed_in", "merged") and tokens
    }
    others = "".join(
        f", {short_number(tokens)} {IN_WORDS.get(name, name)}" for name, tokens in fates.items()
    )
    stall_s = sum(row.stall_s for row in report.learners)
    whole_s = sum(row.stall_s + row.busy_s for row in report.learners)
    rows = [
        ("time", short_time(report.seconds)),
        ("versions", f"{report.commits}, every one of them in the log"),
        (
            "held-out loss",
            f"{report.loss.first:.3f} at version 0, {report.loss.last:.3f} at the last",
        ),
        (
            "tokens",
            f"{short_number(report.tokens.handed_in)} handed in, "
            f"{short_number(report.tokens.merged)} merged{others}",
        ),
        ("stall", f"{stall_s / max(whole_s, 1e-9):.1%} of training time was spent in ddl"),
    ]
    for row in report.learners:
        what = ""
        if row.id in report.killed:
            what = ", killed on the way"
        elif row.id in report.joined_late:
            what = ", joined late"
        merged = short_number(books.merged_tokens(row.id))
        rows.append((row.id, f"{row.steps} steps, {merged} tokens of it merged{what}"))
    rows += [("model", report.export), *then]
    lines = [f"  {name:<14} {value}" for name, value in rows]
    return "\n".join([*lines, *_epilogue(report)])


def _epilogue(report: Report) -> Iterator[str]:
    """What the killing has cost, by the ledger."""
    lost = report.tokens.lost
    for row in report.learners:
        if row.id in report.killed:
            yield (
                f"{row.id} was killed after {row.steps} steps, and the others went on; of what was "
                f"handed in, {f'{short_number(lost)} tokens were' if lost else 'nothing was'} lost"
            )
