"""The fused loops against plain torch: the same encoded and decoded bits, results within 2 ulp."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddl.codec.codecs import CODECS, BlockCodec, Codec, Coded
from ddl.errors import ConfigError
from ddl.fused.choice import loops
from ddl.fused.shares import SHARE, in_shares
from ddl.fused.sizes import TILE
from ddl.merge.choice import SMALL, chosen_kernel, kernel_by_name
from ddl.merge.combine import Delta, combine
from ddl.merge.kernel import Kernel, Outer
from ddl.merge.memory import empty
from ddl.merge.tiles import Flat, Plain
from ddl.merge.torch_kernel import TORCH
from ddl.protocol.records import Rule

SIZES = [0, 1, 63, 64, 65, 1023, 1024, 1025, TILE - 1, TILE, TILE + 1, SHARE + 64, 2 * SHARE + 129]
"""On and around the borders of blocks, strips, tiles and shares."""

sizes = st.one_of(st.sampled_from(SIZES[:-2]), st.integers(0, 3000))


@pytest.fixture(scope="module")
def fused() -> Kernel:
    return kernel_by_name("numba/1")


def draw(size: int, seed: int, scale: float = 1e-3) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def coded(codec: Codec, value: Tensor) -> Coded:
    plans = codec.plan("x", tuple(value.shape))
    parts = {key: torch.empty(plan.shape, dtype=plan.dtype) for key, plan in plans.items()}
    codec.encode(value.reshape(-1), parts)
    return Coded(codec, tuple(value.shape), parts)


def bits(value: Tensor) -> Tensor:
    return value.reshape(-1).view(torch.int32)


def ulps(left: Tensor, right: Tensor, scale: Tensor) -> float:
    """Largest difference in units of the last place of `scale`, elementwise."""
    exponent = torch.frexp(scale.abs().double().clamp(min=2.0**-126)).exponent
    unit = torch.ldexp(torch.ones_like(scale, dtype=torch.float64), exponent - 24)
    return float(((left.double() - right.double()).abs() / unit).max()) if left.numel() else 0.0


@pytest.mark.parametrize("codec", [CODECS["int8"], CODECS["int4"]], ids=lambda codec: codec.tag)
@pytest.mark.parametrize("size", SIZES)
def test_blocks_are_encoded_and_decoded_to_the_same_bits(codec: BlockCodec, size: int) -> None:
    """Values of all magnitudes, zeros, ties and subnormals among them, in whole and partial blocks."""
    value = draw(size, seed=size) * torch.exp(draw(size, seed=size + 1, scale=8.0))
    value[::5] = 0.0
    value[3::64] = value[2::64][: len(value[3::64])]  # two extremes of one magnitude
    value[7::64] = -value[2::64][: len(value[7::64])]
    value[:64] *= 1e-38
    ours = coded(codec, value)
    theirs = {key: torch.empty_like(part) for key, part in ours.parts.items()}
    codec._encode(value, theirs)
    assert all(torch.equal(ours.parts[key], theirs[key]) for key in theirs)
    expected = codec._decode(theirs, 0, size, torch.empty(size))
    assert torch.equal(bits(ours.whole()), bits(expected))


@settings(max_examples=60)
@given(
    size=sizes,
    num=st.integers(1, 8),
    name=st.sampled_from(["fp32", "bf16", "int8", "int4", "mixed"]),
    rule=st.sampled_from(["rda", "mean", "heaviest"]),
    first=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_step_agrees_with_plain_torch(
    fused: Kernel, size: int, num: int, name: str, rule: Rule, first: bool, seed: int
) -> None:
    """Norms to 1e-14, gradient, momentum and master within 2 ulp, whatever form and number."""
    names = list(CODECS)
    codecs = [CODECS[names[i % 4] if name == "mixed" else name] for i in range(num)]
    flats = [coded(codec, draw(size, seed * 10 + i)) for i, codec in enumerate(codecs)]
    master, momentum = draw(size, seed + 1, 0.1), None if first else draw(size, seed + 2)
    results = []
    for kernel in (fused, TORCH):
        deltas = [Delta(flat, 1.0 + i, kernel.norm(flat)) for i, flat in enumerate(flats)]
        gradient = combine(rule, deltas, kernel, torch.empty(size))
        into = Outer(torch.empty(size), torch.empty(size))
        value = gradient.value
        dots = kernel.step(gradient.total, gradient.scale, master, momentum, into, lr=0.7, mu=0.4)
        norms = [delta.norm for delta in deltas]
        results.append((value, into, [*norms, gradient.norm, gradient.cosine or 0.0, *dots]))
    (ours, our_state, our_numbers), (theirs, their_state, their_numbers) = results
    assert our_numbers == pytest.approx(their_numbers, rel=1e-12, abs=1e-18)
    assert ulps(ours, theirs, theirs) <= 2
    assert ulps(our_state.momentum, their_state.momentum, theirs.abs() + their_state.momentum) <= 2
    assert ulps(our_state.master, their_state.master, their_state.master) <= 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", list(CODECS))
def test_threads_change_no_bit(fused: Kernel, name: str, size: int) -> None:
    """One thread and three give the same bytes and sums, and the same again."""
    flats: list[Flat] = [coded(CODECS[name], draw(size, seed=i)) for i in range(3)]
    master, momentum = draw(size, 8), draw(size, 9)
    seen = []
    before = torch.get_num_threads()
    try:
        for num in (1, 3, 3):
            torch.set_num_threads(num)
            out, into = torch.empty(size), Outer(torch.empty(size), torch.empty(size))
            numbers = [fused.norm(flat) for flat in flats]
            numbers.append(fused.add_up(flats, [0.5, 0.3, 0.2], out))
            numbers += fused.step(out, 1.5, master, momentum, into, lr=0.6, mu=0.3)
            seen.append((numbers, bits(out), bits(into.master), bits(into.momentum)))
    finally:
        torch.set_num_threads(before)
    for numbers, *tensors in seen[1:]:
        assert numbers == seen[0][0]
        assert all(torch.equal(a, b) for a, b in zip(tensors, seen[0][1:], strict=True))


def test_a_plain_tensor_of_any_type_is_read(fused: Kernel) -> None:
    """Also one that is not contiguous; half precision and doubles count as fp32."""
    whole = draw(200, seed=1, scale=1.0).view(10, 20)
    for value in (whole.t(), whole.half(), whole.bfloat16().t(), whole.double()):
        expected = TORCH.norm(Plain(value.float()))
        assert fused.norm(Plain(value)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1023, 1024, TILE, TILE + 6])
def test_no_value_that_is_not_finite_escapes(fused: Kernel, bad: float, place: int) -> None:
    """Wherever it lies, the norm is NaN; infinities of both signs do not cancel."""
    value = draw(TILE + 7, seed=0)
    value[place] = bad
    value[5] = -bad
    assert math.isnan(fused.norm(Plain(value)))
    assert math.isnan(fused.norm(Plain(value.bfloat16())))


def test_the_step_may_write_over_the_sum_it_reads(fused: Kernel) -> None:
    """As `merge_fragment` does it, to save the memory of one more tensor."""
    total, master, momentum = draw(TILE + 3, 0), draw(TILE + 3, 1), draw(TILE + 3, 2)
    apart = Outer(torch.empty_like(total), torch.empty_like(total))
    dots = fused.step(total, 2.0, master, momentum, apart, lr=0.6, mu=0.3)
    over = Outer(total, torch.empty_like(total))
    assert fused.step(total, 2.0, master, momentum, over, lr=0.6, mu=0.3) == dots
    assert torch.equal(over.master, apart.master)
    assert torch.equal(over.momentum, apart.momentum)


def test_shares_cover_all_and_hand_on_what_goes_wrong() -> None:
    """Every element once, at borders of tiles, and an error of one share is the caller's."""
    before = torch.get_num_threads()
    try:
        for num in (1, 2):
            torch.set_num_threads(num)
            parts: list[tuple[int, int]] = []
            in_shares(3 * SHARE + 5, lambda *part, parts=parts: parts.append(part))
            assert sum(stop - start for start, stop in parts) == 3 * SHARE + 5
            assert all(start % TILE == 0 for start, _ in parts)
            with pytest.raises(ZeroDivisionError):
                in_shares(3 * SHARE, lambda start, stop: 1 // 0)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    in_shares(0, lambda start, stop: pytest.fail("nothing to do"))


def test_large_memory_has_its_shape() -> None:
    """From the size of huge pages on, and below; each tensor by itself."""
    for shape in ((), (0, 3), (7,), (1025, 1024)):
        first, second = empty(shape).fill_(1.0), empty(shape).fill_(2.0)
        assert first.shape == shape
        assert first.dtype is torch.float32
        assert bool((first == 1.0).all())
        assert second.is_contiguous()


# ---- the choice, in a process of its own since it is made once in each --------------------------

REPORT = """
import sys
from ddl.merge.choice import SMALL, chosen_kernel
small = chosen_kernel(SMALL - 1).name
loaded = "numba" in sys.modules
print(small, loaded, chosen_kernel(SMALL).name)
"""
WITHOUT_NUMBA = f"import sys; sys.modules['numba'] = None\n{REPORT}"


@pytest.mark.parametrize(
    ("wanted", "code", "names"),
    [
        (None, REPORT, "torch/1 False numba/1"),
        ("numba", REPORT, "numba/1 True numba/1"),
        ("torch", REPORT, "torch/1 False torch/1"),
        (None, WITHOUT_NUMBA, "torch/1 True torch/1"),
    ],
)
def test_the_kernel_is_chosen_by_size_by_what_is_there_and_by_the_environment(
    wanted: str | None, code: str, names: str
) -> None:
    """Fused for large fragments where numba is; plain torch without it, or when asked for. Small
    fragments are merged by torch, and numba is not even imported for them, unless asked for.
    """
    assert run(code, wanted).stdout.strip() == names


def test_a_kernel_that_cannot_be_had_is_an_error_if_it_was_asked_for() -> None:
    """And so is a name that nobody knows."""
    for wanted, code, sentence in (
        ("numba", WITHOUT_NUMBA, "DDL_KERNEL is numba, which cannot be imported"),
        ("cuda", REPORT, "DDL_KERNEL is 'cuda'"),
    ):
        result = run(code, wanted)
        assert result.returncode != 0
        assert sentence in result.stderr


@pytest.mark.parametrize("fault", [RuntimeError("no locator available"), OSError(28, "full")])
def test_code_is_compiled_where_no_cache_can_be_written(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder for the cache, or no space in it: the code runs all the same."""
    from numba.core.caching import FunctionCache

    from ddl.fused.loops import _compiled

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(FunctionCache, "save_overload", fail)

    def add_one(x: int) -> int:
        return x + 1

    assert _compiled("int64(int64)")(add_one)(1) == 2


def run(code: str, wanted: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "DDL_KERNEL"}
    if wanted is not None:
        environment["DDL_KERNEL"] = wanted
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_records_name_kernels_that_can_be_found_again() -> None:
    """By the names that merges report; an unknown one is told with its name."""
    assert loops() is not None
    assert kernel_by_name(chosen_kernel(SMALL).name).name == chosen_kernel(SMALL).name
    assert kernel_by_name("torch/1") is TORCH
    with pytest.raises(ConfigError, match="'numba/0'"):
        kernel_by_name("numba/0")
