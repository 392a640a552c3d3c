"""Every object key and every Redis key, in one place. Nothing else builds one.

Object keys are relative to the store's URL and start with the run's name. They are made from ids,
never taken from a message, so a hostile or broken announcement cannot point at another object.
Redis keys carry the run's name in braces, so that one run lives in one Cluster slot.
"""

from __future__ import annotations

import re
from typing import Final

from ddl.names import check_learner_id, check_run_name

DIGEST_CHARS: Final = 16
"""Hex digits of a payload's SHA-256 that go into its key; records hold all 64."""

RUNS: Final = "ddl:runs"
"""Redis hash: run name -> JSON {store, lineage}; the index behind `ddl runs`."""


_CONTRIBUTION = re.compile(r"([^/]+)/(\d{6,})/f(\d{4,})-(\d{8,})-[0-9a-f]+\.safetensors")

_NUMBERED = re.compile(r"(\d{12,})\.json")


def probe(token: str) -> str:
    """Object key of a short-lived probe of the store itself; "_" keeps it apart from all runs."""
    return f"_probe/{token}"


class ObjectKeys:
    """Keys of one run in the object store (design 4.1)."""

    def __init__(self, run: str) -> None:
        self.run = check_run_name(run)

    @property
    def prefix(self) -> str:
        """All objects of the run lie under this."""
        return f"{self.run}/"

    @property
    def run_record(self) -> str:
        """Record 0. Create-once; written last at genesis, so its presence means a whole run."""
        return f"{self.run}/run.json"

    @property
    def commits(self) -> str:
        return f"{self.run}/commits/"

    @property
    def lease_probe(self) -> str:
        """What a coordinator writes when it has nothing else to write."""
        return probe(f"{self.run}-lease")

    def commit(self, seq: int) -> str:
        """Log record `seq` >= 1. Create-once, dense, never deleted."""
        return f"{self.run}/commits/{seq:012d}.json"

    @property
    def checkpoints(self) -> str:
        return f"{self.run}/checkpoints/"

    def checkpoint(self, seq: int) -> str:
        """The log folded up to `seq`. Derived: may be deleted, is written whole."""
        return f"{self.run}/checkpoints/{seq:012d}.json"

    @staticmethod
    def parse_seq(key: str) -> int | None:
        """The number of a record's or checkpoint's key; None for another key."""
        match = _NUMBERED.fullmatch(key.rpartition("/")[2])
        return int(match[1]) if match else None

    @property
    def joins(self) -> str:
        return f"{self.run}/joins/"

    def join(self, learner: str, incarnation: int) -> str:
        """Create-once: who creates it owns that incarnation."""
        return f"{self.run}/joins/{check_learner_id(learner)}/{incarnation:06d}.json"

    def frozen(self, sha256: str) -> str:
        """Parameters that are not trained, stored once at genesis so that exports are whole."""
        return f"{self.run}/frozen/{sha256[:DIGEST_CHARS]}.safetensors"

    def fragment(self, fragment: int, version: int, sha256: str) -> str:
        """Published weights of one fragment."""
        return f"{self.run}/fragments/{_object(fragment, version, sha256)}"

    def outer(self, fragment: int, version: int, sha256: str) -> str:
        """Outer state: momentum, and the fp32 master where the published bytes differ from it."""
        return f"{self.run}/outer/{_object(fragment, version, sha256)}"

    def step(self, fragment: int, version: int, sha256: str) -> str:
        """The quantised step from the version before (compressed publication)."""
        return f"{self.run}/steps/{_object(fragment, version, sha256)}"

    @property
    def versions(self) -> tuple[str, ...]:
        """All objects of versions lie under these."""
        return tuple(f"{self.run}/{kind}/" for kind in ("fragments", "outer", "steps"))

    def of_version(self, fragment: int, version: int) -> tuple[str, ...]:
        """What the keys of all objects of one version of a fragment start with."""
        return tuple(f"{prefix}{_version(fragment, version)}-" for prefix in self.versions)

    @property
    def sweep(self) -> str:
        """How far unneeded objects have been removed. Derived: may be deleted, is written whole."""
        return f"{self.run}/sweep.json"

    @property
    def contributions(self) -> str:
        return f"{self.run}/contributions/"

    def contribution(
        self, learner: str, incarnation: int, fragment: int, seq: int, sha256: str
    ) -> str:
        """What one learner handed in for one fragment."""
        return (
            f"{self.run}/contributions/{check_learner_id(learner)}/{incarnation:06d}/"
            f"f{fragment:04d}-{seq:08d}-{sha256[:DIGEST_CHARS]}.safetensors"
        )

    def parse_contribution(self, key: str) -> tuple[str, int, int, int] | None:
        """Learner, incarnation, fragment and seq of a contribution's key; None for another key."""
        match = _CONTRIBUTION.fullmatch(key.removeprefix(self.contributions))
        if match is None or not key.startswith(self.contributions):
            return None
        learner, *numbers = match.groups()
        incarnation, fragment, seq = map(int, numbers)
        return learner, incarnation, fragment, seq

    def warm(self, learner: str, name: str) -> str:
        """Inner optimizer state of a learner, by setting."""
        return f"{self.run}/warm/{check_learner_id(learner)}/{name}"


