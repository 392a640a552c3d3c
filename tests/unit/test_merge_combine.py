"""Mean, RDA and heaviest, by hand and by their properties; buffers by rule."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddl.codec.codecs import CODECS, Codec, Coded
from ddl.fused.sizes import TILE
from ddl.merge.buffers import merge_buffer
from ddl.merge.combine import Combined, Delta
from ddl.merge.combine import combine as combine_into
from ddl.merge.examine import examine
from ddl.merge.kernel import Kernel
from ddl.merge.tiles import Flat, Plain, dot
from ddl.protocol.records import Rule


@contextmanager
def threads(num: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def delta(values: Tensor | Flat, weight: float = 1.0) -> Delta:
    flat = Plain(values) if isinstance(values, Tensor) else values
    return Delta(flat, weight, examine({"x": flat}, {}).norms["x"])


def combine(kernel: Kernel, rule: Rule, deltas: Sequence[Delta]) -> Combined:
    return combine_into(rule, deltas, kernel, torch.empty(deltas[0].values.shape))


def combined(
    kernel: Kernel, rule: Rule, rows: Sequence[Sequence[float]], weights: Sequence[float]
) -> Combined:
    return combine(
        kernel, rule, [delta(torch.tensor(row), w) for row, w in zip(rows, weights, strict=True)]
    )


def draw(num: int, size: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(num)]


def test_mean_by_hand(kernel: Kernel) -> None:
    """(3 * (4, 0) + 1 * (0, 8)) / 4 = (3, 2).

    Cosine: |(3, 2)| / (0.75 * 4 + 0.25 * 8) = 3.60555 / 5.
    """
    result = combined(kernel, "mean", [[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])
    assert result.value.tolist() == [3.0, 2.0]
    assert result.cosine == pytest.approx(math.sqrt(13) / 5)


def test_rda_by_hand(kernel: Kernel) -> None:
    """Deltas (4, 0) of weight 3 and (0, 8) of weight 1; shares 3/4 and 1/4.

    Radius: 3/4 * 4 + 1/4 * 8 = 5. Direction: 3/4 * (1, 0) + 1/4 * (0, 1) = (0.75, 0.25), of length
    0.790569. RDA = 5 * (0.75, 0.25) / 0.790569 = (4.743416, 1.581139), of length 5.
    Cap: M_eff = 16 / (9 + 1) = 1.6, mean (3, 2) of length 3.6056: 2 * 1.2649 * 3.6056 = 9.12 > 5.
    """
    result = combined(kernel, "rda", [[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])
    assert result.value.tolist() == pytest.approx([4.743416, 1.581139], abs=1e-6)
    assert result.cosine == pytest.approx(0.790569, abs=1e-6)


def test_rda_leaves_zero_vectors_out(kernel: Kernel) -> None:
    """A learner that never met a tensor neither turns nor shortens the others' direction."""
    with_zero = combined(kernel, "rda", [[4.0, 0.0], [0.0, 0.0], [0.0, 8.0]], [3.0, 9.0, 1.0])
    without = combined(kernel, "rda", [[4.0, 0.0], [0.0, 8.0]], [3.0, 1.0])
    assert torch.equal(with_zero.value, without.value)
    nothing = combined(kernel, "rda", [[0.0], [0.0]], [1.0, 1.0])
    assert (nothing.value.tolist(), nothing.norm, nothing.cosine) == ([0.0], 0.0, None)
    assert combined(kernel, "rda", [[0.0], [-7.0]], [5.0, 1.0]).value.tolist() == [-7.0]


def test_rda_of_nearly_opposite_deltas_is_capped(kernel: Kernel) -> None:
    """d = (1, 0) and (-1, 0.1) of equal weight.

    Lengths 1 and 1.0049876, mean of norms 1.0024938. Mean vector (0, 0.05), of length 0.05.
    M_eff = 2, so at most 2 * sqrt(2) * 0.05 = 0.1414214 instead of 1.0024938.
    """
    result = combined(kernel, "rda", [[1.0, 0.0], [-1.0, 0.1]], [1.0, 1.0])
    assert float(result.value.norm()) == pytest.approx(2 * math.sqrt(2) * 0.05, rel=1e-5)


