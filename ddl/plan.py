"""What a run would need, before it is begun: bytes, bandwidth, time, memory, objects and money.

Pure arithmetic on settings and a few numbers of the user's, in the same rules that the run follows.
Times assume the rates below, which any machine of this decade has; measure your own with `just
bench`. Bytes are those of large tensors, headers aside.

The model of bandwidth is that of the paper's Table 13 (arXiv 2604.21428): what a fragment's exchange
takes beyond tau steps would be waited for. A learner of ddl does not wait; what would be a wait there
makes its rounds wider here.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from ddl.config import Settings
from ddl.core import preset
from ddl.core.retire import SWEEP_EVERY
from ddl.protocol.records import Record
from ddl.protocol.sizes import CODEC_BITS
from ddl.protocol.wire import SCHEMA

DAY_S: Final = 86_400.0
UTILISATIONS: Final = (0.50, 0.75, 0.90, 0.95, 0.99)

ENCODE_ELEMENTS_PER_S: Final = 0.5e9
MERGE_ELEMENTS_PER_S: Final = 1.0e9
"""Elements of contributions, two cores."""

BASES_BYTES_MAX: Final = 2 * 1024**3
"""What a coordinator keeps in memory of masters and momenta, however large the model."""


class Prices(Record, frozen=True, kw_only=True):
    """Of the object store, in any currency. Puts, lists and the like cost the same everywhere."""

    per_1000_puts: float = 0.0
    per_1000_gets: float = 0.0
    per_gb_read: float = 0.0
    per_gb_month: float = 0.0


class Situation(Record, frozen=True, kw_only=True):
    """What is planned for.

    `fragments`: elements of the parameters in each. `step_s`: of a learner. Links are those of each
    learner, and of the coordinator, in bytes per second and direction.
    """

    fragments: tuple[int, ...]
    learners: int
    step_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    coordinator_bytes_per_s: float
    settings: Settings
    prices: Prices = Prices()


class Traffic(Record, frozen=True, kw_only=True):
    """Bytes of one round, a fragment of mean size.

    `up` and `down` are of each learner, `fetched` and `published` of the coordinator. `*_per_s` are
    what its link carries on average.
    """

    up_bytes: int
    down_bytes: int
    fetched_bytes: int
    published_bytes: int
    learner_bytes_per_day: int
    coordinator_down_bytes_per_s: float
    coordinator_up_bytes_per_s: float


class HandIn(Record, frozen=True, kw_only=True):
    """From the snapshot of the largest fragment to its adoption, one thing after the other.

    `fits`: within tau steps. `keeps_up`: no link is too slow for the rounds that H asks for (see
    Pace).
    """

    encode_s: float
    up_s: float
    fetch_s: float
    merge_s: float
    publish_s: float
    down_s: float
    total_s: float
    steps: float
    fits: bool
    keeps_up: bool


Link = Literal["learner_up", "learner_down", "coordinator_down", "coordinator_up"]


class SlowLink(Record, frozen=True, kw_only=True):
    """One that takes longer for a round than the time until the next one is due.

    `round_s`: what it takes; for `coordinator_up` with the merge, which a coordinator does not do
    meanwhile. `needed_bytes_per_s`: at which it would keep up; 0 if merging alone takes too long.
    """

    link: Link
    round_s: float
    needed_bytes_per_s: float


class Pace(Record, frozen=True, kw_only=True):
    """How often rounds will come, for what links bear; `Plan.round_every_s` is what H asks for.

    `most_s` with a contribution of every learner in each, and each version taken over by all. Where
    it cannot have all in time a coordinator goes on with those that it has, and a learner passes a
    version over if there is a newer one: rounds may then come as often as `least_s`, with a quorum.
    `every_steps`: the smallest H that all links bear. `slow`: the slowest one first.
    """

    least_s: float
    most_s: float
    every_steps: int
    slow: tuple[SlowLink, ...]


class Utilisation(Record, frozen=True, kw_only=True):
    """Bandwidth of a learner's link for a share of the time to be computed, if it had to wait."""

    share: float
    bytes_per_s: float


class Memory(Record, frozen=True, kw_only=True):
    """Bytes beyond the user's own model and optimizer.

    `learner` has payloads for the rounds in flight, more where links are slower than those rounds.
    `learner_aligning` is the peak while it takes a whole model. `learner_disk` is the spool when
    every fragment has a contribution under way, and what steps are added to.
    """

    learner: int
    learner_aligning: int
    learner_disk: int
    coordinator: int


class Storage(Record, frozen=True, kw_only=True):
    """What the object store sees. `kept_bytes` is steady; `kept_for_good_bytes_per_day` grows."""

    puts_per_day: int
    gets_per_day: int
    read_bytes_per_day: int
    kept_bytes: int
    kept_for_good_bytes_per_day: int
    price_per_day: float


