"""What may be removed: followed record by record, against the settings, rollbacks and readers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddl.config import KeepSettings, Settings
from ddl.core.keep import keeps
from ddl.core.retire import QUARANTINE, Retirement, horizon
from ddl.protocol.records import FragmentStep, HandinId, LogRecord, ObjectRef
from tests.core_records import (
    KEYS,
    apply,
    genesis,
    other_record,
    receipt,
    run_record,
    step_record,
)


class Followed:
    """A log that grows, and a retirement that follows it; versions alternate between fragments."""

    def __init__(self, keep: KeepSettings) -> None:
        self.log = genesis(Settings(keep=keep))
        self.retirement = Retirement.genesis(run_record())
        self.made: list[list[ObjectRef]] = [self._refs()]
        self.gone: set[str] = set()
        self.leftovers: list[frozenset[str]] = []

    def take(self, record: LogRecord) -> None:
        apply(self.log, record)
        self.leftovers += [place.keys for place in self.retirement.follow(record)]
        if record.fragments:
            self.made.append(self._refs())

    def step(self, num: int = 1, **changes: Any) -> None:
        for _ in range(num):
            record = step_record(self.log, self.log.global_version % 2)
            self.take(msgspec.structs.replace(record, **changes))

    def roll_back(self, version: int) -> None:
        """Back to what a version was made of."""
        steps = []
        for p, head in enumerate(self.log.fragments):
            published, *outer = [r for r in self.made[version] if r.key.startswith(f"demo/f{p}")]
            steps.append(
                FragmentStep(
                    fragment=p,
                    version_before=head.version,
                    version_after=head.version + 1,
                    published=published,
                    outer=outer[0] if outer else None,
                )
            )
        self.take(
            other_record(
                self.log, "rollback", fragments=tuple(steps), progress=0.0, back_to=version
            )
        )

    def sweep(self, held: frozenset[tuple[int, int]] = frozenset()) -> set[str]:
        """Keys that are removed now."""
        due = {key for key, _ in self.retirement.due(horizon(self.log, held))}
        self.gone |= due
        return due

    def whole(self) -> list[int]:
        """Global versions all of whose objects are there."""
        return [v for v, refs in enumerate(self.made) if not {r.key for r in refs} & self.gone]

    def _refs(self) -> list[ObjectRef]:
        heads = self.log.fragments
        return [r for h in heads for r in (h.published, h.outer, h.step) if r is not None]


def kept(keep: KeepSettings, newest: int) -> list[int]:
    return [v for v in range(newest + 1) if keeps(keep, newest=newest, first=v, last=v)]


@pytest.mark.parametrize("sweep_every", [1, 7, 60])
@pytest.mark.parametrize("versions", [1, 3, 10])
@pytest.mark.parametrize("every", [0, 10])
def test_what_the_settings_keep_stays_whole_and_the_rest_goes(
    versions: int, every: int, sweep_every: int
) -> None:
    """However often it is swept: the newest, every so-many-th, and one cycle below the newest."""
    keep = KeepSettings(versions=versions, every=every)
    run = Followed(keep)
    for _ in range(60 // sweep_every):
        run.step(sweep_every)
        run.sweep()
    newest = run.log.global_version
    whole = run.whole()
    assert set(kept(keep, newest)) <= set(whole)
    assert set(range(run.log.vitals.healthy_version, newest + 1)) <= set(whole)
    # an object that a kept version shares with its neighbours keeps none of these whole by itself
    spare = [v for v in whole if v not in kept(keep, newest) and v < newest - 2]
    assert not spare
    assert run.sweep() == set()


def test_what_a_learner_holds_stays_until_it_holds_it_no_more() -> None:
    """Also when it is far behind: a late reader's object is removed once nobody has it."""
    run = Followed(KeepSettings(versions=1, every=0))
    run.step(2)
    held = frozenset({(0, 1)})
    old = {r.key for r in run.made[1] if r.key.startswith("demo/f0v1")}
    run.step(20)
    assert old.isdisjoint(run.sweep(held))
    run.step(2)
    assert old <= run.sweep()