def test_rda_of_cancelling_directions_is_the_mean(kernel: Kernel) -> None:
    """(3, 0) and (-1, 0): unit vectors cancel, so what is left is the mean (1, 0)."""
    result = combined(kernel, "rda", [[3.0, 0.0], [-1.0, 0.0]], [1.0, 1.0])
    assert result.value.tolist() == [1.0, 0.0]
    third = torch.randn(100, generator=torch.Generator().manual_seed(0))
    rounded = combine(kernel, "rda", [delta(third * 0.3), delta(third * -0.9)])
    assert torch.allclose(rounded.value, third * -0.3, rtol=1e-6)


def test_rda_keeps_the_length_that_the_mean_of_orthogonal_deltas_loses(kernel: Kernel) -> None:
    """Eight orthogonal deltas of length 5: the mean has 5 / sqrt(8), RDA has 5."""
    deltas = [delta(row * 5) for row in torch.eye(8)]
    assert float(combine(kernel, "mean", deltas).value.norm()) == pytest.approx(5 / math.sqrt(8))
    assert float(combine(kernel, "rda", deltas).value.norm()) == pytest.approx(5)


def test_the_heaviest_is_copied_and_of_equal_weights_the_first(kernel: Kernel) -> None:
    """Nothing is mixed."""
    result = combined(kernel, "heaviest", [[1.0], [2.0], [3.0]], [1.0, 5.0, 5.0])
    assert result.value.tolist() == [2.0]
    assert result.cosine is None


@pytest.mark.parametrize("rule", ["mean", "rda", "heaviest"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_one_contribution_is_copied_bit_for_bit(kernel: Kernel, rule: Rule, codec: Codec) -> None:
    """A lone learner's movement is the outer gradient, whatever its weight; -0.0 stays -0.0."""
    value = torch.randn(100, generator=torch.Generator().manual_seed(1)) * 1e-4
    value[3] = -0.0
    parts = {k: torch.empty(p.shape, dtype=p.dtype) for k, p in codec.plan("x", (100,)).items()}
    codec.encode(value, parts)
    coded = Coded(codec, (100,), parts)
    result = combine(kernel, rule, [delta(coded, 0.1)])
    assert torch.equal(result.value.view(torch.int32), coded.whole().view(torch.int32))
    assert result.cosine == 1.0
    result.value.zero_()
    assert torch.count_nonzero(coded.whole()) > 0


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, TILE - 1, TILE, TILE + 1, 3 * TILE + 77])
@pytest.mark.parametrize("rule", ["mean", "rda"])
def test_results_do_not_depend_on_the_number_of_threads(
    kernel: Kernel, rule: Rule, size: int
) -> None:
    """Bit for bit the same with one thread and with two, on and around the borders of tiles."""
    results = []
    for num in (1, 2):
        with threads(num):
            deltas = [delta(v, 1.0 + i) for i, v in enumerate(draw(3, size, seed=size))]
            results.append((combine(kernel, rule, deltas), [d.norm for d in deltas]))
    (one, one_norms), (two, two_norms) = results
    assert torch.equal(one.value, two.value)
    assert one.cosine == two.cosine
    assert one_norms == two_norms


@pytest.mark.parametrize("rule", ["mean", "rda"])
@pytest.mark.parametrize("size", [1, 65, TILE, TILE + 130])
def test_tiles_change_nothing_about_the_formula(kernel: Kernel, rule: Rule, size: int) -> None:
    """The tiled result agrees with the formula written with whole tensors in fp64."""
    values, weights = draw(4, size, seed=2), [1.0, 2.0, 3.0, 10.0]
    result = combine(kernel, rule, [delta(v, w) for v, w in zip(values, weights, strict=True)])
    rows, w = torch.stack(values).double(), torch.tensor(weights, dtype=torch.float64)[:, None]
    mean = (w * rows).sum(0) / w.sum()
    expected = mean
    if rule == "rda":
        norms = rows.norm(dim=1, keepdim=True)
        direction = (w * rows / norms).sum(0) / w.sum()
        length = (w * norms).sum() / w.sum()
        cap = 2 * (w.sum() / w.square().sum().sqrt()) * mean.norm()
        expected = direction / direction.norm() * torch.minimum(length, cap)
    assert torch.allclose(result.value.double(), expected, rtol=1e-6, atol=1e-7)


