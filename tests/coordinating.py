"""A tiny run for tests: its task, its settings, a coordinator in a thread, a scripted learner."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import torch

from ddl import config
from ddl.clock import SystemClock
from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.codec.digest import sha256
from ddl.config import Loaded
from ddl.coordinator.service import Outcome, Service
from ddl.coordinator.start import Coordinator, StartOptions
from ddl.errors import RegistryError
from ddl.journal import Journal, Troubles
from ddl.protocol.keys import ObjectKeys
from ddl.protocol.records import (
    NO_PAYLOAD,
    Amount,
    BeatReply,
    FragmentState,
    Handin,
    HandinId,
    LearnerRecord,
    ObjectRef,
    Round,
    held_digest,
)
from ddl.registry.base import settings_digest
from ddl.registry.coordinator import RedisCoordinator
from ddl.registry.learner import RedisLearner
from ddl.store.base import Store
from ddl.store.local import LocalStore

T = TypeVar("T")

RUN = "tiny"
TOKENS_PER_STEP = 10

TASK = '''
import torch
from ddl import Task

class Tiny(torch.nn.Module):
    """Two matrices, a bias, a tied weight, a buffer, and a parameter that is not trained."""
    def __init__(self, width):
        super().__init__()
        self.first = torch.nn.Linear(width, 3)
        self.second = torch.nn.Linear(3, width, bias=False)
        self.tied = self.second
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

def build(ctx):
    return Task(model=Tiny(int(ctx.args.get("width", 4))))
'''


EVERY_CODEC = pytest.mark.parametrize(
    "codec",
    [{"up": "fp32"}, {"up": "bf16"}, {"up": "int8"}, {"up": "int4", "down": "int4-step"}],
    ids=["fp32", "bf16", "int8", "int4, and steps published"],
)
"""For the section of `run.toml` of that name."""


def write_run(folder: Path, *, redis_url: str, **sections: Mapping[str, object]) -> Path:
    """Write `run.toml` and its task into `folder`; return the former. Beats are short."""
    tables: dict[str, dict[str, object]] = {
        "run": {"name": RUN, "seed": 3},
        "task": {"file": "task.py"},
        "redis": {"url": redis_url},
        "store": {"url": (folder / "store").as_uri()},
        "fragments": {"num": 2},
        "round": {"every_steps": 4, "overlap_steps": 1, "in_flight": 1},
        "liveness": {"beat_s": 0.1, "suspect_s": 20.0, "gone_s": 20.0, "lease_s": 1.5},
        "gate": {"calm_rounds": 1000},
        "outer": {"preset": "fixed"},
    }
    for name, values in sections.items():
        tables.setdefault(name, {}).update(values)
    (folder / "task.py").write_text(TASK)
    text = "".join(
        f"[{name}]\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in values.items())
        for name, values in tables.items()
    )
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode()


def options(run_toml: Path, **flags: str) -> StartOptions:
    """What `ddl coordinator start run.toml` would start; flags as `round__quorum="2"`."""
    loaded: Loaded = config.load(
        run_toml, flags={key.replace("__", "."): value for key, value in flags.items()}
    )
    return StartOptions(loaded=loaded, task_file=run_toml.parent / loaded.settings.task.file)


def eventually(look: Callable[[], T | None], *, within_s: float = 60.0, what: str = "") -> T:
    """The first truthy result of `look`; fails if there is none in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if result := look():
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what or look}")


