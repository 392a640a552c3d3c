"""Everything that crosses a process border, as frozen records.

Three families: the **log** (`RunRecord`, `LogRecord`, `Receipt`: the truth, in the object store),
the **control plane** (`LearnerRecord`, `Handin`, `Head`, `Round`: in Redis, rebuildable), and the
**view** (`RunSnapshot`: what every display draws). Instants (`_at`) are seconds of Redis server time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import msgspec

from ddl.config import Scalar, Settings
from ddl.protocol.units import UnitsDone
from ddl.protocol.wire import SCHEMA, canonical, digest


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all records."""


# ---- the model's layout ---------------------------------------------------------------------

Rule = Literal["rda", "mean", "heaviest", "max", "local"]
"""How a tensor of several contributions becomes one; `local` is neither merged nor adopted."""

TensorKind = Literal["parameter", "buffer"]


class TensorSpec(Record, frozen=True, kw_only=True):
    """One tensor of the model under its canonical name.

    `aliases` are the other names of the same storage (tied weights). `dtype` is a torch name
    without the prefix, such as "float32". A `local` tensor has fragment -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    rule: Rule
    fragment: int
    aliases: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        count = 1
        for side in self.shape:
            count *= side
        return count


class Layout(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How the model is cut into fragments; fixed at genesis."""

    num_fragments: int
    tensors: tuple[TensorSpec, ...]

    @cached_property
    def by_fragment(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """Tensors of each fragment, in the layout's order."""
        rows: list[list[TensorSpec]] = [[] for _ in range(self.num_fragments)]
        for spec in self.tensors:
            if spec.fragment >= 0:
                rows[spec.fragment].append(spec)
        return tuple(tuple(row) for row in rows)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Trained parameters of each fragment, tied ones counted once."""
        return tuple(sum(t.numel for t in row if t.kind == "parameter") for row in self.by_fragment)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Share of each fragment in the trained parameters; they sum to 1."""
        return tuple(size / self.num_parameters for size in self.sizes)

    @cached_property
    def num_parameters(self) -> int:
        """Trained parameters, tied ones counted once."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of names, shapes, dtypes, rules and fragments: equal for equal models."""
        return digest(canonical(self))


# ---- the log --------------------------------------------------------------------------------


class ObjectRef(Record, frozen=True, kw_only=True):
    """An immutable object in the store."""

    key: str
    bytes: int
    sha256: str


class RunRecord(Record, frozen=True, kw_only=True):
    """`run.json`, record 0 of the log: all that is fixed at genesis.

    `fragments[p]` is version 0 of fragment p. `frozen` holds the parameters that are not trained.
    `outdone`: what `run.toml` said of settings that were given by flags instead.
    """

    schema: int = SCHEMA
    ddl_version: str
    name: str
    lineage: str
    created_at: float
    settings: Settings
    layout: Layout
    task_digest: str
    fragments: tuple[ObjectRef, ...]
    frozen: ObjectRef | None = None
    outdone: dict[str, Scalar] = {}


class Removal(Record, frozen=True, kw_only=True):
    """Stands in place of `run.json` while `ddl rm` deletes the run's objects.

    No reader takes it for a run, and the name stays taken until all is gone. `lineage` is empty if
    there was no `run.json` that could be read.
    """

    schema: int = SCHEMA
    removed_run: str
    lineage: str
    removed_at: float
    who: str


Fate = Literal["merged", "refused", "expired", "lost", "rolled_back"]
FATES: tuple[Fate, ...] = ("merged", "refused", "expired", "lost", "rolled_back")


class HandinId(NamedTuple):
    """Names one contribution for ever. `seq` counts from 1 per learner, incarnation and fragment."""

    learner: str
    incarnation: int
    fragment: int
    seq: int

    def __str__(self) -> str:
        return f"{self.learner}/{self.incarnation}/f{self.fragment}/{self.seq}"

    @classmethod
    def parse(cls, text: str) -> HandinId:
        """Undo `str`. Raises: ValueError."""
        learner, incarnation, fragment, seq = text.rsplit("/", 3)
        return cls(learner, int(incarnation), int(fragment.removeprefix("f")), int(seq))


class Receipt(Record, frozen=True, kw_only=True):
    """The fate of one contribution. It counts only once it stands in the log.

    `norm` is the L2 norm of the decoded movement; `weight` is what it was merged with. `version` is
    that of its fragment which it was merged into, 0 if it was not.
    """

    learner: str
    incarnation: int
    fragment: int
    seq: int
    fate: Fate
    reason: str = ""
    weight: float = 0.0
    norm: float | None = None
    version: int = 0
    staleness: int = 0
    steps: int
    tokens: int

    @property
    def id(self) -> HandinId:
        return HandinId(self.learner, self.incarnation, self.fragment, self.seq)


class FragmentStep(Record, frozen=True, kw_only=True):
    """One fragment's move to a new version. `outer` None means momentum zero, master = published."""

    fragment: int
    version_before: int
    version_after: int
    published: ObjectRef
    outer: ObjectRef | None = None
    step: ObjectRef | None = None


class Waits(Record, frozen=True, kw_only=True):
    """Where a round's time went, in seconds."""

    quorum_s: float = 0.0
    grace_s: float = 0.0
    fetch_s: float = 0.0
    merge_s: float = 0.0
    publish_s: float = 0.0


class Health(Record, frozen=True, kw_only=True):
    """Signs of a good or bad outer step. None: not known for this step.

    `cos_peers`: mean cosine between contributions and their merge. `cos_prev`: cosine between the
    outer gradient and the momentum before it, the decaying sum of earlier ones. `step_norm`: L2 norm
    of the step. `loss_mean`: mean of the learners' training losses, weighted like contributions;
    `loss_least`: the least of them.
    """

    cos_peers: float | None = None
    cos_prev: float | None = None
    step_norm: float | None = None
    loss_mean: float | None = None
    loss_least: float | None = None


class Amount(Record, frozen=True, kw_only=True):
    """Work, counted in applied steps and in tokens."""

    steps: int = 0
    tokens: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(steps=self.steps + other.steps, tokens=self.tokens + other.tokens)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(steps=self.steps - other.steps, tokens=self.tokens - other.tokens)


class Work(Record, frozen=True, kw_only=True):
    """An `Amount` summed over fragments, each weighted by its share of the parameters."""

    steps: float = 0.0
    tokens: float = 0.0


class LedgerRow(Record, frozen=True, kw_only=True):
    """What became of the work handed in for one fragment, summed over the run."""

    merged: Amount = Amount()
    refused: Amount = Amount()
    expired: Amount = Amount()
    lost: Amount = Amount()
    rolled_back: Amount = Amount()

    def add(self, fate: Fate, amount: Amount) -> LedgerRow:
        return msgspec.structs.replace(self, **{fate: getattr(self, fate) + amount})

    @property
    def settled(self) -> Amount:
        return self.merged + self.refused + self.expired + self.lost + self.rolled_back


RecordKind = Literal["step", "receipts", "rollback", "settings", "stop"]

RunState = Literal["running", "held", "paused", "stopped"]
"""Only a running run merges. `held`: the model went bad; learners train on, and wait for a person.
`paused`: a person asked for it; learners stand still."""


class LogRecord(Record, frozen=True, kw_only=True):
    """`commits/{seq}`: one entry of the log. What a kind does not use stays empty.

    `prev_digest` is the SHA-256 of the record before (of run.json for seq 1): the log is a chain.
    `carried` names contributions that this round left for the next. `units`: by data set, readings
    of units that were finished since the record before. `ledger`, `progress` and `state`
    are those **after** this record. `launch` is the launch number of the round that a `step` closed.
    `back_to` is the global version whose model a `rollback` takes up again. `barred` names learners
    that were kicked, with the reason; an empty reason lets one in again. `request` is the id of the
    request that this record answers. `why` of a `step` is why its round closed, and who came last;
    of other kinds it is the reason that `who` gave. `outdone` is as in `RunRecord`, of the settings of a start.
    """

    schema: int = SCHEMA
    ddl_version: str
    kind: RecordKind
    lineage: str
    seq: int
    global_version: int
    line: int
    epoch: int
    holder: str
    prev_digest: str
    written_at: float
    launch: int = 0
    fragments: tuple[FragmentStep, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    carried: tuple[str, ...] = ()
    units: dict[str, UnitsDone] = {}
    waits: Waits = Waits()
    health: Health = Health()
    ledger: tuple[LedgerRow, ...] = ()
    progress: float = 0.0
    kernel: str = ""
    state: RunState = "running"
    back_to: int | None = None
    barred: dict[str, str] = {}
    changes: dict[str, Scalar] = {}
    outdone: dict[str, Scalar] = {}
    who: str = ""
    why: str = ""
    request: str = ""


# ---- the control plane ----------------------------------------------------------------------


class RunEntry(Record, frozen=True, kw_only=True):
    """Redis `run`: what a learner needs to join by one address. Holds no credentials."""

    schema: int = SCHEMA
    run: RunRecord
    store_url: str
    boot: str
    settings: Settings
    """The settings in force now; `run.settings` are those of genesis."""


class Lease(Record, frozen=True, kw_only=True):
    """The right to coordinate.

    `store_s`: how long the holder's newest small write to the store took, in seconds; for people.
    """

    holder: str
    epoch: int
    host: str = ""
    pid: int = 0
    taken_at: float = 0.0
    store_s: float | None = None


class Head(Record, frozen=True, kw_only=True):
    """The newest log record in short; `digest` is that record's digest."""

    seq: int
    global_version: int
    line: int
    epoch: int
    digest: str
    progress: float
    lineage: str
    state: RunState = "running"
    why: str = ""
    """Why it is in this state, and who brought it there."""
    state_at: float = 0.0
    """Since when."""
    ledger: tuple[LedgerRow, ...] = ()
    health: Health = Health()
    committed_at: float = 0.0
    """When the newest version was committed, or the run created: other records do not count."""
    shares: dict[str, float] = {}
    """Each learner's share of the tokens merged lately; they sum to 1."""
    units: dict[str, UnitsDone] = {}
    """By data set, all that is finished."""


class FragmentState(Record, frozen=True, kw_only=True):
    """The newest version of one fragment and where it lies. `seq` is that of its record."""

    fragment: int
    version: int
    line: int
    seq: int = 0
    published: ObjectRef
    step: ObjectRef | None = None


class Round(Record, frozen=True, kw_only=True):
    """An open attempt to make the next version of one fragment. Its opening is the pull.

    `share` is each learner's part of a global batch: 1 / the learners that are in, 0 if there is none.
    """

    fragment: int
    version_before: int
    launch: int
    line: int
    opened_at: float
    deadline_at: float
    quorum: int = 1
    grace_until: float | None = None
    arrived: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    reason: str = ""
    failed: bool = False
    """Whether its merge has failed, and is tried again; `reason` says why."""
    extended: bool = False
    """Whether it waits on past its first deadline, without a slot."""
    share: float = 0.0


class Handin(Record, frozen=True, kw_only=True):
    """A learner's announcement of one contribution.

    `oldest_base` is the oldest version of the fragment that a step in it was taken on.
    `held[p]` is the version of fragment p that the learner had adopted at the snapshot, and
    `held_digest` covers the hashes it computed itself over those bytes (`held_digest()` below).
    `total` counts all work this incarnation ever handed in for the fragment, this included.
    """

    schema: int = SCHEMA
    learner: str
    incarnation: int
    fragment: int
    seq: int
    lineage: str
    line: int
    launch: int
    oldest_base: int
    held: tuple[int, ...]
    held_digest: str
    steps: int
    tokens: int
    total: Amount
    codec: str
    payload: ObjectRef
    loss: float | None = None
    step_s: float | None = None

    @property
    def id(self) -> HandinId:
        return HandinId(self.learner, self.incarnation, self.fragment, self.seq)

    @property
    def header(self) -> bytes:
        """The announcement as the payload's own metadata repeats it: without what names the
        payload, which cannot be known inside of it."""
        return canonical(msgspec.structs.replace(self, payload=NO_PAYLOAD))


NO_PAYLOAD = ObjectRef(key="", bytes=0, sha256="")
"""Stands in an announcement that is part of its own payload."""


def held_digest(hashes: Mapping[int, str]) -> str:
    """Digest over the SHA-256 of every fragment's adopted bytes, by fragment number."""
    return digest(",".join([hashes[p] for p in sorted(hashes)]).encode())


class Upload(Record, frozen=True, kw_only=True):
    """An upload under way."""

    bytes: int
    done_bytes: int
    bytes_per_s: float


LearnerState = Literal[
    "joining", "training", "stalled", "suspect", "gone", "draining", "paused", "aside", "left"
]


class LearnerRecord(Record, frozen=True, kw_only=True):
    """What a learner says of itself with each beat.

    `step` and `tokens` are cumulative for this incarnation, of applied steps only. `step_s` is the
    time of an applied step, None until known. `held[p]` is the version of fragment p it has adopted,
    -1 before the first. `stall_s` is training-thread time spent inside ddl, `busy_s` outside of it,
    `paused_s` while the run was paused, which is part of neither.
    `handed_in + discarded + in_u` is all that was trained. `realigns` counts how often this
    incarnation took over the run's whole model, the first time included.
    `idle_s` is the time since the last applied step, or since training began.
    """

    schema: int = SCHEMA
    id: str
    incarnation: int
    lineage: str
    host: str = ""
    pid: int = 0
    device: str = ""
    state: Literal["joining", "training", "draining", "paused", "left"] = "joining"
    started_at: float = 0.0
    step: int = 0
    step_s: float | None = None
    tokens: int = 0
    loss: float | None = None
    lr: float | None = None
    held: tuple[int, ...] = ()
    line: int = 0
    realigns: int = 0
    handed_in: Work = Work()
    discarded: Work = Work()
    in_u: Work = Work()
    stall_s: float = 0.0
    busy_s: float = 0.0
    paused_s: float = 0.0
    idle_s: float = 0.0
    rss_bytes: int = 0
    upload: Upload | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    store_down_s: float = 0.0
    error: str = ""
    why: str = ""
    """What made it leave, where nothing has failed."""


KICKED: Final = "kicked"
"""How every reason begins that comes of a kick."""


class Order(Record, frozen=True, kw_only=True):
    """The coordinator's word to one learner."""

    kind: Literal["drain", "kick", "realign"]
    incarnation: int
    reason: str = ""


RequestKind = Literal["stop", "pause", "resume", "set", "drain", "kick", "allow", "rollback"]


class Request(Record, frozen=True, kw_only=True):
    """A person's wish to the coordinator. What changes the run's state does so as a record in the
    log; `drain` is an order to one learner. `allow` undoes a `kick`."""

    id: str
    kind: RequestKind
    who: str
    why: str = ""
    at: float = 0.0
    learner: str = ""
    version: int = 0
    changes: dict[str, Scalar] = {}
    outdone: dict[str, Scalar] = {}


class BeatReply(Record, frozen=True, kw_only=True):
    """All that a learner gets back for one beat.

    `incarnation` is the newest one of this learner's id: higher than ours means we are fenced.
    `registered` is False when Redis does not know us (flushed, or never joined). `coordinated`:
    whether anybody holds the lease.
    `again` names hand-ins whose payload is to be put once more, and then announced once more.
    """

    now: float
    boot: str
    registered: bool
    incarnation: int
    coordinated: bool = True
    head: Head | None = None
    rounds: tuple[Round, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    again: tuple[HandinId, ...] = ()
    order: Order | None = None
    settings: Settings | None = None
    """Filled only when they differ in digest from those the learner named."""


class Fact(Record, frozen=True, kw_only=True):
    """Something that happened, for people: a name like `round.closed` and its fields."""

    at: float
    name: str
    text: str
    fields: dict[str, Any] = {}


# ---- the view -------------------------------------------------------------------------------


class RunView(Record, frozen=True, kw_only=True):
    """The run as a whole, with the settings now in force.

    `why` and `state_at` belong to `state`. `versions[p]` is the newest version of fragment p, empty
    where nobody tells. `eta_s` is None unless a coordinator works. `goodput_ratio` is the share of
    the learners' time that went into steps whose work was not thrown away. `committed_at` is that of
    the newest version, before the first `created_at`.
    """

    name: str
    lineage: str
    state: str
    why: str = ""
    state_at: float = 0.0
    global_version: int
    line: int
    progress: float
    stop_tokens: int = 0
    stop_commits: int = 0
    quorum: int = 1
    every_steps: int = 0
    num_parameters: int = 0
    num_fragments: int = 0
    versions: tuple[int, ...] = ()
    created_at: float = 0.0
    committed_at: float = 0.0
    eta_s: float | None = None
    goodput_ratio: float | None = None


class CoordinatorView(Record, frozen=True, kw_only=True):
    """Who coordinates. `lease_left_s` is None if nobody does; `known` is False where that cannot be
    told, as from a store alone."""

    holder: str = ""
    epoch: int = 0
    lease_left_s: float | None = None
    standbys: tuple[str, ...] = ()
    known: bool = True


class ServiceView(Record, frozen=True, kw_only=True):
    """Redis, or the store. `asked` is False if it was not named, so that nothing is known of it."""

    ok: bool
    latency_s: float | None = None
    error: str = ""
    asked: bool = True


class LastHandin(Record, frozen=True, kw_only=True):
    id: str
    fate: str
    reason: str = ""
    at: float | None = None
    staleness: int = 0


class LearnerView(Record, frozen=True, kw_only=True):
    """One learner as the coordinator judges it; see `LearnerRecord` for the fields it reports.

    `behind` counts the versions that it has not adopted, of the fragment where these are most.
    """

    id: str
    incarnation: int
    host: str
    device: str
    state: LearnerState
    since_at: float
    beat_age_s: float
    step: int
    step_s: float | None
    tokens: int
    share_ratio: float
    held: tuple[int, ...]
    behind: int = 0
    loss: float | None = None
    lr: float | None = None
    last: LastHandin | None = None
    upload: Upload | None = None
    up_bytes: int = 0
    down_bytes: int = 0
    started_at: float = 0.0
    discarded_tokens: float = 0.0
    idle_s: float = 0.0
    stall_s: float = 0.0
    busy_s: float = 0.0
    paused_s: float = 0.0
    rss_bytes: int = 0
    store_down_s: float = 0.0
    aside: str = ""
    """Why nothing of it is merged, and until when."""
    error: str = ""


class LedgerTotals(Record, frozen=True, kw_only=True):
    """Tokens of the whole run by fate; fragments weighted by their share of parameters."""

    handed_in: float = 0.0
    merged: float = 0.0
    refused: float = 0.0
    expired: float = 0.0
    lost: float = 0.0
    rolled_back: float = 0.0
    outstanding: float = 0.0
    discarded: float = 0.0


class Trouble(Record, frozen=True, kw_only=True):
    """Something that is wrong now, for as long as it is: what, since when, and what to do.

    `alarm`: the run cannot go on as it is; otherwise it goes on, but worse than it could.
    `learners` names those it is about. `since_at` is None if nobody can tell.
    """

    name: str
    alarm: bool
    what: str
    cure: str = ""
    since_at: float | None = None
    learners: tuple[str, ...] = ()


class RunSnapshot(Record, frozen=True, kw_only=True):
    """The one record that every view draws (design 10). `losses` are (global version, training
    loss) of steps, oldest first, as far back as was looked."""

    schema: int = SCHEMA
    taken_at: float
    run: RunView
    coordinator: CoordinatorView
    services: dict[str, ServiceView]
    learners: tuple[LearnerView, ...]
    rounds: tuple[Round, ...]
    loss: float | None
    ledger: LedgerTotals
    health: Health
    events: tuple[Fact, ...]
    troubles: tuple[Trouble, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