class Plan(Record, frozen=True, kw_only=True):
    """What `ddl plan --json` prints.

    `early_steps`: a run's first ones, in which versions come more often than all else here says.
    """

    schema: int = SCHEMA
    parameters: int
    num_fragments: int
    learners: int
    every_steps: int
    early_steps: int
    overlap_steps: int
    up: str
    down: str
    round_every_s: float
    pace: Pace
    traffic: Traffic
    hand_in: HandIn
    utilisation: tuple[Utilisation, ...]
    memory: Memory
    storage: Storage


def plan(situation: Situation) -> Plan:
    """All figures of a situation."""
    return _Planner(situation).plan()


def bandwidth_for(
    utilisation: float,
    *,
    exchange_bytes: float,
    every_steps: int,
    num_fragments: int,
    overlap_steps: int,
    step_s: float,
) -> float:
    """Bytes per second at which a learner that waits would compute for this share of its time.

    A fragment is exchanged every H/P steps. Of the time that takes, tau steps are hidden; the rest
    is waited for.

    Args:
        utilisation: computing / (computing + waiting), between 0 and 1.
        exchange_bytes: what has to move for one fragment.
    """
    exchanges_per_step = num_fragments / every_steps
    waiting_steps = 1.0 / utilisation - 1.0  # for each step of computing
    hidden_steps = overlap_steps * exchanges_per_step
    return exchange_bytes * exchanges_per_step / ((hidden_steps + waiting_steps) * step_s)


class _LinkWork(NamedTuple):
    """Bytes that a link carries in a round, and what must be done before they can be sent."""

    link: Link
    num_bytes: int
    bytes_per_s: float
    before_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.before_s + self.num_bytes / self.bytes_per_s