class Running:
    """A coordinator in a thread of this process."""

    def __init__(
        self,
        start: StartOptions,
        store: Store | None = None,
        registry: RedisCoordinator | None = None,
    ) -> None:
        self.log = io.StringIO()
        self.error: BaseException | None = None
        self.outcome: Outcome | None = None
        self.service: Service | None = None
        settings = start.loaded.settings
        self._registry = registry or RedisCoordinator(settings.redis.url, settings.run.name)
        path = Path(settings.store.url.removeprefix("file://"))
        self._coordinator = Coordinator(
            start,
            registry=self._registry,
            store=store or LocalStore(path),
            journal=(journal := Journal(self.log)),
            troubles=Troubles(journal, SystemClock()),
            clock=SystemClock(),
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._coordinator.run(self._attach)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self._registry.close()

    def _attach(self, service: Service) -> None:
        self.service = service

    def ready(self) -> Running:
        """Wait until it serves, and learners find the run."""
        eventually(self._is_ready, what="the service")
        if self.error is not None:
            raise self.error
        return self

    def _is_ready(self) -> bool:
        if self.error is not None or self.outcome is not None:
            return True
        try:
            return self.service is not None and self._registry.read_entry() is not None
        except RegistryError:  # a test has taken Redis away
            return self.service is not None

    def wait(self, within_s: float = 60.0) -> Outcome:
        """Its outcome, once it has ended; what it raised is raised."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), self.log.getvalue()
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome

    def end(self) -> None:
        """Ask it to end, and wait for it, whatever comes of it."""
        if self.service is not None:
            self.service.end()
        self._thread.join(20.0)
        assert not self._thread.is_alive(), self.log.getvalue()


@contextmanager
def running(
    start: StartOptions, store: Store | None = None, registry: RedisCoordinator | None = None
) -> Iterator[Running]:
    """A coordinator that serves, and is ended with the block."""
    coordinator = Running(start, store, registry)
    try:
        yield coordinator.ready()
    finally:
        coordinator.end()


class ScriptedLearner:
    """Hands in what the test says, when the test says; adopts what is published.

    Its movement is a function of (fragment, seq) alone, so that two runs get the same
    contributions.
    """

    def __init__(
        self,
        redis_url: str,
        store: Store,
        name: str = "a",
        incarnation: int = 1,
        *,
        run: str = RUN,
        patience_s: float = 60.0,
    ) -> None:
        self.name = name
        self._patience_s = patience_s
        self.incarnation = incarnation
        self._registry = RedisLearner(redis_url, run)
        self._store = store
        found = eventually(self._registry.read_entry, within_s=patience_s, what="the run in Redis")
        self.run = found.run
        self._settings = found.settings
        num = self.run.layout.num_fragments
        self._held: dict[int, FragmentState] = {}
        self._hashes: dict[int, str] = {}
        self.totals = [Amount() for _ in range(num)]
        self.seqs = [0] * num
        self.launches = [-1] * num
        self.waiting: dict[HandinId, Handin] = {}
        self.receipts: dict[HandinId, str] = {}
        self.reasons: dict[HandinId, str] = {}
        self.step = 1000  # seasoned: rounds open at once
        self._started_at = self._registry.now()
        self.register()

    def close(self) -> None:
        self._registry.close()

    def leave(self) -> None:
        """Say that this learner has ended."""
        self._registry.leave(msgspec.structs.replace(self._record(), state="left"))

    def register(self) -> None:
        joined = self._registry.register(self._record(), gone_s=20.0, takeover=True)
        assert not joined.refused, joined.refused

    def adopt(self) -> None:
        """Fetch and hash the newest version of every fragment."""
        for state in self._registry.read_fragments():
            data = self._store.get(state.published.key)
            self._held[state.fragment] = state
            self._hashes[state.fragment] = sha256(data)

    def beat(self) -> BeatReply:
        """Say that we train, repeat announcements, take receipts."""
        self.step += 1
        handins = list(self.waiting.values())
        reply = self._registry.beat(
            self._record(), handins, settings_digest=settings_digest(self._settings)
        )
        if reply.boot and not reply.registered:
            self.register()
        for receipt in reply.receipts:
            if self.waiting.pop(receipt.id, None) is not None:
                self.receipts[receipt.id] = receipt.fate
                self.reasons[receipt.id] = receipt.reason
        for id_ in reply.again:
            self.put_again(self.waiting[id_])
        return reply

    def open_round(self) -> Round:
        """The next open round that we have not handed in to."""

        def look() -> Round | None:
            rounds = [r for r in self.beat().rounds if r.launch > self.launches[r.fragment]]
            return rounds[0] if rounds else None

        return eventually(look, within_s=self._patience_s, what="an open round")

    def hand_in(
        self,
        round_: Round,
        *,
        values: Mapping[str, float] | None = None,
        tamper: Callable[[bytearray], bytes | None] | None = None,
    ) -> Handin:
        """Hand in to a round.

        Args:
            values: the first element, or the first block's scale, of the tensor of that name
                becomes this.
            tamper: makes of the payload what is put in its place; None puts nothing.
        """
        self.adopt()
        fragment = round_.fragment
        self.seqs[fragment] += 1
        self.launches[fragment] = round_.launch
        steps, tokens = 4, 4 * TOKENS_PER_STEP
        self.totals[fragment] += Amount(steps=steps, tokens=tokens)
        num = self.run.layout.num_fragments
        handin = Handin(
            learner=self.name,
            incarnation=self.incarnation,
            fragment=fragment,
            seq=self.seqs[fragment],
            lineage=self.run.lineage,
            line=round_.line,
            launch=round_.launch,
            oldest_base=self._held[fragment].version,
            held=tuple(self._held[p].version for p in range(num)),
            held_digest=held_digest(self._hashes),
            steps=steps,
            tokens=tokens,
            total=self.totals[fragment],
            codec=CODECS[self._settings.codec.up].tag,
            payload=NO_PAYLOAD,
            loss=1.0,
            step_s=0.01,
        )
        self._payload = self._encode(handin, values or {})
        key = ObjectKeys(self.run.name).contribution(*handin.id, sha256(self._payload))
        ref = ObjectRef(key=key, bytes=len(self._payload), sha256=sha256(self._payload))
        handin = msgspec.structs.replace(handin, payload=ref)
        put = self._payload if tamper is None else tamper(bytearray(self._payload))
        if put is not None:
            self._store.put(key, put)
        self.waiting[handin.id] = handin
        assert self._registry.announce(handin, incarnation=self.incarnation) == "accepted"
        return handin

    def put_again(self, handin: Handin) -> None:
        self._store.put(handin.payload.key, self._payload)
        self._registry.announce(handin, incarnation=self.incarnation)

    def receipt(self, handin: Handin) -> str:
        """The fate of a contribution, once it is known."""

        def look() -> str | None:
            self.beat()
            return self.receipts.get(handin.id)

        return eventually(look, within_s=self._patience_s, what=f"the receipt of {handin.id}")

    def contribute(self, num: int) -> None:
        """Hand in to the next rounds, one after the other; all must be merged."""
        for _ in range(num):
            fate = self.receipt(self.hand_in(self.open_round()))
            assert fate == "merged", fate

    def _encode(self, handin: Handin, values: Mapping[str, float]) -> bytes:
        specs = self.run.layout.by_fragment[handin.fragment]
        generator = torch.Generator().manual_seed(1000 * handin.fragment + handin.seq)
        deltas, buffers = {}, {}
        for spec in specs:
            if spec.kind == "parameter":
                deltas[spec.name] = torch.randn(spec.shape, generator=generator) * 0.1
            else:
                buffers[spec.name] = torch.full(spec.shape, handin.seq, dtype=torch.int64)
        codec = CODECS[self._settings.codec.up]
        encoded = encode_contribution(specs, deltas, buffers, codec, handin.header)
        for name, value in values.items():  # behind the encoder's back: it would refuse NaN
            parts = encoded.decoded[name].parts
            parts["" if "" in parts else "|s"].view(-1)[0] = value
        return bytes(encoded.buffer)

    def _record(self) -> LearnerRecord:
        held = tuple(state.version for _, state in sorted(self._held.items()))
        return LearnerRecord(
            id=self.name,
            incarnation=self.incarnation,
            lineage=self.run.lineage,
            host="test",
            state="training",
            started_at=self._started_at,
            step=self.step,
            step_s=0.01,
            tokens=self.step * TOKENS_PER_STEP,
            held=held,
        )