@settings(max_examples=80, deadline=None)
@given(
    num=st.integers(1, 6),
    size=st.integers(1, 200),
    scale=st.sampled_from([1e-20, 1e-4, 1.0, 1e10]),
    seed=st.integers(0, 999),
    rule=st.sampled_from(["mean", "rda"]),
    order=st.randoms(use_true_random=False),
)
def test_order_scale_and_length(
    kernel: Kernel, num: int, size: int, scale: float, seed: int, rule: Rule, order: random.Random
) -> None:
    """Order does not matter beyond 1e-6, scale passes through, and lengths keep their bounds."""
    values = draw(num, size, seed)
    weights = [0.5 + i for i in range(num)]
    rows = [delta(v * scale, w) for v, w in zip(values, weights, strict=True)]
    result = combine(kernel, rule, rows)
    length = float(result.value.double().norm())

    order.shuffle(rows)
    other = combine(kernel, rule, rows).value.double()
    assert float((other - result.value.double()).norm()) <= 1e-6 * max(length, scale * 1e-3)

    largest = max(row.norm for row in rows)
    assert length <= largest * (1 + 1e-6)
    mean_length = float(combine(kernel, "mean", rows).value.double().norm())
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    assert length <= 2 * math.sqrt(effective) * mean_length * (1 + 1e-5)
    assert result.cosine is None or -1e-9 <= result.cosine <= 1 + 1e-9


def test_an_empty_and_a_scalar_tensor_are_combined_too(kernel: Kernel) -> None:
    """Shapes come back as they were."""
    for shape in ((0, 4), (), (1, 1)):
        result = combine(kernel, "mean", [delta(torch.ones(shape)), delta(torch.ones(shape) * 3)])
        assert result.value.shape == shape
        assert torch.equal(result.value, torch.full(shape, 2.0))


def test_dot_holds_where_fp32_does_not() -> None:
    """Small products survive large ones of both signs, for any number of threads."""
    left = torch.full((TILE + 5,), 1e-3)
    left[0], left[-1] = 1e8, -1e8
    sums = []
    for num in (1, 2):
        with threads(num):
            sums.append(dot(left, torch.ones_like(left)))
    assert sums[0] == sums[1] == pytest.approx((TILE + 3) * float(left[1]), rel=1e-6)
    assert math.isnan(dot(torch.tensor([math.inf]), torch.tensor([1.0])))


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("mean", [torch.tensor([2.0]), torch.tensor([6.0])], torch.tensor([5.0])),
        ("mean", [torch.tensor(0.1).half(), torch.tensor(0.3).half()], torch.tensor(0.25).half()),
        ("max", [torch.tensor([7, 1]), torch.tensor([2, 2**60 + 1])], torch.tensor([7, 2**60 + 1])),
        ("heaviest", [torch.tensor([True]), torch.tensor([False])], torch.tensor([False])),
        ("heaviest", [torch.tensor(5), torch.tensor(4)], torch.tensor(4)),
    ],
)
def test_buffers_by_rule(rule: Rule, values: list[Tensor], expected: Tensor) -> None:
    """Weights 1 and 3, so (1 * 2 + 3 * 6) / 4 = 5. Types are kept, counters exact, masks unmixed."""
    result = merge_buffer(rule, values, [1.0, 3.0])
    assert result.dtype == expected.dtype
    if expected.is_floating_point():
        assert torch.allclose(result, expected)
    else:
        assert torch.equal(result, expected)


@pytest.mark.parametrize("rule", ["mean", "max", "heaviest"])
def test_a_merged_buffer_has_memory_of_its_own(rule: Rule) -> None:
    """Neither one value nor several are changed by, or shared with, the result."""
    for values in ([torch.tensor([2.0])], [torch.tensor([2.0]), torch.tensor([1.0])]):
        merge_buffer(rule, values, [1.0, 1.0][: len(values)]).fill_(9.0)
        assert [float(value) for value in values] == [2.0, 1.0][: len(values)]
