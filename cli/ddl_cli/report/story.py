"""What a report tells of a run, gathered from its log; no drawing here, and no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from ddl import config
from ddl.config import Scalar, Settings
from ddl.core.chain import because
from ddl.core.facts import told_by
from ddl.core.preset import AUTO
from ddl.protocol.records import FATES, Fact, Fate, Health, LogRecord, RunRecord, RunState, Waits

MarkKind = Literal["joined", "back", "gone", "left", "rollback", "held", "coordinator", "changed"]

_FACTS: Final[dict[str, MarkKind]] = {
    "learner.gone": "gone",
    "learner.left": "left",
    "learner.failed": "gone",
    "run.held": "held",
    "run.rolled_back": "rollback",
    "run.settings": "changed",
    "run.paused": "changed",
    "run.resumed": "changed",
}


class Mark(NamedTuple):
    """Something that happened at a moment of the run.

    Attributes:
        at_s: seconds since the run was created.
        progress: merged tokens by then.
    """

    at_s: float
    progress: float
    kind: MarkKind
    text: str


class Change(NamedTuple):
    """A setting that was changed during the run.

    Attributes:
        at_s: seconds since the run was created.
        version: the newest one then.
        by: who, and why if that was said.
    """

    at_s: float
    version: int
    key: str
    before: Scalar
    after: Scalar
    by: str


class Step(NamedTuple):
    """One published version.

    Attributes:
        tokens: merged by this step, by learner, weighted by the fragment's share of the model.
        up_bytes: of the contributions that it settled; `down_bytes`: that a learner reads to hold it.
    """

    at_s: float
    progress: float
    version: int
    fragment: int
    tokens: dict[str, float]
    carried: int
    health: Health
    waits: Waits
    up_bytes: int
    down_bytes: int


@dataclass(kw_only=True)
class Part:
    """What one learner did, over all its lives.

    Attributes:
        tokens: by fate, weighted by the fragments' shares.
        first_s, last_s: when its first and its last contribution were settled.
    """

    tokens: dict[Fate, float] = field(default_factory=lambda: dict.fromkeys(FATES, 0.0))
    contributions: int = 0
    lives: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(kw_only=True)
class Story:
    """A run, told from its beginning to the newest record."""

    run: RunRecord
    changes: list[Change] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    parts: dict[str, Part] = field(default_factory=dict)
    records: int = 0
    state: RunState = "running"
    why: str = ""
    end_s: float = 0.0
    progress: float = 0.0

    @property
    def tokens(self) -> dict[Fate, float]:
        """All work that was settled, by fate."""
        return {fate: sum(part.tokens[fate] for part in self.parts.values()) for fate in FATES}

    @property
    def settings(self) -> Settings:
        """Those in force at the end; those of the beginning are the run's."""
        return config.amend(self.run.settings, {c.key: c.after for c in self.changes})

    @property
    def merged_share(self) -> float | None:
        """Share of the settled work that was merged, 0 to 1; None before any was settled."""
        tokens = self.tokens
        total = sum(tokens.values())
        return tokens["merged"] / total if total else None

    @property
    def losses(self) -> list[tuple[Step, float]]:
        """Steps whose learners told a loss, with it."""
        return [(s, s.health.loss_mean) for s in self.steps if s.health.loss_mean is not None]


def gather(
    run: RunRecord,
    records: Iterable[LogRecord],
    *,
    payload_bytes: Sequence[int],
    facts: Iterable[Fact] = (),
) -> Story:
    """Tell a run.

    Args:
        records: the whole log after record 0, in order.
        payload_bytes: size of a contribution of each fragment.
        facts: what Redis still knows of events; deaths stand only there.
    """
    story = Story(run=run)
    holder, state = "", story.state
    for record in records:
        at_s = record.written_at - run.created_at
        _settle(story, record, at_s)
        _change(story, record, at_s)
        if record.kind == "step":
            story.steps.append(_step(story, record, at_s, payload_bytes))
        if (
            record.who != AUTO
        ):  # what the run chooses by itself is many small changes, told as a table
            for fact in told_by([record], state):
                _mark(story, fact, at_s, record.progress)
        if holder not in ("", record.holder):
            text = f"{record.holder} coordinates (epoch {record.epoch})"
            story.marks.append(Mark(at_s, record.progress, "coordinator", text))
        if record.state != state:
            story.why = record.why
        holder, state = record.holder, record.state
        story.records, story.state = record.seq, record.state
        story.end_s, story.progress = at_s, record.progress
    _mark_facts(story, facts)
    story.marks.sort()
    return story


def _settle(story: Story, record: LogRecord, at_s: float) -> None:
    shares = story.run.layout.shares
    for receipt in record.receipts:
        part = story.parts.get(receipt.learner)
        if part is None:
            part = story.parts[receipt.learner] = Part(first_s=at_s)
        if receipt.incarnation > part.lives:
            kind: MarkKind = "back" if part.lives else "joined"
            story.marks.append(Mark(at_s, record.progress, kind, receipt.learner))
            part.lives = receipt.incarnation
        part.contributions += 1
        part.last_s = at_s
        part.tokens[receipt.fate] += receipt.tokens * shares[receipt.fragment]
        if receipt.reason:
            part.reasons[receipt.reason] += 1


def _change(story: Story, record: LogRecord, at_s: float) -> None:
    settings, by = story.settings, because(record)
    for key, after in record.changes.items():
        if (before := config.get(settings, key)) != after:
            story.changes.append(Change(at_s, record.global_version, key, before, after, by))


def _step(story: Story, record: LogRecord, at_s: float, payload_bytes: Sequence[int]) -> Step:
    (move,) = record.fragments
    share = story.run.layout.shares[move.fragment]
    tokens: dict[str, float] = defaultdict(float)
    for receipt in record.receipts:
        if receipt.fate == "merged":
            tokens[receipt.learner] += receipt.tokens * share
    return Step(
        at_s=at_s,
        progress=record.progress,
        version=record.global_version,
        fragment=move.fragment,
        tokens=dict(tokens),
        carried=len(record.carried),
        health=record.health,
        waits=record.waits,
        up_bytes=sum(payload_bytes[r.fragment] for r in record.receipts),
        down_bytes=(move.step or move.published).bytes,
    )


def _mark(story: Story, fact: Fact, at_s: float, progress: float) -> None:
    kind = _FACTS.get(fact.name)
    if kind is not None:
        story.marks.append(Mark(at_s, progress, kind, fact.text))


def _mark_facts(story: Story, facts: Iterable[Fact]) -> None:
    """Deaths and departures, which only Redis tells."""
    for fact in facts:
        at_s = fact.at - story.run.created_at
        if fact.name.startswith("learner."):
            before = [step.progress for step in story.steps if step.at_s <= at_s]
            _mark(story, fact, at_s, before[-1] if before else 0.0)
