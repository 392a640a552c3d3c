"""What a trial came to: its log and its learners' steps, read and put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ddl.coordinator.history import History
from ddl.coordinator.verify import verify_run
from ddl.protocol.keys import ObjectKeys
from ddl.store.base import Store
from ddl_cli.chaos.course import Course, Incident
from ddl_cli.chaos.steps import (
    Span,
    Step,
    count_in,
    living_s,
    lost_steps,
    next_after,
    read_steps,
    seconds_without,
    starting_s,
    starts_s,
)
from ddl_cli.demo.books import Books, accounts, read_books
from ddl_cli.report.story import Story, gather


class Measured(NamedTuple):
    """A trial and what it left.

    Attributes:
        steps: of every learner, all its lives.
        versions_lost: see `count_lost_versions`.
    """

    course: Course
    books: Books
    story: Story
    steps: Mapping[str, Sequence[Step]]
    versions_lost: int

    @property
    def window(self) -> Span:
        return self.course.window

    @property
    def num_steps(self) -> int:
        """Steps that all learners took in the window."""
        return sum(count_in(taken, self.window) for taken in self.steps.values())

    @property
    def living_s(self) -> float:
        """Learner-time of the window: processes that were there and not stopped."""
        alive, halted = self.course.alive, self.course.halted
        return sum(living_s(alive.of(name), halted.of(name), self.window) for name in self.steps)

    @property
    def starting_s(self) -> float:
        """The part of it in which a process had not taken its first step yet."""
        alive = self.course.alive
        return sum(
            starting_s(alive.of(name), taken, self.window) for name, taken in self.steps.items()
        )

    @property
    def starts_s(self) -> list[float]:
        """Seconds that processes which were started in the window took to their first steps."""
        alive = self.course.alive
        return [
            seconds
            for name, taken in self.steps.items()
            for seconds in starts_s(alive.of(name), taken, self.window)
        ]

    @property
    def steps_per_s(self) -> float:
        """Steps of one learner in a second of its time."""
        return self.num_steps / self.living_s if self.living_s else 0.0

    @property
    def seconds_without(self) -> int:
        return seconds_without(self.steps.values(), self.window)

    @property
    def lost_steps(self) -> float:
        """Steps whose work was neither merged nor waits for it."""
        useful = useful_steps(self.course, self.books)
        return sum(lost_steps(taken, useful.get(name, {})) for name, taken in self.steps.items())

    def recovered_at(self, hit: Incident) -> tuple[str, float | None]:
        """What shows that all is well again after a fault, and when it came; None: not any more.

        A process that was away steps again; of one that was cut off, or whose work was damaged, some
        is merged again; of a service: the run makes a version again.
        """
        after = hit.over_at
        if hit.fault.learner is None:
            return "version", self._step_after(after)
        if hit.fault.kind in ("cut", "corrupt"):
            return "merge", self._step_after(after, of=hit.target)
        return "step", next_after(self.steps[hit.target], after)

    def _step_after(self, at: float, of: str = "") -> float | None:
        """When the first version after an instant was made, of work of that learner if one is named."""
        created_at = self.books.run.created_at
        for step in self.story.steps:
            if created_at + step.at_s >= at and (not of or of in step.tokens):
                return created_at + step.at_s
        return None


def measure(folder: Path, store: Store, run: str, course: Course, names: Sequence[str]) -> Measured:
    """Read all that a trial left. Raises: IntegrityError: its log is not whole; StoreError."""
    books = read_books(store, run)
    history = History(store, run)
    entries = [history.read(seq) for seq in range(1, history.newest_seq() + 1)]
    records = [entry.record for entry in entries if entry is not None]
    digests = {entry.record.seq: entry.digest for entry in entries if entry is not None}
    story = gather(books.run, records, payload_bytes=[0] * len(books.state.shares))
    steps = {name: read_steps(folder / "steps" / name) for name in names}
    lost = count_lost_versions(store, run, course.heads, digests)
    return Measured(course, books, story, steps, lost)


def count_lost_versions(
    store: Store, run: str, heads: Mapping[int, str], digests: Mapping[int, str]
) -> int:
    """Records that Redis has shown and that the log does not hold as they were, and objects of
    versions that are missing or damaged.

    Args:
        heads, digests: number of a record -> its digest, as shown by Redis, as it lies in the store.
    """
    shown = sum(seq > 0 and digests.get(seq) != digest for seq, digest in heads.items())
    contributions = ObjectKeys(run).contributions  # one may well be damaged: that was a fault
    found = verify_run(store, run)
    told = sum(not row.where.startswith(contributions) for row in found.differences)
    return shown + told + (found.num_differences - len(found.differences))


def useful_steps(course: Course, books: Books) -> dict[str, dict[int, float]]:
    """Learner -> life -> steps of it that were merged, wait for a round, or were still in the hands of
    a learner that left in good order."""
    args = books.run.settings.task.args
    tokens_per_step = int(args["batch"]) * int(args["context"])
    assert course.view is not None, "the trial has ended"
    tokens: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for receipt in books.receipts:
        if receipt.fate == "merged":
            share = books.state.shares[receipt.fragment]
            tokens[receipt.learner][receipt.incarnation] += share * receipt.tokens
    for (name, life), account in accounts(books, course.view).items():
        tokens[name][life] += account.outstanding
        if account.record is not None and name in course.left:
            tokens[name][life] += account.record.in_u.tokens
    return {
        name: {life: held / tokens_per_step for life, held in lives.items()}
        for name, lives in tokens.items()
    }
