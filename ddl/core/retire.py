"""Which objects of a run nobody needs any more. Told by the log; never by ages or guesses.

Published objects are followed record by record: each belongs to the global versions from the one it
was published with to the one before its successor's, and what `[keep]` says of these decides. One
that a rollback points at again belongs to the newest version again. Everything from the last healthy
version on is kept as well, which is also more than a slow reader can fall behind: a whole cycle of
all fragments at least.

A contribution may go once its receipt is in the log. One that nobody announces waits until it would
be too stale to be merged.

Two sweepers, or one that knows an older log than another, do no harm: what the newer log still
needs, or may go back to (`requests.no_way_back`), was needed by the older one too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ddl.config import KeepSettings
from ddl.core.keep import keeps_for_good
from ddl.core.log import LogState
from ddl.protocol import wire
from ddl.protocol.keys import ObjectKeys, handin_field
from ddl.protocol.records import FragmentStep, HandinId, LogRecord, ObjectRef, RunRecord

SWEEP_EVERY: Final = 8
"""Global versions between two sweeps: so many more than `[keep]` says may be in the store."""

QUARANTINE: Final = 100
"""Global versions for which a refused payload is kept, for whoever wants to know what was wrong."""


class Horizon(NamedTuple):
    """A run as it stands when objects are judged.

    Attributes:
        seq, version: newest log record and global version.
        floor: from this global version on everything is kept.
        versions: newest version of every fragment.
        held: (fragment, version) of what living learners have adopted.
        receipted: seq of the last receipt, by `keys.handin_field`.
    """

    seq: int
    version: int
    floor: int
    keep: KeepSettings
    versions: tuple[int, ...]
    held: frozenset[tuple[int, int]]
    receipted: Mapping[str, int]
    staleness_max: int


def horizon(log: LogState, held: frozenset[tuple[int, int]]) -> Horizon:
    """The run as it stands at the newest record of `log`."""
    keep = log.settings.keep
    return Horizon(
        seq=log.seq,
        version=log.global_version,
        floor=min(log.global_version - keep.versions + 1, log.vitals.healthy_version),
        keep=keep,
        versions=tuple(head.version for head in log.fragments),
        held=held,
        receipted={field: account.last.seq for field, account in log.accounts.items()},
        staleness_max=log.settings.round.staleness_max,
    )


class Published(msgspec.Struct, kw_only=True):
    """An object that came with `version` of a fragment, and the global versions it belongs to.

    `last` is None while it belongs to the newest.
    """

    fragment: int
    version: int
    first: int
    last: int | None = None
    bytes: int


class Leftovers(NamedTuple):
    """Where payloads may lie that were put for a version and never committed: all objects whose keys
    start with one of `prefixes`, but those of `keys`."""

    prefixes: tuple[str, ...]
    keys: frozenset[str]


class Retirement(msgspec.Struct, kw_only=True):
    """The log as far as it concerns objects, folded. Serialised, it spares the next sweeper reading
    the log from its beginning; it may be lost.

    Attributes:
        objects: by key, those whose end is not decided. One that is kept for good is not among them.
        heads: keys of the newest version of every fragment.
        epochs: the coordinator's epoch at each fragment's newest version.
        refused: refused contributions, and the newest global version at the time.
        sighted: keys of contributions without a receipt, and the fragment's version when first seen.
    """

    schema: int = wire.SCHEMA
    run: str
    lineage: str
    seq: int = 0
    version: int = 0
    objects: dict[str, Published]
    heads: list[list[str]]
    epochs: list[int]
    refused: dict[str, int] = {}
    sighted: dict[str, int] = {}

    @classmethod
    def genesis(cls, run: RunRecord) -> Retirement:
        """As it stands after record 0."""
        return cls(
            run=run.name,
            lineage=run.lineage,
            objects={
                ref.key: Published(fragment=p, version=0, first=0, bytes=ref.bytes)
                for p, ref in enumerate(run.fragments)
            },
            heads=[[ref.key] for ref in run.fragments],
            epochs=[0 for _ in run.fragments],
        )

    def follow(self, record: LogRecord) -> list[Leftovers]:
        """Take the next record in; say where payloads of dead coordinators may lie.

        Only the first version of a fragment under a new epoch can have a rival: its merge may have
        been begun by the coordinator before.
        """
        assert (record.lineage, record.seq) == (self.lineage, self.seq + 1), record.seq
        self.seq, self.version = record.seq, record.global_version
        for receipt in record.receipts:
            if receipt.fate == "refused":
                self.refused[str(receipt.id)] = record.global_version
        leftovers = []
        for step in record.fragments:
            self._retire(step.fragment, record.global_version - 1)
            self._publish(step, record)
            if self.epochs[step.fragment] != record.epoch:
                self.epochs[step.fragment] = record.epoch
                leftovers.append(self._rivals(step))
        return leftovers

    def _retire(self, fragment: int, last: int) -> None:
        for key in self.heads[fragment]:
            if key in self.objects:
                self.objects[key].last = last

    def _publish(self, step: FragmentStep, record: LogRecord) -> None:
        refs = _refs(step)
        self.heads[step.fragment] = [ref.key for ref in refs]
        for ref in refs:
            if ref.key in self.objects:
                self.objects[ref.key].last = None
            elif record.kind == "step":  # else a rollback found it there: it is kept for good
                self.objects[ref.key] = Published(
                    fragment=step.fragment,
                    version=step.version_after,
                    first=record.global_version,
                    bytes=ref.bytes,
                )

    def _rivals(self, step: FragmentStep) -> Leftovers:
        prefixes = ObjectKeys(self.run).of_version(step.fragment, step.version_after)
        return Leftovers(prefixes, frozenset(ref.key for ref in _refs(step)))

    def due(self, horizon: Horizon) -> Iterator[tuple[str, int]]:
        """Key and size of every published object that is to be removed now.

        Each is told once: who is told of it and does not remove it begins anew from what was saved.
        """
        for key, one in list(self.objects.items()):
            if one.last is None or one.last >= horizon.floor:
                continue
            if (one.fragment, one.version) in horizon.held:
                continue
            del self.objects[key]
            if not keeps_for_good(horizon.keep, first=one.first, last=one.last):
                yield key, one.bytes

    def is_spent(self, key: str, id_: HandinId, horizon: Horizon) -> bool:
        """Whether a contribution that lies in the store is to be removed now."""
        field = handin_field(id_.learner, id_.incarnation, id_.fragment)
        if id_.seq <= horizon.receipted.get(field, 0):
            if horizon.keep.contributions == "all":
                return False
            refused_at = self.refused.get(str(id_))
            return refused_at is None or horizon.version >= refused_at + QUARANTINE
        if not 0 <= id_.fragment < len(horizon.versions):
            return True
        # Its work is not younger than the version that was newest when it was first seen.
        newest = horizon.versions[id_.fragment]
        return newest > self.sighted.setdefault(key, newest) + horizon.staleness_max + 1

    def forget_contributions(self, present: set[str], horizon: Horizon) -> None:
        """Drop what is remembered of contributions that are not there (any more)."""
        self.sighted = {key: seen for key, seen in self.sighted.items() if key in present}
        self.refused = {
            id_: seen for id_, seen in self.refused.items() if seen + QUARANTINE > horizon.version
        }


def _refs(step: FragmentStep) -> list[ObjectRef]:
    return [ref for ref in (step.published, step.outer, step.step) if ref is not None]
