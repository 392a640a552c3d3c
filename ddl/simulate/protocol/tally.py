"""What comes of a simulated run: counted as it goes, summed up at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from ddl.config import Scalar
from ddl.protocol.records import LogRecord, Receipt, Record, Waits
from ddl.protocol.wire import SCHEMA
from ddl.simulate.life import union_s


class Traffic(Record, frozen=True, kw_only=True):
    """Mean bytes per second: of one learner's link, and of the coordinator's."""

    learner_up: float
    learner_down: float
    coordinator_up: float
    coordinator_down: float


class RunCell(Record, frozen=True, kw_only=True):
    """One simulated run; ratios are in percent.

    Attributes:
        settings: those that were swept.
        horizon_s: how long it was.
        goodput: tokens trained, of what all chips could do.
        uptime: of the time, that any learner stepped.
        merged: tokens merged, of what all chips could do.
        rounds: that were closed by a merge; their mean `waits`, and seconds from one to the next.
        fresh: contributions that a round merged and that were handed in for it, on average.
        late: those that it merged and that were handed in for an earlier one, on average.
        alone: rounds with one fresh contribution, or none.
        staleness: of merged contributions, on average.
        fates: contributions by what became of them.
        shares: of the merged tokens, by learner.
        starts: processes of learners that came to step, and their median seconds until they did.
        coordinators: processes of coordinators.
    """

    settings: dict[str, Scalar]
    learners: int
    chips: int
    horizon_s: float
    goodput: float
    uptime: float
    merged: float
    merged_tokens: float
    rounds: int
    round_every_s: float | None
    waits: Waits
    fresh: float
    late: float
    alone: float
    staleness: float
    fates: dict[str, int]
    bytes_per_s: Traffic
    shares: tuple[float, ...]
    starts: int
    start_s: float | None
    coordinators: int


class RunResult(Record, frozen=True, kw_only=True):
    """What `ddl simulate --protocol --json` prints. `seconds`: that the simulation took."""

    schema: int = SCHEMA
    runs: tuple[RunCell, ...]
    seconds: float


class Tally:
    """Told by the processes of one run.

    Attributes:
        tokens: of all steps.
        records: the log.
        starts_s: of each learner's process that came to step, how long that took.
        fresh, late: contributions of each merge.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.records: list[LogRecord] = []
        self.starts_s: list[float] = []
        self.fresh: list[int] = []
        self.late: list[int] = []
        self._spells: list[tuple[float, float]] = []

    def began(self, seconds: float) -> None:
        """A learner steps for the first time, so long after its process was started."""
        self.starts_s.append(seconds)

    def stepped(self, begun: float, ended: float, tokens: int) -> None:
        self.tokens += tokens
        self._spells.append((begun, ended))

    def merged(self, *, fresh: int, late: int) -> None:
        """A round was merged: contributions handed in for it, and for earlier ones."""
        self.fresh.append(fresh)
        self.late.append(late)

    def recorded(self, record: LogRecord) -> None:
        self.records.append(record)

    # ---- sums -----------------------------------------------------------------------------------

    @property
    def stepping_s(self) -> float:
        """Seconds in which any learner stepped."""
        return union_s([self._spells])

    @property
    def steps(self) -> list[LogRecord]:
        """Records of rounds that were merged."""
        return [record for record in self.records if record.kind == "step"]

    @property
    def receipts(self) -> list[Receipt]:
        return [receipt for record in self.records for receipt in record.receipts]

    @property
    def progress(self) -> float:
        """Tokens merged."""
        return self.records[-1].progress if self.records else 0.0

    @property
    def round_every_s(self) -> float | None:
        steps = self.steps
        if len(steps) < 2:
            return None
        return (steps[-1].written_at - steps[0].written_at) / (len(steps) - 1)

    @property
    def waits(self) -> Waits:
        """Means over rounds."""
        names = Waits.__struct_fields__
        return Waits(**{name: mean([getattr(r.waits, name) for r in self.steps]) for name in names})

    @property
    def fates(self) -> dict[str, int]:
        return dict(Counter(receipt.fate for receipt in self.receipts))

    @property
    def start_s(self) -> float | None:
        return median(self.starts_s) if self.starts_s else None

    def shares(self, learners: Sequence[str]) -> tuple[float, ...]:
        """Of the merged tokens, in percent."""
        tokens = Counter[str]()
        for receipt in self.receipts:
            if receipt.fate == "merged":
                tokens[receipt.learner] += receipt.tokens
        return tuple(100 * tokens[name] / max(1, tokens.total()) for name in learners)


def mean(values: Sequence[float]) -> float:
    """0 for none."""
    return fmean(values) if values else 0.0