def _object(fragment: int, version: int, sha256: str) -> str:
    return f"{_version(fragment, version)}-{sha256[:DIGEST_CHARS]}.safetensors"


def _version(fragment: int, version: int) -> str:
    return f"f{fragment:04d}/v{version:08d}"


class RegistryKeys:
    """Keys of one run in Redis (design 4.2). The type and the writer stand beside each."""

    def __init__(self, run: str) -> None:
        check_run_name(run)
        base = f"ddl:{{{run}}}:"
        self.prefix = base
        self.run = base + "run"
        """hash, coordinator: `entry` (RunEntry), and for cheap reading of it `boot`, `lineage`,
        `settings`, `settings_digest`."""
        self.lease = base + "lease"
        """string with PX, coordinator: {holder, epoch, ...}."""
        self.standbys = base + "standbys"
        """sorted set, coordinators that wait for the lease: holder by the instant until which it is
        taken for alive."""
        self.epoch = base + "epoch"
        """string, coordinator: highest epoch ever given; outlives the lease."""
        self.head = base + "head"
        """string, coordinator: the newest log record, in short."""
        self.fragments = base + "fragments"
        """hash fragment -> FragmentState, coordinator."""
        self.rounds = base + "rounds"
        """string, coordinator: the open rounds."""
        self.learners = base + "learners"
        """hash learner -> LearnerRecord, that learner."""
        self.beats = base + "beats"
        """hash learner -> last beat in seconds of Redis TIME, set by the beat script."""
        self.handins = base + "handins"
        """hash learner/incarnation/fragment -> Handin, that learner; removed with its receipt."""
        self.receipts = base + "receipts"
        """hash learner/incarnation/fragment -> Receipt (the last one), coordinator."""
        self.answers = base + "answers"
        """hash learner/incarnation/fragment -> seq whose payload is to be put again, coordinator."""
        self.requests = base + "requests"
        """hash id -> Request of a person to the coordinator; removed once it is in the log."""
        self.orders = base + "orders"
        """hash learner -> Order to one learner (drain, kick, re-align), coordinator."""
        self.news = base + "news"
        """short stream, wake-up for learners; a hint, never the only notice."""
        self.arrivals = base + "arrivals"
        """short stream, wake-up for the coordinator; a hint, never the only notice."""
        self.events = base + "events"
        """capped stream of facts for people; nobody blocks on it."""
        self.units = base + "units"
        """hash unit -> claim on a unit of data."""

    def all(self) -> list[str]:
        """Every key of the run, for `ddl rm` and for rebuilds."""
        return [v for k, v in vars(self).items() if k != "prefix"]


def handin_field(learner: str, incarnation: int, fragment: int) -> str:
    """Field of one learner, incarnation and fragment in `handins`, `receipts` and `answers`."""
    return f"{learner}/{incarnation}/{fragment}"


def parse_handin_field(field: str) -> tuple[str, int, int]:
    """Undo `handin_field`. Raises: ValueError."""
    learner, incarnation, fragment = field.rsplit("/", 2)
    return learner, int(incarnation), int(fragment)
