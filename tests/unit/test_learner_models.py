"""Models as people have them, through a whole round: hand-in, merge, publication, adoption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from ddl.codec.codecs import CODECS
from ddl.codec.contribution import decode_contribution, encode_contribution
from ddl.codec.fragment import decode_fragment, encode_fragment
from ddl.learner.port import ModelPort
from ddl.merge.inspect import describe_model
from ddl.merge.layout import plan_layout
from ddl.merge.movement import Movement
from ddl.merge.step import Offer, merge_fragment
from ddl.protocol.records import Layout, TensorSpec

TOKENS = torch.tensor([[0, 2, 1, 4], [3, 3, 0, 2]])


class TiedGpt(nn.Module):
    """Embedding and head are one tensor; beside it everything that is awkward to merge."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(6, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())
        self.register_buffer("positions", torch.arange(4, dtype=torch.int32))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.embedding(tokens)))
        return logits


class Side:
    """A learner without threads: its model, and the anchor of every fragment."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.model = model
        self.layout = layout
        self.port = ModelPort(model, layout)
        self.movements = [Movement(specs) for specs in layout.by_fragment]
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def adopt(self, published: Sequence[bytes], *, first: bool = False) -> None:
        for p, movement in enumerate(self.movements):
            version = decode_fragment(
                bytearray(published[p]), self.layout.by_fragment[p], "float32"
            )
            values = (
                movement.realign(version.weights)
                if first
                else movement.adopt(self.port.current(p), version.weights, mode="carry", alpha=0.5)
            )
            self.port.assign({**values, **version.buffers})

    def train(self, num: int) -> None:
        for _ in range(num):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(TOKENS).flatten(0, 1), TOKENS.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def hand_in(self, p: int) -> bytearray:
        copy, movement = self.port.read(p), self.movements[p]
        specs = self.layout.by_fragment[p]
        deltas = movement.hand_in(copy.parameters)
        encoded = encode_contribution(specs, deltas, copy.buffers, CODECS["fp32"], b"{}")
        movement.handed_in(encoded.decoded)
        return bytearray(encoded.buffer)


def merged(layout: Layout, published: Sequence[bytes], sides: Sequence[Side]) -> list[bytes]:
    """The next version of every fragment: outer learning rate 1, no momentum, equal weights."""
    after = []
    for p, specs in enumerate(layout.by_fragment):
        offers = []
        for side in sides:
            contribution = decode_contribution(side.hand_in(p), specs, CODECS["fp32"].tag)
            offers.append(
                Offer(
                    weight=1.0,
                    deltas=contribution.deltas,
                    norms={s.name: 1.0 for s in specs},
                    buffers=contribution.buffers,
                )
            )
        before = decode_fragment(bytearray(published[p]), specs, "float32")
        result = merge_fragment(specs, offers, master=before.weights, momentum=None, lr=1.0, mu=0.0)
        after.append(encoded(specs, result.master, result.buffers))
    return after


def encoded(
    specs: Sequence[TensorSpec], weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> bytes:
    return bytes(encode_fragment(specs, weights, buffers, "float32", b"{}").buffer)


@pytest.mark.parametrize("num_fragments", [1, 2])
def test_tied_compiled_and_full_of_buffers(num_fragments: int) -> None:
    """T10, T13, T22, T41: a plain learner and one that compiles. One copy of the tied tensor travels,
    and both names still share it; each buffer keeps its type and follows its rule; after adoption
    weights, anchor and published version agree."""
    torch.manual_seed(0)
    plain, other = TiedGpt(), TiedGpt()
    layout = plan_layout(
        describe_model(plain).infos, num=num_fragments, method="mean", every_steps=8
    )
    names = [spec.name for spec in layout.tensors]
    assert names.count("embedding.weight") + names.count("head.weight") == 1
    published = [
        encoded(
            specs,
            {s.name: plain.get_parameter(s.name).detach() for s in specs if s.kind == "parameter"},
            {s.name: plain.get_buffer(s.name) for s in specs if s.kind == "buffer"},
        )
        for specs in layout.by_fragment
    ]
    compiled = cast("nn.Module", torch.compile(other, backend="eager"))
    sides = [Side(plain, layout), Side(compiled, layout)]
    for side, num_steps in zip(sides, (2, 3), strict=True):
        side.adopt(published, first=True)
        side.train(num_steps)
    tied = [model.embedding.weight.detach().clone() for model in (plain, other)]
    assert not tied[0].equal(tied[1])

    published = merged(layout, published, sides)
    for side in sides:
        side.adopt(published)
    for model in (plain, other):
        assert model.head.weight is model.embedding.weight
        torch.testing.assert_close(model.embedding.weight.detach(), (tied[0] + tied[1]) / 2)
        buffers = dict(model.named_buffers())
        assert buffers["norm.num_batches_tracked"].equal(torch.tensor(3))
        assert buffers["mask"].equal(torch.ones(4, 4).tril().bool())
        assert buffers["positions"].equal(torch.arange(4, dtype=torch.int32))
        assert model.nothing.shape == (0, 4)
    for p, specs in enumerate(layout.by_fragment):
        version = decode_fragment(bytearray(published[p]), specs, "float32")
        for side in sides:
            for name, value in side.port.current(p).items():
                assert value.equal(version.weights[name]), name
            assert all(
                not u.any() for u in side.movements[p].hand_in(side.port.current(p)).values()
            )
