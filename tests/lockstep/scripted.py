"""A learner that follows a script: what it hands in depends on the round alone, not on its pace.

So two runs whose timing differs can be compared byte for byte, and hand-ins arrive at chosen
instants. It holds whatever is newest, and keeps the same books as a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import encode_contribution
from ddl.core import events as e
from ddl.protocol.keys import handin_field
from ddl.protocol.records import (
    NO_PAYLOAD,
    Amount,
    Handin,
    LearnerRecord,
    ObjectRef,
    Round,
    TensorSpec,
    held_digest,
)
from ddl.protocol.wire import digest

if TYPE_CHECKING:
    from tests.lockstep.runner import Run

Delta = Callable[[str, Round, TensorSpec], Tensor]


def seeded(name: str, round_: Round, spec: TensorSpec) -> Tensor:
    """Random numbers that depend on the learner, the fragment and the version only."""
    text = f"{name}/{spec.name}/{round_.fragment}/{round_.version_before}"
    seed = int(digest(text.encode())[:8], 16)
    return torch.randn(spec.shape, generator=torch.Generator().manual_seed(seed))


class Scripted:
    """Answers every open round, `post_s` seconds after it sees it open, unless it still waits for
    a receipt of that fragment.

    Attributes:
        handins: all that was handed in, as announced.
        forge: what becomes of an announcement on its way; None loses it.
        store: what becomes of a payload on its way; None loses it.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        *,
        incarnation: int = 1,
        post_s: Callable[[Round], float] = lambda _: 0.5,
        delta: Delta = seeded,
        steps: int = 8,
        tokens: int = 800,
        step_s: float = 1.0,
        store_down_s: float = 0.0,
    ) -> None:
        self.run = run
        self.name = name
        self.incarnation = incarnation
        self.handins: list[Handin] = []
        self.forge: Callable[[Handin], Handin | None] = lambda handin: handin
        self.store: Callable[[Handin, bytes], bytes | None] = lambda _, data: data
        self.alive = True
        self.started_at = run.time.now
        self.store_down_s = store_down_s
        self.realigns = 1
        self.step = 100
        self._post_s = post_s
        self._delta = delta
        self._amount = Amount(steps=steps, tokens=tokens)
        self._step_s = step_s
        self._total: dict[int, Amount] = {}
        self._seq: dict[int, int] = {}
        self._launch: dict[int, int] = {}
        self._spool: dict[str, tuple[Handin, bytes]] = {}
        run.scripted[name] = self
        run.services.listeners.append(self._on_news)
        self._beat()

    def books(self) -> Iterator[tuple[int, int, Amount, Amount]]:
        """Per fragment: last seq, everything handed in, and the last contribution alone."""
        for fragment, seq in self._seq.items():
            yield fragment, seq, self._total[fragment], self._amount

    def kill(self) -> None:
        """End at once, as by SIGKILL."""
        self.alive = False

    def _beat(self) -> None:
        if not self.alive:
            return
        self.step += 1
        fragments = self.run.services.fragments
        record = LearnerRecord(
            id=self.name,
            incarnation=self.incarnation,
            lineage=self.run.record.lineage,
            state="training",
            started_at=self.started_at,
            step=self.step,
            step_s=self._step_s,
            held=tuple(fragments[p].version for p in sorted(fragments)),
            realigns=self.realigns,
            store_down_s=self.store_down_s,
        )
        self.run.services.beat(record, [], self.run.time.now)
        if self.run.coordinator is not None:
            self.run.coordinator.tell(e.Beat(record, self.run.time.now))
        self.run.time.after(1.0, self._beat)

    def _on_news(self) -> None:
        if not self.alive:
            return
        for field, (handin, data) in self._spool.items():
            if handin.id in self.run.services.asked:
                self.run.time.after(0.2, lambda h=handin, d=data: self._send(h, d))  # type: ignore[misc]
            assert field == self._field(handin.fragment)
        for round_ in self.run.services.rounds:
            waits = self._seq.get(round_.fragment, 0) > self._receipted(round_.fragment)
            if round_.launch > self._launch.get(round_.fragment, -1) and not waits:
                self._launch[round_.fragment] = round_.launch
                handin, data = self._hand_in(round_)
                self._spool[self._field(round_.fragment)] = handin, data
                delay_s = self._post_s(round_)
                self.run.time.after(delay_s, lambda h=handin, d=data: self._send(h, d))  # type: ignore[misc]

    def _field(self, fragment: int) -> str:
        return handin_field(self.name, self.incarnation, fragment)

    def _receipted(self, fragment: int) -> int:
        receipt = self.run.services.receipts.get(self._field(fragment))
        return receipt.seq if receipt else 0

    def _hand_in(self, round_: Round) -> tuple[Handin, bytes]:
        run, p = self.run, round_.fragment
        self._seq[p] = self._seq.get(p, 0) + 1
        self._total[p] = self._total.get(p, Amount()) + self._amount
        fragments = run.services.fragments
        codec = CODECS[run.record.settings.codec.up]
        handin = Handin(
            learner=self.name,
            incarnation=self.incarnation,
            fragment=p,
            seq=self._seq[p],
            lineage=run.record.lineage,
            line=round_.line,
            launch=round_.launch,
            oldest_base=round_.version_before,
            held=tuple(fragments[q].version for q in sorted(fragments)),
            held_digest=held_digest({q: s.published.sha256 for q, s in fragments.items()}),
            steps=self._amount.steps,
            tokens=self._amount.tokens,
            total=self._total[p],
            codec=codec.tag,
            payload=NO_PAYLOAD,
        )
        specs = run.layout.by_fragment[p]
        deltas = {spec.name: self._delta(self.name, round_, spec) for spec in specs}
        encoded = encode_contribution(specs, deltas, {}, codec, handin.header)
        key = run.keys.contribution(*handin.id, encoded.sha256)
        payload = ObjectRef(key=key, bytes=len(encoded.buffer), sha256=encoded.sha256)
        handin = msgspec.structs.replace(handin, payload=payload)
        return handin, bytes(encoded.buffer)

    def _send(self, handin: Handin, data: bytes) -> None:
        if not self.alive:
            return
        body = self.store(handin, data)
        if body is not None:
            self.run.services.objects[handin.payload.key] = body
        forged = self.forge(handin)
        if forged is None:
            return
        if handin not in self.handins:
            self.handins.append(handin)
        if self.run.services.announce(forged) and self.run.coordinator is not None:
            self.run.coordinator.tell(e.Announced(forged))
