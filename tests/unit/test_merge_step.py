"""A whole outer step of one fragment: by hand, untouched inputs, health, independence of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from ddl.codec.codecs import CODECS, Codec
from ddl.codec.contribution import decode_contribution, encode_contribution
from ddl.merge.examine import examine
from ddl.merge.layout import TensorInfo, plan_layout
from ddl.merge.movement import Movement
from ddl.merge.step import Merged, Offer, merge_fragment
from ddl.merge.tiles import Plain
from ddl.protocol.records import TensorSpec

INFOS = [
    TensorInfo(name="w", shape=(1, 2), dtype="float32", kind="parameter"),
    TensorInfo(name="b", shape=(2,), dtype="float32", kind="parameter"),
    TensorInfo(name="count", shape=(), dtype="int64", kind="buffer"),
]
SPECS = plan_layout(INFOS, num=1, method="rda", every_steps=24).tensors


def offer(w: Sequence[float], b: Sequence[float], count: int, weight: float) -> Offer:
    deltas = {"w": Plain(torch.tensor([w])), "b": Plain(torch.tensor(b))}
    return Offer(
        weight=weight,
        deltas=deltas,
        norms=examine(deltas, {}).norms,
        buffers={"count": torch.tensor(count)},
    )


def step(offers: Sequence[Offer], momentum: Mapping[str, Tensor] | None = None) -> Merged:
    master = {"w": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([1.0, 1.0])}
    return merge_fragment(SPECS, offers, master=master, momentum=momentum, lr=0.5, mu=0.5)


def test_a_step_by_hand() -> None:
    """Two learners of weights 3 and 1; the matrix takes RDA, the vector the mean, the counter max.

    w: deltas (4, 0) and (0, 8): RDA (4.743416, 1.581139), as in the test of RDA.
       buf = g, Theta = 1 - 0.5 * (g + 0.5 g) = 1 - 0.75 g = (-2.557562, -0.185854)
    b: deltas (4, 0) and (0, 8): mean (3, 2); Theta = 1 - 0.75 * (3, 2) = (-1.25, -0.5)
    step_norm: 0.75 * sqrt(|RDA|^2 + |mean|^2) = 0.75 * sqrt(25 + 13) = 4.623310
    cos_peers: RDA 0.790569, mean sqrt(13) / 5 = 0.721110; two elements each: 0.755840
    """
    merged = step([offer([4, 0], [4, 0], 7, 3.0), offer([0, 8], [0, 8], 5, 1.0)])
    assert merged.master["w"].tolist() == [pytest.approx([-2.557562, -0.185854], abs=1e-5)]
    assert merged.master["b"].tolist() == pytest.approx([-1.25, -0.5])
    assert merged.momentum["b"].tolist() == [3.0, 2.0]
    assert merged.buffers["count"].item() == 7
    assert merged.health.step_norm == pytest.approx(4.623310, abs=1e-5)
    assert merged.health.cos_peers == pytest.approx(0.755840, abs=1e-5)
    assert merged.health.cos_prev is None


def test_health_compares_with_the_momentum_before() -> None:
    """Gradient (3, 2, 3, 2) over both tensors against itself, its opposite, and zero."""
    one = [offer([3, 2], [3, 2], 0, 1.0)]
    same = {"w": torch.tensor([[6.0, 4.0]]), "b": torch.tensor([6.0, 4.0])}
    assert step(one, same).health.cos_prev == pytest.approx(1.0)
    opposite = {name: -value for name, value in same.items()}
    assert step(one, opposite).health.cos_prev == pytest.approx(-1.0)
    still = {name: value * 0 for name, value in same.items()}
    assert step(one, still).health.cos_prev is None
    assert step(one).health.cos_peers == 1.0
    assert step([offer([0, 0], [0, 0], 0, 1.0)] * 2).health.cos_peers is None


def test_momentum_alone_moves_the_master() -> None:
    """A round of zero deltas: buf = 0.5 * 0.4 = 0.2, Theta = 1 - 0.5 * 0.5 * 0.2 = 0.95."""
    momentum = {"w": torch.full((1, 2), 0.4), "b": torch.full((2,), 0.4)}
    merged = step([offer([0, 0], [0, 0], 0, 1.0)] * 2, momentum)
    assert merged.master["b"].tolist() == pytest.approx([0.95, 0.95])
    assert merged.momentum["w"].tolist() == [pytest.approx([0.2, 0.2])]


def test_inputs_stay_as_they_are_and_a_step_can_be_taken_again() -> None:
    """Same inputs, same bytes; nothing is shared with the result."""
    offers = [offer([4, 0], [4, 0], 7, 3.0), offer([0, 8], [0, 8], 5, 1.0)]
    momentum = {"w": torch.full((1, 2), 0.4), "b": torch.full((2,), 0.4)}
    first = step(offers, momentum)
    kept = {name: value.clone() for name, value in first.master.items()}
    for tensors in (first.master, first.momentum, first.buffers):
        for value in tensors.values():
            value.zero_()
    second = step(offers, momentum)
    assert all(torch.equal(second.master[name], kept[name]) for name in kept)
    assert momentum["b"].tolist() == pytest.approx([0.4, 0.4])
    assert second.buffers["count"].item() == 7


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_merging_payloads_equals_merging_what_they_decode_to(codec: Codec) -> None:
    """Reading a payload part by part gives the bits of decoding it first, on one thread or two."""
    generator = torch.Generator().manual_seed(3)
    infos = [
        TensorInfo(name="w", shape=(301, 331), dtype="float32", kind="parameter"),
        TensorInfo(name="b", shape=(77,), dtype="float32", kind="parameter"),
    ]
    specs = plan_layout(infos, num=1, method="rda", every_steps=24).tensors
    coded, plain = [], []
    for i in range(3):
        deltas = {s.name: torch.randn(s.shape, generator=generator) * 1e-3 for s in specs}
        payload = encode_contribution(specs, deltas, {}, codec, b"{}").buffer
        read = decode_contribution(payload, specs, codec.tag)
        norms = examine(read.deltas, {}).norms
        whole = {name: Plain(value.whole()) for name, value in read.deltas.items()}
        coded.append(Offer(weight=1.0 + i, deltas=read.deltas, norms=norms, buffers={}))
        plain.append(Offer(weight=1.0 + i, deltas=whole, norms=norms, buffers={}))
    master = {s.name: torch.randn(s.shape, generator=generator) for s in specs}
    results = []
    before = torch.get_num_threads()
    try:
        for offers, num_threads in ((coded, 1), (coded, 2), (plain, 1)):
            torch.set_num_threads(num_threads)
            results.append(
                merge_fragment(specs, offers, master=master, momentum=None, lr=0.6, mu=0.3)
            )
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert other.health == results[0].health
        for name in master:
            assert torch.equal(other.master[name], results[0].master[name])
            assert torch.equal(other.momentum[name], results[0].momentum[name])


@pytest.mark.parametrize("num", [1, 3])
def test_one_learner_with_outer_lr_1_and_no_momentum_trains_as_if_alone(num: int) -> None:
    """In one fragment or in several, Theta follows the lone learner: the whole loop is the identity.

    Theta - 1 * (R - theta) = theta when R = Theta: after hand-in and adoption theta is unchanged.
    """
    infos = [
        TensorInfo(name=f"p{i}", shape=(4, 5), dtype="float32", kind="parameter") for i in range(3)
    ]
    layout = plan_layout(infos, num=num, method="rda", every_steps=24)
    generator = torch.Generator().manual_seed(4)
    theta = {s.name: torch.randn(s.shape, generator=generator) for s in layout.tensors}
    alone = {name: value.clone() for name, value in theta.items()}
    master = {name: value.clone() for name, value in theta.items()}
    rows: list[tuple[TensorSpec, ...]] = list(layout.by_fragment)
    movements = [Movement(row) for row in rows]
    for movement in movements:
        movement.realign(master)
    for round_ in range(12):
        for name, value in theta.items():
            moved = torch.randn(value.shape, generator=generator) * 0.1
            theta[name] = value + moved
            alone[name] = alone[name] + moved
        movement, row = movements[round_ % num], rows[round_ % num]
        deltas = {name: Plain(value) for name, value in movement.hand_in(theta).items()}
        movement.handed_in(deltas)
        offers = [Offer(weight=1.0, deltas=deltas, norms=examine(deltas, {}).norms, buffers={})]
        merged = merge_fragment(row, offers, master=master, momentum=None, lr=1.0, mu=0.0)
        master.update(merged.master)
        theta.update(movement.adopt(theta, merged.master, mode="carry"))
    for name, value in theta.items():
        assert torch.allclose(value, alone[name], rtol=0, atol=1e-5)