class _Planner:
    def __init__(self, situation: Situation) -> None:
        self._given = situation
        self._settings = situation.settings
        self._elements = sum(situation.fragments)
        self._mean = self._elements / len(situation.fragments)
        self._largest = max(situation.fragments)
        steps = self._settings.round.every_steps / len(situation.fragments)
        self._round_every_s = steps * situation.step_s
        self._rounds_per_day = DAY_S / self._round_every_s

    def plan(self) -> Plan:
        settings, given = self._settings, self._given
        return Plan(
            parameters=self._elements,
            num_fragments=len(given.fragments),
            learners=given.learners,
            every_steps=settings.round.every_steps,
            early_steps=preset.early_steps(settings),
            overlap_steps=settings.round.overlap_steps,
            up=settings.codec.up,
            down=settings.codec.down,
            round_every_s=self._round_every_s,
            pace=self._pace(),
            traffic=self._traffic(),
            hand_in=self._hand_in(),
            utilisation=tuple(map(self._utilisation, UTILISATIONS)),
            memory=self._memory(),
            storage=self._storage(),
        )

    # ---- bytes of n elements --------------------------------------------------------------------

    def _up(self, elements: float) -> int:
        return _bytes(elements, CODEC_BITS[self._settings.codec.up])

    def _fragment(self, elements: float) -> int:
        return _bytes(elements, 16 if self._settings.fragments.publish_dtype == "bfloat16" else 32)

    def _step(self, elements: float) -> int:
        return _bytes(elements, CODEC_BITS["int4"]) if self._by_steps else 0

    def _down(self, elements: float) -> int:
        return self._step(elements) or self._fragment(elements)

    def _outer(self, elements: float) -> int:
        """Momentum, and the master where published weights differ from it."""
        rounds = self._by_steps or self._settings.fragments.publish_dtype != "float32"
        return _bytes(elements, 64 if rounds else 32)

    def _version(self, elements: float) -> int:
        """All objects of one version."""
        return self._fragment(elements) + self._outer(elements) + self._step(elements)

    @property
    def _by_steps(self) -> bool:
        return self._settings.codec.down == "int4-step"

    # ---- figures ----------------------------------------------------------------------------------

    def _traffic(self) -> Traffic:
        up, down = self._up(self._mean), self._down(self._mean)
        fetched, published = self._given.learners * up, self._version(self._mean)
        return Traffic(
            up_bytes=up,
            down_bytes=down,
            fetched_bytes=fetched,
            published_bytes=published,
            learner_bytes_per_day=round((up + down) * self._rounds_per_day),
            coordinator_down_bytes_per_s=fetched / self._round_every_s,
            coordinator_up_bytes_per_s=published / self._round_every_s,
        )

    def _pace(self) -> Pace:
        room_s = self._round_every_s
        of_all = self._link_work(self._given.learners)
        of_quorum = self._link_work(min(self._settings.round.quorum, self._given.learners))
        most_s = max(room_s, *(work.seconds for work in of_all))
        unavoidable = (work.seconds for work in of_quorum if work.link != "learner_down")
        slow = [
            SlowLink(
                link=work.link,
                round_s=work.seconds,
                needed_bytes_per_s=work.num_bytes / (room_s - work.before_s)
                if work.before_s < room_s
                else 0.0,
            )
            for work in of_all
            if work.seconds > room_s
        ]
        return Pace(
            least_s=max(room_s, *unavoidable),
            most_s=most_s,
            every_steps=math.ceil(self._settings.round.every_steps * most_s / room_s),
            slow=tuple(sorted(slow, key=lambda link: -link.round_s)),
        )

    def _link_work(self, contributions: int) -> tuple[_LinkWork, ...]:
        """Of each link, for a round of a fragment of mean size with so many contributions."""
        given, up = self._given, self._up(self._mean)
        merge_s = contributions * self._mean / MERGE_ELEMENTS_PER_S
        fetched, published = contributions * up, self._version(self._mean)
        coordinator = given.coordinator_bytes_per_s
        return (
            _LinkWork("learner_up", up, given.up_bytes_per_s),
            _LinkWork("learner_down", self._down(self._mean), given.down_bytes_per_s),
            _LinkWork("coordinator_down", fetched, coordinator),
            _LinkWork("coordinator_up", published, coordinator, before_s=merge_s),
        )

    def _hand_in(self) -> HandIn:
        given, size = self._given, self._largest
        seconds = {
            "encode_s": size / ENCODE_ELEMENTS_PER_S,
            "up_s": self._up(size) / given.up_bytes_per_s,
            "fetch_s": given.learners * self._up(size) / given.coordinator_bytes_per_s,
            "merge_s": given.learners * size / MERGE_ELEMENTS_PER_S,
            "publish_s": self._version(size) / given.coordinator_bytes_per_s,
            "down_s": self._down(size) / given.down_bytes_per_s,
        }
        steps = sum(seconds.values()) / given.step_s
        return HandIn(
            **seconds,
            total_s=sum(seconds.values()),
            steps=steps,
            fits=steps <= self._settings.round.overlap_steps,
            keeps_up=not self._pace().slow,
        )

    def _utilisation(self, share: float) -> Utilisation:
        rounds = self._settings.round
        needed = bandwidth_for(
            share,
            exchange_bytes=self._up(self._mean) + self._down(self._mean),
            every_steps=rounds.every_steps,
            num_fragments=len(self._given.fragments),
            overlap_steps=rounds.overlap_steps,
            step_s=self._given.step_s,
        )
        return Utilisation(share=share, bytes_per_s=needed)

    def _memory(self) -> Memory:
        size, fp32 = self._largest, 4
        anchor = fp32 * self._elements
        in_flight = min(self._settings.round.in_flight, len(self._given.fragments))
        snapshots = 2 * fp32 * size + (in_flight + 1) * self._up(size)
        staged = self._fragment(size) + (fp32 * size if self._by_steps else 0)
        bases = self._fragment(self._elements) if self._by_steps else 0
        copies = 3 if self._by_steps else 2  # master, momentum, and the published weights
        return Memory(
            learner=anchor + snapshots + staged,
            learner_aligning=anchor + fp32 * self._elements,
            learner_disk=self._up(self._elements) + bases,
            coordinator=in_flight * self._given.learners * self._up(size)
            + max(copies * fp32 * size, min(copies * fp32 * self._elements, BASES_BYTES_MAX))
            + 2 * fp32 * size  # the next master and momentum
            + self._version(size),
        )

    def _storage(self) -> Storage:
        given, keep = self._given, self._settings.keep
        num, rounds = given.learners, self._rounds_per_day
        parts = (self._fragment(self._mean), self._outer(self._mean), self._step(self._mean))
        per_round = num * self._puts(self._up(self._mean)) + 1 + 1 / SWEEP_EVERY  # record, listing
        per_round += sum(self._puts(part) for part in parts if part)
        gets_per_round = num * (
            self._gets(self._up(self._mean)) + self._gets(self._down(self._mean))
        )
        traffic = self._traffic()
        read = traffic.fetched_bytes + num * traffic.down_bytes
        versions = len(given.fragments) + keep.versions - 1 + SWEEP_EVERY
        waiting = self._settings.round.in_flight * num * traffic.up_bytes
        kept = versions * self._version(self._mean) + waiting
        for_good = min(1.0, len(given.fragments) / keep.every) if keep.every else 0.0
        growth = for_good * self._version(self._mean)
        if keep.contributions == "all":
            growth += num * traffic.up_bytes
        prices = given.prices
        return Storage(
            puts_per_day=round(rounds * per_round),
            gets_per_day=round(rounds * gets_per_round),
            read_bytes_per_day=round(rounds * read),
            kept_bytes=kept,
            kept_for_good_bytes_per_day=round(rounds * growth),
            price_per_day=rounds * per_round / 1000 * prices.per_1000_puts
            + rounds * gets_per_round / 1000 * prices.per_1000_gets
            + rounds * read / 1e9 * prices.per_gb_read
            + kept / 1e9 * prices.per_gb_month / 30,
        )

    def _puts(self, num_bytes: int) -> int:
        """Requests to store an object: a large one goes in parts, begun and completed by two more."""
        parts = self._gets(num_bytes)
        return parts if parts == 1 else parts + 2

    def _gets(self, num_bytes: int) -> int:
        return max(1, math.ceil(num_bytes / self._settings.store.part_bytes))


def _bytes(elements: float, bits: float) -> int:
    return math.ceil(elements * bits / 8)