def test_a_rollback_brings_objects_back_for_good_or_until_they_are_replaced() -> None:
    """What it points at is the newest version again; replaced, it goes by what both its lives kept."""
    keep = KeepSettings(versions=4, every=10)
    run = Followed(keep)
    run.step(12)
    run.sweep()
    run.roll_back(10)  # one of every ten
    run.step(1)
    run.roll_back(11)
    run.step(30)
    run.sweep()
    assert 10 in run.whole()
    newest = run.log.global_version
    assert set(kept(keep, newest)) <= set(run.whole())
    assert 11 not in run.whole()


def test_an_object_that_is_kept_for_good_survives_a_rollback_to_it() -> None:
    """It had left the list of those to be judged; its second life must not put it on again."""
    run = Followed(KeepSettings(versions=2, every=5))
    run.step(14)
    run.sweep()
    run.roll_back(10)
    run.step(12)
    run.sweep()
    assert 10 in run.whole()


def test_a_saved_retirement_goes_on_where_it_was() -> None:
    """As JSON, half-way through the log, it ends with the same removals."""
    one, other = Followed(KeepSettings(versions=2)), Followed(KeepSettings(versions=2))
    for run in (one, other):
        run.step(9)
        run.sweep()
    data = msgspec.json.encode(other.retirement)
    other.retirement = msgspec.json.decode(data, type=Retirement)
    for run in (one, other):
        run.step(9)
        run.sweep()
    assert one.gone == other.gone


def test_leftovers_are_looked_for_where_a_coordinator_may_have_died() -> None:
    """At each fragment's first version under a new epoch, and only there."""
    run = Followed(KeepSettings())
    run.step(4)
    assert len(run.leftovers) == 2  # epoch 1 is new to both
    run.step(3, epoch=2)
    assert len(run.leftovers) == 4
    record = step_record(run.log, 1, epoch=3)
    apply(run.log, record)
    (place,) = run.retirement.follow(record)
    version = run.log.fragments[1].version
    assert place.prefixes[0] == f"demo/fragments/f0001/v{version:08d}-"
    assert place.keys == {
        ref.key for ref in (record.fragments[0].published, record.fragments[0].outer) if ref
    }


# ---- contributions ------------------------------------------------------------------------------


def spent(run: Followed, seq: int, fragment: int = 0) -> bool:
    id_ = HandinId("a", 1, fragment, seq)
    key = KEYS.contribution(*id_, "ab" * 32)
    return run.retirement.is_spent(key, id_, horizon(run.log, frozenset()))


def test_a_contribution_goes_after_its_receipt() -> None:
    """With contributions = "all" it stays, for replays."""
    run = Followed(KeepSettings())
    run.step(1)
    assert spent(run, 1)
    assert not spent(run, 2)
    everything = Followed(KeepSettings(contributions="all"))
    everything.step(1)
    assert not spent(everything, 1)


def test_a_refused_contribution_stays_for_a_while() -> None:
    """So that somebody can look at what was wrong with it; also when others follow it."""
    run = Followed(KeepSettings())
    run.take(other_record(run.log, "receipts", receipts=(receipt(run.log, "a", fate="refused"),)))
    run.step(QUARANTINE - 1)
    run.retirement.forget_contributions(set(), horizon(run.log, frozenset()))
    assert spent(run, 2)
    assert not spent(run, 1)
    run.step(1)
    assert spent(run, 1)


def test_what_nobody_announces_goes_once_it_is_too_stale_to_be_merged() -> None:
    """Not before: a learner may be cut off from Redis, or Redis have lost its announcement."""
    run = Followed(KeepSettings())
    run.step(2)
    id_ = HandinId("b", 7, 0, 1)
    key = KEYS.contribution(*id_, "ab" * 32)

    def goes() -> bool:
        return run.retirement.is_spent(key, id_, horizon(run.log, frozenset()))

    assert not goes()
    seen_at = run.log.fragments[0].version
    for _ in range(run.log.settings.round.staleness_max + 1):
        run.step(2)  # the other fragment moves in between
        assert not goes()
    run.step(2)
    assert run.log.fragments[0].version == seen_at + run.log.settings.round.staleness_max + 2
    assert goes()
