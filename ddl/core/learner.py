"""The learner's rules: what to hand in, what to adopt, when to pause or stop.

Like the coordinator's machine this is pure: no clock, no I/O, no tensors. The shell tells it what
happened and asks `plan()` at each step boundary. The tensors' side of the same book-keeping is
`ddl.merge.movement`; both follow design 3.1.

A fragment's life here: steps are counted into u; the opening of a round is the pull of a snapshot
(counters go to 0, the contribution is *outstanding*); its receipt frees the fragment for the next
one. Independently, newer versions are staged in the background and adopted at a boundary.

A pull holds until it is answered or the fragment's next round opens, even if its own round closes
before. A learner whose step outlasts the rounds so hands in late, and is carried; it would else hit
an open round by chance only, and some fragments never. But a round that has merged what was carried
to it has its answer: handing in to it again would be late again, and one hiccup would make a learner
late for good.

A learner that is asked to leave takes no further step. It hands in unasked whatever has no
contribution outstanding, waits for the receipts of the rest to hand that in too, and ends when
nothing is left in u, or after `DRAIN_RATIO` of `drain_s`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from ddl.config import Settings
from ddl.core.chain import because
from ddl.protocol.records import (
    KICKED,
    Amount,
    BeatReply,
    FragmentState,
    Handin,
    HandinId,
    Head,
    LogRecord,
    Order,
    Receipt,
    Round,
    Work,
    held_digest,
)

UPLOADS_WAITING_MAX = 2
"""Snapshots that may wait for their upload; more would only queue stale work and memory."""

DRAIN_RATIO: Final = 0.8
"""Part of `drain_s` in which a leaving learner hands in; the rest is for ending."""

UNASKED: Final = 0
"""The launch number of what a leaving learner hands in without an open round; no round has it."""


class Snapshot(NamedTuple):
    """Hand in this fragment: copy its weights now. `handin` lacks payload, codec, loss, step_s."""

    fragment: int
    seq: int
    line: int
    launch: int
    oldest_base: int
    held: tuple[int, ...]
    held_digest: str
    steps: int
    tokens: int
    total: Amount


class Adoption(NamedTuple):
    """Take in the staged version of this fragment. `realign` throws u away in every mode.

    `in_flight`: what was handed in last is not in this version, and must not be lost meanwhile.
    """

    fragment: int
    version: int
    realign: bool
    in_flight: bool = False


class Staged(NamedTuple):
    """A version that lies verified in host memory; `hash` was computed from those very bytes, and
    record `seq` made it."""

    version: int
    line: int
    hash: str
    seq: int = 0


class Outstanding(NamedTuple):
    """A contribution without a receipt."""

    incarnation: int
    seq: int
    amount: Amount


class Stop(NamedTuple):
    """Why this learner must stop stepping."""

    kind: Literal["ended", "drained", "offline", "fenced", "kicked"]
    reason: str


class Plan(NamedTuple):
    """What to do at this step boundary. `pause` is a sentence, empty for no."""

    snapshots: tuple[Snapshot, ...]
    adoptions: tuple[Adoption, ...]
    pause: str
    stop: Stop | None

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.adoptions or self.pause or self.stop)


def _names(pull: Round) -> tuple[int, int]:
    """What tells a pull from all others of its fragment. Not its launch number alone: where Redis falls
    back to an older copy, two coordinators may come to have one epoch, and number alike."""
    return pull.launch, pull.version_before


class Track:
    """One fragment as this learner holds it.

    `in_flight`: what this life handed in last is in its weights, and in no version it has adopted.
    `merged_into` is the version that its receipt names, 0 before. Up to record `missing_at` the log
    is known not to have the outstanding contribution.
    """

    __slots__ = (
        "answered",
        "discarded",
        "encoding",
        "handed_in",
        "hash",
        "in_flight",
        "in_u",
        "merged_into",
        "missing_at",
        "oldest_base",
        "outstanding",
        "seq",
        "staged",
        "uploading",
        "version",
    )

    def __init__(self) -> None:
        self.version = -1
        self.hash = ""
        self.staged: Staged | None = None
        self.in_u = Amount()
        self.oldest_base = -1
        self.handed_in = Amount()
        self.discarded = Amount()
        self.seq = 0
        self.answered: tuple[int, int] | None = None
        self.encoding = False
        self.uploading = False
        self.outstanding: Outstanding | None = None
        self.in_flight = False
        self.merged_into = 0
        self.missing_at = -1

    def may_adopt(self, staged: Staged) -> bool:
        """Whether the anchor stands still, and it is known if the version has what is in flight.

        The table of versions may be newer than the receipts that were heard; the next beat tells. Only
        what a coordinator found in the store before it was announced, when Redis had lost the run, is
        thought to be missing that is not: it weighs double in this learner's weights until the next
        version, and never in what it hands in.
        """
        if self.encoding:
            return False
        is_settled = not self.in_flight or self.outstanding is None
        return is_settled or self.uploading or self.missing_at >= staged.seq

    def lacks(self, staged: Staged) -> bool:
        """Whether a version that may be adopted lacks what was handed in last."""
        return self.in_flight and (
            self.outstanding is not None or self.merged_into > staged.version
        )


class LearnerMachine:
    """The learner's core.

    Args:
        learner, incarnation: who this is.
        shares: each fragment's share of the parameters.
        settings: in force; replaced as the log changes them.
        now: monotonic seconds; so is every later `now`.
    """

    def __init__(
        self,
        *,
        learner: str,
        incarnation: int,
        shares: Sequence[float],
        settings: Settings,
        now: float,
    ) -> None:
        self.learner = learner
        self.incarnation = incarnation
        self.settings = settings
        self.shares = tuple(shares)
        self.tracks = [Track() for _ in shares]
        self.heads: dict[int, FragmentState] = {}
        self.head: Head | None = None
        self.pulls: dict[int, Round] = {}
        self.line = 0
        self.local_steps = 0
        self.trained = Amount()
        self.boot = ""
        self.must_register = False
        self.aligned = False
        self.started = False
        self.realigns = 0
        self.paused = False
        self.share = 1.0
        self._offline_since: float | None = now
        self._order: Order | None = None
        self._fenced_by = 0
        self._kicked = ""
        self._clock = 0.0
        self._clock_line = 0
        self._draining = ""
        self._draining_since: float | None = None

    # ---- told by the shell --------------------------------------------------------------------

    def on_step(self, tokens: int, *, applied: bool = True) -> None:
        """One optimizer step was taken on `tokens`. A skipped one (`applied` False) counts nothing."""
        if not applied:
            return
        self.local_steps += 1
        amount = Amount(steps=1, tokens=tokens)
        self.trained += amount
        for track in self.tracks:
            if track.in_u.steps == 0:
                track.oldest_base = track.version
            track.in_u += amount

    def on_beat(self, reply: BeatReply, asked: Collection[HandinId] | None = None) -> list[Receipt]:
        """The registry answered a beat. Returns receipts of ours that were not known.

        Args:
            asked: the contributions that the beat named; None for all that are outstanding.
        """
        if reply.coordinated:
            self._offline_since = None
        if reply.incarnation > self.incarnation:
            self._fenced_by = reply.incarnation
        self.must_register = not reply.registered or (bool(self.boot) and reply.boot != self.boot)
        if reply.boot:
            self.boot = reply.boot
        if reply.settings is not None:
            self.settings = reply.settings
        if reply.head is not None:
            self._follow(reply.head)
        # whatever is shown now: a coordinator after a loss of Redis may begin with lower launch numbers
        self.pulls.update({round_.fragment: round_ for round_ in reply.rounds})
        self.share = next((r.share for r in reply.rounds if r.share), self.share)
        if reply.order is not None and reply.order != self._order:
            self._obey(reply.order)
        self._order = reply.order
        open_now = {round_.fragment for round_ in reply.rounds}
        taken = self._take_receipts(reply.receipts)
        for receipt in taken:
            pull = self.pulls.get(receipt.fragment)
            # that round's own version: where Redis has lost its rounds, an older receipt may come now
            ended = receipt.fragment not in open_now
            if (
                ended
                and pull
                and receipt.fate == "merged"
                and receipt.version > pull.version_before
            ):
                self.tracks[receipt.fragment].answered = _names(pull)
        if reply.head is not None:
            for incarnation, fragment, seq in self.outstanding:
                if asked is None or HandinId(self.learner, incarnation, fragment, seq) in asked:
                    track = self.tracks[fragment]
                    track.missing_at = max(track.missing_at, reply.head.seq)
        return taken

    def on_silence(self, now: float) -> None:
        """The registry did not answer, or only to say that nobody coordinates the run."""
        if self._offline_since is None:
            self._offline_since = now

    def on_fragments(self, states: Iterable[FragmentState]) -> None:
        """Where the newest version of some fragments lies."""
        for state in states:
            known = self.heads.get(state.fragment)
            if known is None or (state.line, state.version) > (known.line, known.version):
                self.heads[state.fragment] = state

    def on_record(self, record: LogRecord, digest: str) -> list[Receipt]:
        """A log record read from the store: the way to follow the run while Redis is away.

        Returns receipts of ours that were not known.
        """
        self.on_fragments(
            FragmentState(
                fragment=step.fragment,
                version=step.version_after,
                line=record.line,
                seq=record.seq,
                published=step.published,
                step=step.step,
            )
            for step in record.fragments
        )
        for track in self.tracks:
            if track.missing_at == record.seq - 1:
                track.missing_at = record.seq  # unless its receipt is among these
        self._follow(
            Head(
                seq=record.seq,
                global_version=record.global_version,
                line=record.line,
                epoch=record.epoch,
                digest=digest,
                progress=record.progress,
                lineage=record.lineage,
                state=record.state,
                why=because(record),
                shares=self.head.shares if self.head else {},
            )
        )
        return self._take_receipts(r for r in record.receipts if r.learner == self.learner)

    def on_staged(self, fragment: int, staged: Staged) -> None:
        """A version is ready to be adopted; it replaces an older one that was not taken up."""
        self.tracks[fragment].staged = staged

    def on_encoded(self, fragment: int) -> None:
        """The anchor has moved: the fragment may be adopted again."""
        self.tracks[fragment].encoding = False

    def on_spoiled(self, fragment: int) -> None:
        """A snapshot held values that are not finite: nothing was handed in, all is thrown away."""
        track = self.tracks[fragment]
        assert track.outstanding is not None
        amount = track.outstanding.amount
        track.seq -= 1
        track.answered = None  # as if it had never been: the round may still wait for us
        track.handed_in -= amount
        track.discarded += amount
        track.outstanding = None
        track.encoding = track.uploading = track.in_flight = False
        self.aligned = False

    def on_announced(self, fragment: int) -> None:
        """The payload is stored, and its announcement is on its way to Redis."""
        track = self.tracks[fragment]
        if track.uploading and self.head is not None:
            track.missing_at = self.head.seq  # no record can have it so far
        track.uploading = False

    def on_inherited(self, handin: Handin) -> None:
        """A predecessor's spooled contribution is announced again under its old id."""
        self.tracks[handin.fragment].outstanding = Outstanding(
            handin.incarnation, handin.seq, Amount(steps=handin.steps, tokens=handin.tokens)
        )

    def drain(self, why: str = "asked to leave") -> None:
        """Leave as soon as everything trained is handed in. Safe to call in a signal handler."""
        self._draining = self._draining or why

    # ---- asked by the shell -------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """What to do at this step boundary. Changes nothing: `begin` does.

        Only the time that a leaving learner has begins to run with the first plan it asks for.
        """
        if self._draining and self._draining_since is None:
            self._draining_since = now
        snapshots = self._snapshots()
        return Plan(
            snapshots=snapshots,
            adoptions=self._adoptions({s.fragment for s in snapshots}),
            pause=self._pause(now),
            stop=self._stop(now, handing_in=bool(snapshots)),
        )

    def begin(self, plan: Plan) -> None:
        """The shell carries the plan out now, before anything else is told.

        Steps counted so far belong to the contributions of the snapshots; what is thrown away by
        adoptions is booked as discarded.
        """
        for snapshot in plan.snapshots:
            track = self.tracks[snapshot.fragment]
            track.seq = snapshot.seq
            if snapshot.launch != UNASKED:
                track.answered = _names(self.pulls[snapshot.fragment])
            track.handed_in = snapshot.total
            track.in_u = Amount()
            amount = Amount(steps=snapshot.steps, tokens=snapshot.tokens)
            track.outstanding = Outstanding(self.incarnation, snapshot.seq, amount)
            track.encoding = track.uploading = track.in_flight = True
            track.merged_into, track.missing_at = 0, -1
        for adoption in plan.adoptions:
            self._adopt(adoption)
        if plan.adoptions and plan.adoptions[0].realign:
            self.aligned = self.started = True
            self.realigns += 1
        self.paused = bool(plan.pause)

    def _adopt(self, adoption: Adoption) -> None:
        track = self.tracks[adoption.fragment]
        assert track.staged is not None
        assert track.staged.version == adoption.version
        track.version, track.hash = track.staged.version, track.staged.hash
        track.in_flight = adoption.in_flight
        self.line = max(self.line, track.staged.line)
        track.staged = None
        mode = "overwrite" if adoption.realign else self.settings.adopt.mode
        kept = {"carry": 1.0, "blend": self.settings.adopt.alpha, "overwrite": 0.0}[mode]
        steps = int(kept * track.in_u.steps)
        keep = Amount(steps=steps, tokens=int(kept * track.in_u.tokens)) if steps else Amount()
        track.discarded += track.in_u - keep
        track.in_u = keep

    def wanted(self) -> list[FragmentState]:
        """Versions to stage now: newer than what is adopted and staged; the most needed first.

        That is the fragment that is most versions behind, so that over a slow link none waits for ever.
        To re-align takes all fragments, so those without a staged version come before newer ones
        of others: however fast the run publishes, a slow link gathers a whole model.
        """
        wanted = []
        for fragment, state in sorted(self.heads.items()):
            track = self.tracks[fragment]
            newer = (state.line, state.version) > self._have(track)
            if newer or (not self.aligned and track.staged is None):
                wanted.append(state)
        if self.aligned:
            wanted.sort(
                key=lambda state: self._have(self.tracks[state.fragment])[1] - state.version
            )
        else:
            wanted.sort(key=lambda state: self.tracks[state.fragment].staged is not None)
        return wanted

    def takes_step(self, state: FragmentState) -> bool:
        """Whether a wanted version can be had by its step object: the version before it, of the
        same line, is what was staged last. A learner that must re-align trusts nothing it has."""
        line, version = self._have(self.tracks[state.fragment])
        is_next = (state.line, state.version) == (line, version + 1)
        return self.aligned and is_next and state.step is not None

    def _have(self, track: Track) -> tuple[int, int]:
        """Line and version of what was staged last, or else adopted."""
        staged = track.staged
        return (staged.line, staged.version) if staged else (self.line, track.version)

    @property
    def held(self) -> tuple[int, ...]:
        """Adopted version of every fragment, -1 before the first."""
        return tuple([track.version for track in self.tracks])

    @property
    def outstanding(self) -> list[tuple[int, int, int]]:
        """(incarnation, fragment, seq) of every contribution whose receipt is not known."""
        return [
            (t.outstanding.incarnation, p, t.outstanding.seq)
            for p, t in enumerate(self.tracks)
            if t.outstanding is not None
        ]

    @property
    def num_uploading(self) -> int:
        """Snapshots that are not yet in the store."""
        return sum([track.uploading for track in self.tracks])

    @property
    def next_seq(self) -> int:
        """The log record to read next while Redis is away."""
        return (self.head.seq if self.head else 0) + 1

    def progress_tokens(self) -> int:
        """The learner's clock (design 3.4): progress at the newest head, plus an estimate of what
        all learners have trained since. Never falls, except on a new line. With one learner it is
        its own token count."""
        own = sum(
            share
            * (track.in_u.tokens + (track.outstanding.amount.tokens if track.outstanding else 0))
            for share, track in zip(self.shares, self.tracks, strict=True)
        )
        shares = self.head.shares if self.head else {}
        others = [share for name, share in shares.items() if name != self.learner]
        mine = shares.get(self.learner, 0.0)
        # Never more than its equal part: a learner that has missed rounds has a small share lately
        # and much in hand, and a clock that ran ahead could not be put back.
        factor = 1.0 + len(others) if mine <= 0 else min(1.0 / mine, 1.0 + len(others))
        now = (self.head.progress if self.head else 0.0) + own * factor
        if self.line != self._clock_line:
            self._clock_line, self._clock = self.line, 0.0
        self._clock = max(self._clock, now)
        return round(self._clock)

    def progress_fraction(self) -> float:
        """Share of the stop budget that is used up, by the learner's clock; 0 without one."""
        return self._of_budget(self.progress_tokens())

    def merged_fraction(self) -> float:
        """Share of the stop budget that has been merged; 0 without one."""
        return self._of_budget(self.head.progress if self.head else 0.0)

    def _of_budget(self, tokens: float) -> float:
        stop = self.settings.stop
        fractions = [0.0]
        if stop.tokens:
            fractions.append(tokens / stop.tokens)
        if stop.commits and self.head:
            fractions.append(self.head.global_version / stop.commits)
        return min(1.0, max(fractions))

    def work(self, what: Literal["handed_in", "discarded", "in_u"]) -> Work:
        """One of the three parts of all that was trained, weighted by the fragments' shares."""
        rows = [(s, getattr(t, what)) for s, t in zip(self.shares, self.tracks, strict=True)]
        return Work(
            steps=sum(s * a.steps for s, a in rows), tokens=sum(s * a.tokens for s, a in rows)
        )

    @property
    def draining(self) -> bool:
        return bool(self._draining)

    def drain_left_s(self, now: float) -> float:
        """Seconds left to hand in for a learner that leaves now, or has been leaving for a while."""
        since = now if self._draining_since is None else self._draining_since
        return max(0.0, since + DRAIN_RATIO * self.settings.liveness.drain_s - now)

    @property
    def fenced_by(self) -> int:
        """The newer incarnation of this id, 0 if there is none."""
        return self._fenced_by

    # ---- rules --------------------------------------------------------------------------------

    def _snapshots(self) -> tuple[Snapshot, ...]:
        if not self.aligned:
            return ()
        due = [p for p, track in enumerate(self.tracks) if self._may_hand_in(p, track)]
        if not due:
            return ()
        # most overdue first: the fragment with the most steps not handed in
        due.sort(
            key=lambda p: (-self.tracks[p].in_u.steps, self._pull(p) == UNASKED, self._pull(p))
        )
        room = max(0, UPLOADS_WAITING_MAX - self.num_uploading)
        return tuple(self._snapshot(p) for p in (due if self._draining else due[:room]))

    def _may_hand_in(self, fragment: int, track: Track) -> bool:
        return (
            track.outstanding is None
            and not track.encoding
            and not track.uploading
            and track.in_u.steps >= 1
            and (bool(self._draining) or self._pull(fragment) != UNASKED)
        )

    def _pull(self, fragment: int) -> int:
        """Launch number of the fragment's pull that is still to be answered, or `UNASKED`."""
        pull = self.pulls.get(fragment)
        if pull is None or pull.line != self.line:
            return UNASKED
        return UNASKED if _names(pull) == self.tracks[fragment].answered else pull.launch

    def _snapshot(self, fragment: int) -> Snapshot:
        track = self.tracks[fragment]
        return Snapshot(
            fragment=fragment,
            seq=track.seq + 1,
            line=self.line,
            launch=self._pull(fragment),
            oldest_base=track.oldest_base,
            held=self.held,
            held_digest=held_digest({p: t.hash for p, t in enumerate(self.tracks)}),
            steps=track.in_u.steps,
            tokens=track.in_u.tokens,
            total=track.handed_in + track.in_u,
        )

    def _adoptions(self, snapshotted: set[int]) -> tuple[Adoption, ...]:
        """What is staged; a fragment whose anchor is about to move, or moving, waits a boundary."""
        staged = {p: t.staged for p, t in enumerate(self.tracks) if t.staged is not None}
        if not staged:
            return ()
        if self.aligned:
            return tuple(
                Adoption(p, s.version, realign=False, in_flight=self.tracks[p].lacks(s))
                for p, s in staged.items()
                if s.line == self.line and p not in snapshotted and self.tracks[p].may_adopt(s)
            )
        # All fragments at once and of one line, or the learner would stand between two models.
        whole = len(staged) == len(self.tracks) and len({s.line for s in staged.values()}) == 1
        if not whole or any(track.encoding for track in self.tracks):
            return ()
        return tuple(Adoption(p, s.version, realign=True) for p, s in staged.items())

    @property
    def run_is_paused(self) -> bool:
        """Whether the whole run stands still, as it was told to."""
        return self.head is not None and self.head.state == "paused"

    def _pause(self, now: float) -> str:
        if self.run_is_paused:
            return "the run is paused"
        if self._draining:
            return "leaves once all it has trained is handed in"
        liveness = self.settings.liveness
        if (
            self._offline_since is not None
            and now - self._offline_since > liveness.max_offline_s
            and liveness.offline_action == "pause"
        ):
            return f"no word from a coordinator for {now - self._offline_since:.0f} s"
        return ""

    def _stop(self, now: float, *, handing_in: bool) -> Stop | None:
        liveness = self.settings.liveness
        if self._fenced_by:
            life = f"incarnation {self._fenced_by} of {self.learner}"
            return Stop("fenced", f"{life} has taken over")
        if self._kicked:
            return Stop("kicked", f"{KICKED}: {self._kicked}")
        if self.head is not None and self.head.state == "stopped":
            why = f": {self.head.why}" if self.head.why else ""
            return Stop("ended", f"the run is over{why}")
        if (
            self._offline_since is not None
            and now - self._offline_since > liveness.max_offline_s
            and liveness.offline_action == "exit"
        ):
            longest_s = liveness.max_offline_s
            return Stop("offline", f"no word from a coordinator for more than {longest_s:g} s")
        if self._draining and not handing_in and self._is_drained(now):
            return Stop("drained", self._draining)
        return None

    def _is_drained(self, now: float) -> bool:
        """Whether a leaving learner has nothing left that it could hand in, or no time for it."""
        left = self.aligned and any(track.in_u.steps for track in self.tracks)
        return not (left or self.num_uploading) or self.drain_left_s(now) <= 0

    # ---- following the log ----------------------------------------------------------------------

    def _obey(self, order: Order) -> None:
        if order.incarnation != self.incarnation:
            return
        if order.kind == "realign":
            self.aligned = False
        elif order.kind == "drain":
            self.drain(f"asked to leave: {order.reason}" if order.reason else "asked to leave")
        else:
            self._kicked = order.reason or "no reason given"

    def _follow(self, head: Head) -> None:
        if self.head is not None and head.seq < self.head.seq and head.line <= self.head.line:
            return  # a laggard replica, or a reader that fell behind
        self.head = head
        if head.line > self.line and self.aligned:
            self.aligned = False
            for track in self.tracks:
                track.staged = None

    def _take_receipts(self, receipts: Iterable[Receipt]) -> list[Receipt]:
        taken = []
        for receipt in receipts:
            track = self.tracks[receipt.fragment]
            waiting = track.outstanding
            if waiting is None or waiting[:2] != (receipt.incarnation, receipt.seq):
                continue
            track.outstanding = None
            track.merged_into = receipt.version
            track.in_flight &= receipt.fate == "merged"
            taken.append(receipt)
            if receipt.fate != "merged":
                track.answered = None  # as if it had never been: the round may still wait for us
            if receipt.fate == "refused":
                self.aligned = False
        return taken
