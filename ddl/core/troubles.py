"""What is wrong with a run now: each standing trouble as one sentence, with since when and a cure.

Pure, from a snapshot alone. A trouble is shown for as long as its cause lasts, however much happens
meanwhile; what has passed is an event. Those that stop the run come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from ddl.core.membership import PRESENT
from ddl.names import counted
from ddl.protocol.records import KICKED, Fact, HandinId, LearnerView, RunSnapshot, RunView, Trouble

FEW_RATIO: Final = 0.5
"""Merges of fewer than this share of the live learners are few."""

FEW_ROUNDS: Final = 4
"""So many of them in a row are worth a word."""

SELDOM_RATIO: Final = 2.0
"""Rounds that come so many times more seldom than asked for are worth a word."""

SELDOM_ROUNDS: Final = 9
"""So many versions tell how often they come: by the median, which one pause of the run does not move."""

STARVED_S: Final = 60.0
"""An upload that would take longer than this, at the speed it has had so far, starves."""

HOT_COSINE: Final = -0.3
"""Outer gradients that point this much against the momentum are taking back what it did."""

JUMP_SHOWN_S: Final = 300.0
"""How long a jump of the clock of Redis stays in sight."""

NAMES_SHOWN: Final = 3


def standing(shown: RunSnapshot) -> tuple[Trouble, ...]:
    """The troubles of a run at this instant, the worst first."""
    redis = shown.services["redis"]
    is_dumb = (
        redis.latency_s is not None and not redis.ok
    )  # silence then says nothing of the silent
    looks = _BY_RECORDS if is_dumb else (*_BY_RECORDS, *_BY_BEATS)
    found = [trouble for look in looks for trouble in look(shown)]
    return tuple(sorted(found, key=lambda trouble: not trouble.alarm))


# ---- the run as a whole -----------------------------------------------------------------------


def _state(shown: RunSnapshot) -> Iterator[Trouble]:
    run = shown.run
    why = f": {run.why}" if run.why else ""
    if run.state == "held":
        yield Trouble(
            name="run.held",
            alarm=True,
            what=f"the run is held, nothing is merged{why}",
            cure=f"`ddl resume {run.name}` goes on with it, `ddl rollback {run.name} --to N` "
            "goes back to a good version",
            since_at=run.state_at,
        )
    if run.state == "paused":
        yield Trouble(
            name="run.paused",
            alarm=True,
            what=f"the run is paused, its learners stand still{why}",
            cure=f"`ddl resume {run.name}`",
            since_at=run.state_at,
        )


def _coordinator(shown: RunSnapshot) -> Iterator[Trouble]:
    coordinator, run = shown.coordinator, shown.run
    if run.state == "stopped" or not coordinator.known or coordinator.lease_left_s is not None:
        return
    cure = (
        f"{_names(coordinator.standbys)} will take over"
        if coordinator.standbys
        else "start one: `ddl coordinator start run.toml`"
    )
    what, since_at = "no coordinator is alive", max([run.committed_at, *_instants(shown.events)])
    last = next((fact for fact in reversed(shown.events) if fact.name.startswith("lease.")), None)
    if last is not None and last.name == "lease.unsure":
        what, since_at = f"the coordinator is cut off; {last.text}", last.at
        cure = "it goes on by itself once that is mended; or start one on another machine"
    elif last is not None and last.name == "lease.released":
        what, since_at = f"the coordinator has ended; {last.text}", last.at
    trains = any(one.state == "training" for one in shown.learners)
    meanwhile = ", learners train on and keep that in memory" if trains else ""
    yield Trouble(
        name="coordinator.gone",
        alarm=True,
        what=f"nothing is merged{meanwhile}: {what}",
        cure=cure,
        since_at=since_at,
    )


def _instants(facts: Sequence[Fact]) -> list[float]:
    """Of what only a coordinator tells, the newest."""
    told = [fact.at for fact in facts if fact.name.startswith(("version.", "round.", "run."))]
    return told[-1:]


def _redis(shown: RunSnapshot) -> Iterator[Trouble]:
    redis = shown.services["redis"]
    if not redis.asked or not redis.error:
        return
    if redis.latency_s is None:
        yield Trouble(
            name="redis.silent",
            alarm=True,
            what=f"Redis does not tell of this run: {redis.error}; this is what the store says",
            cure="who trains and whether anybody coordinates cannot be known from here",
        )
    elif not redis.ok:
        yield Trouble(
            name="redis.full",
            alarm=True,
            what=f"Redis refuses writes: {redis.error}; nothing is merged, and learners seem silent",
            cure="raise its maxmemory, or remove other keys from it",
        )
    else:
        yield Trouble(name="redis.unreadable", alarm=False, what=f"in Redis: {redis.error}")


def _rounds(shown: RunSnapshot) -> Iterator[Trouble]:
    """Rounds that cannot close, or not even open, in one sentence: they mostly wait for the same."""
    if shown.run.state != "running" or shown.coordinator.lease_left_s is None:
        return
    run = shown.run
    able, cut = _able(shown.learners)
    below = [r for r in shown.rounds if len(r.arrived) < r.quorum]
    are_cut = len(able) + len(cut) >= run.quorum  # then the store is what ails
    if len(able) < run.quorum and not are_cut and (below or not shown.rounds):
        apart = _apart(shown.learners, able)
        yield Trouble(
            name="rounds.below_quorum",
            alarm=True,
            what=f"no round can {'close' if below else 'open'}: each needs "
            f"{counted(run.quorum, 'contribution')}, and "
            f"{counted(len(able), 'learner')} can hand in{apart}",
            cure=f"start {'more learners' if able else 'learners: `ddl learner join`'}"
            + _or_fewer(run.name, len(able)),
            since_at=min((round_.opened_at for round_ in below), default=None),
        )
    failing = {round_.reason: round_ for round_ in shown.rounds if round_.failed}
    for reason, round_ in failing.items():
        yield Trouble(
            name="rounds.failing",
            alarm=True,
            what=f"the round of fragment {round_.fragment} cannot be merged: {reason}",
            cure="it is tried again by itself; the coordinator's log tells more",
            since_at=round_.opened_at,
        )


def _able(learners: Iterable[LearnerView]) -> tuple[list[LearnerView], list[LearnerView]]:
    """Those that train and can hand in, and those that train without the store."""
    training = [one for one in learners if one.state == "training"]
    able = [one for one in training if not one.store_down_s]
    return able, [one for one in training if one.store_down_s]


def _or_fewer(run: str, num: int) -> str:
    """The other cure for a quorum that is not reached."""
    return f", or `ddl set {run} round.quorum={num}`" if num else ""


def _apart(learners: Iterable[LearnerView], able: Sequence[LearnerView]) -> str:
    """Where the others are, by state: `; 1 joining, 2 cannot reach the store`."""
    counts: dict[str, int] = {}
    for one in learners:
        if one in able or (one.state == "left" and not _is_kicked(one)):
            continue
        is_cut = one.state == "training" and one.store_down_s
        words = "without the store" if is_cut else "kicked" if _is_kicked(one) else one.state
        counts[words] = counts.get(words, 0) + 1
    told = ", ".join(f"{count} {words}" for words, count in counts.items())
    return f" ({told})" if told else ""


# ---- learners ---------------------------------------------------------------------------------


def _store(shown: RunSnapshot) -> Iterator[Trouble]:
    cut = [one for one in shown.learners if one.store_down_s > 0 and one.state in PRESENT]
    if not cut:
        return
    causes = "; ".join(dict.fromkeys(one.error for one in cut if one.error))
    able, _ = _able(shown.learners)
    stops = len(able) < shown.run.quorum
    yield Trouble(
        name="store.refuses",
        alarm=stops,
        what=f"{_names([one.id for one in cut])} cannot use the store"
        + (f", so no round can close, which needs {shown.run.quorum}" if stops else "")
        + (f": {causes}" if causes else ""),
        cure="they train on and hand in when it works again; `ddl doctor`, run there, tells what is "
        "wrong",
        since_at=shown.taken_at - max(one.store_down_s for one in cut),
        learners=tuple(one.id for one in cut),
    )


def _learners(shown: RunSnapshot) -> Iterator[Trouble]:
    is_over = shown.run.state == "stopped"
    able, _ = _able(shown.learners)
    refused = _refused_since(shown.events, shown.run.committed_at)
    bad = {one.id for one in able if _fate(one) == "refused" and one.id in refused}
    num_good = len(able) - len(bad)
    is_short = num_good < shown.run.quorum <= len(able)
    for one in shown.learners:
        if is_over and one.state in ("gone", "stalled"):  # nobody waits for it, and nothing is lost
            continue
        if is_short and one.id in bad:
            yield _refused_and_needed(one, shown.run, num_good=num_good)
        else:
            yield from _learner(one, shown)


def _refused_since(facts: Iterable[Fact], at: float) -> set[str]:
    """Learners of whom something was refused after an instant."""
    return {
        str(fact.fields.get("learner"))
        for fact in facts
        if fact.name == "contribution.refused" and fact.at > at
    }


def _fate(one: LearnerView) -> str:
    """What became of its last hand-in, if that says anything of it as it is now: not that of a life
    that has ended, nor what was refused for a kick that was taken back."""
    if one.last is None or HandinId.parse(one.last.id).incarnation != one.incarnation:
        return ""
    return "" if one.last.reason.startswith(KICKED) else one.last.fate


def _refused_and_needed(one: LearnerView, run: RunView, *, num_good: int) -> Trouble:
    """Without it there is no quorum: the run stands still for as long as its work is refused."""
    assert one.last is not None
    return Trouble(
        name="handin.refused",
        alarm=True,
        what=f"the last hand-in of {one.id} was refused, and no round has closed since, which needs "
        f"{run.quorum}: {one.last.reason}",
        cure=_FATE_CURES["refused"] + _or_fewer(run.name, num_good),
        since_at=run.committed_at,
        learners=(one.id,),
    )


def _learner(one: LearnerView, shown: RunSnapshot) -> Iterator[Trouble]:
    def trouble(name: str, what: str, cure: str, since_at: float | None) -> Trouble:
        return Trouble(
            name=name, alarm=False, what=what, cure=cure, since_at=since_at, learners=(one.id,)
        )

    error = f": {one.error}" if one.error else ""
    if _is_kicked(one):
        allow = f"`ddl learner allow {shown.run.name} {one.id}` lets it in again"
        cure = f"{allow}, when it is started there" if one.state == "left" else allow
        yield trouble("learner.kicked", f"{one.id} was {one.aside}", cure, one.since_at)
    elif one.state == "left" and one.error:
        what = f"{one.id} ended with an error{error}"
        yield trouble("learner.failed", what, "mend it and start it again", one.since_at)
    elif one.state == "gone":
        what = f"{one.id} on {one.host} is gone without a word{error}"
        cure = "start it again under the same id, and it takes up what it had spooled"
        yield trouble("learner.gone", what, cure, shown.taken_at - one.beat_age_s)
    elif one.state == "stalled":
        what = f"{one.id} beats but takes no step, so no round waits for it{error}"
        cure = "look at its log: a step that hangs, or data that does not come"
        yield trouble("learner.stalled", what, cure, one.since_at)
    elif one.state == "aside":
        what = f"{one.id} is put aside, nothing of it is merged: {one.aside}"
        cure = "it takes the run's weights anew by itself; if this comes back, mend its training"
        yield trouble("learner.aside", what, cure, one.since_at)
    elif one.last is not None and (fate := _fate(one)) in _FATE_CURES:
        what = f"the last hand-in of {one.id} was {fate}: {one.last.reason}"
        yield trouble(f"handin.{fate}", what, _FATE_CURES[fate], one.last.at)
    elif one.error and not one.store_down_s and one.state in PRESENT:
        what = f"{one.id}: {one.error}"
        yield trouble("learner.trouble", what, "it tries again by itself", None)


def _is_kicked(one: LearnerView) -> bool:
    return one.aside.startswith(KICKED)


_FATE_CURES: Final = {
    "refused": "look at that machine: its loss, its data, its precision",
    "lost": "its upload was damaged or is missing; the next one may be merged",
    "expired": "it is too slow for this run: a larger round.staleness_max or round.deadline_s",
}


def _uploads(shown: RunSnapshot) -> Iterator[Trouble]:
    starved = []
    for one in shown.learners:
        upload = one.upload
        if upload is None or one.store_down_s or not upload.bytes_per_s:
            continue
        if upload.bytes / upload.bytes_per_s > STARVED_S:
            starved.append(one.id)
    if starved:
        yield Trouble(
            name="uploads.starve",
            alarm=False,
            what=f"uploads of {_names(starved)} take longer than {STARVED_S:.0f} s each",
            cure='a smaller codec.up ("int4"), more fragments, or a larger round.every_steps',
            learners=tuple(starved),
        )


# ---- rounds that close, but badly -----------------------------------------------------------------


def _participation(shown: RunSnapshot) -> Iterator[Trouble]:
    merges = [fact for fact in shown.events if fact.name == "version.published"][-FEW_ROUNDS:]
    if len(merges) < FEW_ROUNDS:
        return
    numbers = [len(fact.fields.get("learners", ())) for fact in merges]
    began = merges[0].at  # who came later is not missed in them
    live = sum(one.state == "training" and one.started_at <= began for one in shown.learners)
    if max(numbers) < FEW_RATIO * live:
        yield Trouble(
            name="rounds.few",
            alarm=False,
            what=f"the last {FEW_ROUNDS} rounds closed with at most {max(numbers)} of {live} learners",
            cure="give slower ones time: a larger round.quorum, round.grace_ratio or round.deadline_s",
            since_at=merges[0].at,
        )


def _seldom(shown: RunSnapshot) -> Iterator[Trouble]:
    """Nothing is lost and nobody waits, but a model that is merged so seldom learns less."""
    run = shown.run
    at = [fact.at for fact in shown.events if fact.name == "version.published"][-SELDOM_ROUNDS:]
    steps_s = [one.step_s for one in shown.learners if one.state == "training" and one.step_s]
    if len(at) < SELDOM_ROUNDS or not steps_s or not run.num_fragments or run.state != "running":
        return
    every_s = median(later - sooner for sooner, later in pairwise(at))
    wanted_s = run.every_steps * median(steps_s) / run.num_fragments
    if every_s > SELDOM_RATIO * wanted_s:
        yield Trouble(
            name="rounds.seldom",
            alarm=False,
            what=f"a version comes every {every_s:.1f} s, not every {wanted_s:.1f} s as "
            f"round.every_steps = {run.every_steps} asks for: hand-ins, or versions, are that long on their way",
            cure='smaller ones (codec.up = "int4", codec.down = "int4-step"), or a larger '
            "round.every_steps; `ddl plan` tells what links bear",
            since_at=at[0],
        )


def _heat(shown: RunSnapshot) -> Iterator[Trouble]:
    merges = [fact for fact in shown.events if fact.name == "version.published"][-FEW_ROUNDS:]
    cosines = [fact.fields.get("cos_prev") for fact in merges]
    known = [cosine for cosine in cosines if cosine is not None]
    if len(known) == FEW_ROUNDS and fmean(known) < HOT_COSINE:
        yield Trouble(
            name="outer.hot",
            alarm=False,
            what=f"outer steps run too hot: the last {FEW_ROUNDS} point against those before "
            f"(cosine {fmean(known):.2f})",
            cure=f"`ddl set {shown.run.name} outer.lr=...`, lower than it is: `ddl config show "
            f"{shown.run.name}`",
            since_at=merges[0].at,
        )


def _clock(shown: RunSnapshot) -> Iterator[Trouble]:
    jumps = [fact for fact in shown.events if fact.name == "clock.jumped"]
    if jumps and shown.taken_at - jumps[-1].at < JUMP_SHOWN_S:
        yield Trouble(
            name="clock.jumped",
            alarm=False,
            what=jumps[-1].text,
            cure="see to the time service of the machine of Redis",
            since_at=jumps[-1].at,
        )


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


_Looks = tuple[Callable[[RunSnapshot], Iterator[Trouble]], ...]
_BY_RECORDS: Final[_Looks] = (_state, _coordinator, _redis, _heat, _clock)
_BY_BEATS: Final[_Looks] = (_store, _rounds, _learners, _uploads, _participation, _seldom)
