"""What a learner has moved is handed in once: nothing lost, nothing twice, no rounding as work."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddl.codec.codecs import CODECS, FP32, Codec
from ddl.codec.contribution import encode_contribution
from ddl.merge.movement import Mode, Movement
from ddl.merge.tiles import Plain
from ddl.protocol.records import TensorSpec

MODES: tuple[Mode, ...] = ("carry", "overwrite", "blend")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def specs(dtype: torch.dtype = torch.float32, size: int = 3) -> list[TensorSpec]:
    name = str(dtype).removeprefix("torch.")
    shapes: dict[str, tuple[int, ...]] = {"w": (size, 2), "b": ()}
    return [
        TensorSpec(name=n, shape=s, dtype=name, kind="parameter", rule="mean", fragment=0)
        for n, s in shapes.items()
    ]


def scalar() -> list[TensorSpec]:
    return specs()[1:]


def host(theta: dict[str, Tensor]) -> dict[str, Tensor]:
    """A snapshot: a copy in fp32."""
    return {name: value.to(torch.float32, copy=True) for name, value in theta.items()}


def hand_in(movement: Movement, theta: dict[str, Tensor], codec: Codec) -> dict[str, Tensor]:
    """One whole hand-in; gives what the coordinator decodes."""
    rows = movement._specs
    encoded = encode_contribution(rows, movement.hand_in(host(theta)), {}, codec, b"{}")
    movement.handed_in(encoded.decoded)
    return {name: coded.whole().clone() for name, coded in encoded.decoded.items()}


def draw(rows: list[TensorSpec], generator: torch.Generator, scale: float) -> dict[str, Tensor]:
    return {s.name: torch.randn(s.shape, generator=generator) * scale for s in rows}


def test_three_rounds_by_hand() -> None:
    """Adopting in the middle of an interval, with half of u kept: every number written out.

    Start: Theta = 1, so theta = R = 1.
    Two steps to theta = 0.6: u = -0.4. Hand in delta = R - theta = 0.4, so R = 1 - 0.4 = 0.6.
    One step to theta = 0.5: u = -0.1. v1 = 0.8 is adopted in the middle, alpha 0.5:
        theta = 0.8 + 0.5 * -0.1 = 0.75, R = 0.8, u = -0.05.
    One step to theta = 0.65: u = -0.15. Hand in 0.15, the half step before the adoption included
        and the 0.4 not once more; R = 0.8 - 0.15 = 0.65.
    v2 = 0.7 is adopted, nothing having moved: theta = 0.7. The next delta is 0.
    """
    movement = Movement(scalar())
    theta = movement.realign({"b": torch.tensor(1.0)})
    assert theta["b"].item() == pytest.approx(1.0)

    theta = {"b": torch.tensor(0.6)}
    assert hand_in(movement, theta, FP32)["b"].item() == pytest.approx(0.4)
    assert movement.anchor["b"].item() == pytest.approx(0.6)

    theta = movement.adopt(
        {"b": torch.tensor(0.5)}, {"b": torch.tensor(0.8)}, mode="blend", alpha=0.5
    )
    assert theta["b"].item() == pytest.approx(0.75)
    assert movement.anchor["b"].item() == pytest.approx(0.8)

    theta = {"b": torch.tensor(0.65)}
    assert hand_in(movement, theta, FP32)["b"].item() == pytest.approx(0.15)

    theta = movement.adopt(theta, {"b": torch.tensor(0.7)}, mode="blend", alpha=0.5)
    assert theta["b"].item() == pytest.approx(0.7)
    assert hand_in(movement, theta, FP32)["b"].item() == 0.0


@pytest.mark.parametrize(
    ("mode", "theta", "anchor"),
    [
        ("carry", 0.8 - 0.4 - 0.1, 0.8 - 0.4),
        ("blend", 0.8 - 0.5 * 0.4 - 0.5 * 0.1, 0.8 - 0.5 * 0.4),
        ("overwrite", 0.8, 0.8),
    ],
)
def test_what_is_in_flight_is_not_lost_meanwhile(mode: Mode, theta: float, anchor: float) -> None:
    """From 1 to 0.6, delta 0.4 handed in, on to 0.5; Theta = 0.8 has nothing of that, and is adopted
    (alpha 0.5). Then Theta = 0.3 has it: adopted, only what came after the hand-in is beyond it. What is
    handed in next is u, never the delta once more."""
    movement = Movement(scalar())
    movement.realign({"b": torch.tensor(1.0)})
    hand_in(movement, {"b": torch.tensor(0.6)}, FP32)
    now = {"b": torch.tensor(0.5)}
    moved = movement.adopt(now, {"b": torch.tensor(0.8)}, mode=mode, alpha=0.5, in_flight=True)
    assert moved["b"].item() == pytest.approx(theta)
    assert movement.anchor["b"].item() == pytest.approx(anchor)
    u = theta - anchor
    moved = movement.adopt(moved, {"b": torch.tensor(0.3)}, mode="carry")
    assert moved["b"].item() == pytest.approx(0.3 + u)
    assert hand_in(movement, moved, FP32)["b"].item() == pytest.approx(-u, abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "theta", "delta"),
    [
        ("carry", 2.0 - 0.3, 0.3),  # Theta + u; all of u is still to be handed in
        ("overwrite", 2.0, 0.0),  # Theta; u is gone
        ("blend", 2.0 - 0.25 * 0.3, 0.25 * 0.3),  # Theta + alpha * u
    ],
)
def test_what_each_mode_keeps_of_u(mode: Mode, theta: float, delta: float) -> None:
    """From theta = 1 - 0.3 = 0.7, u = -0.3, and Theta = 2 arriving; alpha 0.25."""
    movement = Movement(scalar())
    movement.realign({"b": torch.tensor(1.0)})
    moved = movement.adopt(
        {"b": torch.tensor(0.7)}, {"b": torch.tensor(2.0)}, mode=mode, alpha=0.25
    )
    assert moved["b"].item() == pytest.approx(theta)
    assert movement.hand_in(moved)["b"].item() == pytest.approx(delta, abs=1e-6)


def test_what_a_codec_leaves_out_goes_into_the_next_contribution() -> None:
    """By hand: u = -(0.8, 0.04) in int4 sends 0.8 as 8 * 0.1001 = 0.80078 and 0.04 as 0.

    Left in u: -(0.8 - 0.80078, 0.04) = (0.00078, -0.04). With no step in between the next delta is
    (-0.00078, 0.04): scale -0.04 / 8 = -0.0050, q of the first round(0.156) = 0, of the second -8.
    """
    rows = [vector(2)]
    movement = Movement(rows)
    movement.realign({"w": torch.zeros(2)})
    theta = {"w": torch.tensor([-0.8, -0.04])}
    assert hand_in(movement, theta, CODECS["int4"])["w"].tolist() == [0.80078125, 0.0]
    second = hand_in(movement, theta, CODECS["int4"])["w"]
    assert second[0].item() == 0.0
    assert second[1].item() == pytest.approx(0.04, rel=2**-8)


def vector(size: int) -> TensorSpec:
    return TensorSpec(
        name="w", shape=(size,), dtype="float32", kind="parameter", rule="mean", fragment=0
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_a_learner_that_does_not_move_hands_in_exactly_zero(
    mode: Mode, dtype: torch.dtype, codec: Codec
) -> None:
    """With lr 0 every delta is zero, through any number of adoptions and hand-ins."""
    rows = specs(dtype, size=40)
    generator = torch.Generator().manual_seed(7)
    movement = Movement(rows)
    theta = movement.realign(draw(rows, generator, 1.0))
    for _ in range(5):
        assert all(value.dtype == dtype for value in theta.values())
        for delta in hand_in(movement, theta, codec).values():
            assert torch.count_nonzero(delta) == 0
        theta = movement.adopt(theta, draw(rows, generator, 1.0), mode=mode, alpha=0.5)
        for delta in movement.hand_in(host(theta)).values():
            assert torch.count_nonzero(delta) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.tag)
def test_200_hand_ins_and_what_is_left_make_up_the_whole_movement(
    dtype: torch.dtype, codec: Codec
) -> None:
    """In carry mode the decoded deltas and u sum to what the optimizer did, to 1e-5.

    The movement is measured on theta itself, step by step in fp64, between adoptions of versions
    that have nothing to do with it.
    """
    rows = specs(dtype, size=40)
    generator = torch.Generator().manual_seed(8)
    movement = Movement(rows)
    theta = movement.realign(draw(rows, generator, 0.1))
    moved = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in rows}
    handed_in = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in rows}
    for round_ in range(200):
        for _ in range(3):
            step = draw(rows, generator, 1e-3)
            after = {name: (value.float() + step[name]).to(dtype) for name, value in theta.items()}
            for name, value in after.items():
                moved[name] += value.double() - theta[name].double()
            theta = after
        for name, delta in hand_in(movement, theta, codec).items():
            handed_in[name] += delta
        if round_ % 2:
            theta = movement.adopt(
                theta, draw(rows, generator, 0.1), mode="carry", in_flight=round_ % 4 == 1
            )
    for name, total in moved.items():
        left = theta[name].double() - movement.anchor[name].double()
        assert total.abs().max() > 1e-3
        assert torch.allclose(left - handed_in[name], total, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(DTYPES),
    codec=st.sampled_from(list(CODECS.values())),
    events=st.lists(
        st.sampled_from(["step", "hand in", "adopt", "adopt what lacks it", "realign"]), max_size=25
    ),
    seed=st.integers(0, 999),
)
def test_u_follows_its_definition_through_any_course_of_events(
    mode: Mode, dtype: torch.dtype, codec: Codec, events: list[str], seed: int
) -> None:
    """u grows by steps, falls by what was decoded, and is kept in part by adoptions."""
    rows = specs(dtype)
    generator = torch.Generator().manual_seed(seed)
    movement = Movement(rows)
    theta = movement.realign(draw(rows, generator, 1.0))
    u = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in rows}
    has_handed_in = False
    for event in events:
        if event == "step":
            step = draw(rows, generator, 0.05)
            after = {name: (value.float() + step[name]).to(dtype) for name, value in theta.items()}
            for name in u:
                u[name] += after[name].double() - theta[name].double()
            theta = after
        elif event == "hand in":
            for name, delta in hand_in(movement, theta, codec).items():
                u[name] += delta
            has_handed_in = True
        elif event.startswith("adopt"):
            lacks = has_handed_in and event != "adopt"
            published = draw(rows, generator, 1.0)
            theta = movement.adopt(theta, published, mode=mode, alpha=0.5, in_flight=lacks)
            has_handed_in = lacks
            keep = {"carry": 1.0, "overwrite": 0.0, "blend": 0.5}[mode]
            u = {name: value * keep for name, value in u.items()}
        else:
            theta = movement.realign(draw(rows, generator, 1.0))
            has_handed_in = False
            u = {name: torch.zeros_like(value) for name, value in u.items()}
        for name, expected in u.items():
            found = theta[name].double() - movement.anchor[name].double()
            assert torch.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_carrying_adds_u_to_the_published_version_within_the_parameters_precision(
    dtype: torch.dtype,
) -> None:
    """theta = Theta + u rounded once; and R with it makes up u again."""
    rows = specs(dtype)
    generator = torch.Generator().manual_seed(9)
    movement = Movement(rows)
    theta = movement.realign(draw(rows, generator, 1.0))
    theta = {name: (value.float() + 0.3).to(dtype) for name, value in theta.items()}
    u = {name: host(theta)[name] - movement.anchor[name] for name in theta}
    published = draw(rows, generator, 1.0)
    moved = movement.adopt(theta, published, mode="carry")
    for name, value in moved.items():
        assert torch.equal(value, (published[name] + u[name]).to(dtype))
        assert torch.allclose(value.float() - movement.anchor[name], u[name], rtol=0, atol=1e-6)


def test_a_diverged_learner_is_healed_by_overwriting_and_by_realigning() -> None:
    """NaN in u does not survive where u is thrown away."""
    sick, new = {"b": torch.tensor(torch.nan)}, {"b": torch.tensor(2.0)}
    movement = Movement(scalar())
    movement.realign({"b": torch.tensor(1.0)})
    assert movement.adopt(sick, new, mode="overwrite")["b"].item() == 2.0
    assert movement.anchor["b"].item() == 2.0
    movement.handed_in({"b": Plain(torch.tensor(torch.nan))})
    assert movement.realign(new)["b"].item() == movement.anchor["b"].item() == 2.0


def test_nothing_that_is_passed_in_is_changed_or_kept() -> None:
    """Snapshots, published versions and live weights stay as they are; the anchor owns its memory."""
    rows = specs()
    generator = torch.Generator().manual_seed(10)
    movement = Movement(rows)
    first, second = draw(rows, generator, 1.0), draw(rows, generator, 1.0)
    theta = draw(rows, generator, 1.0)
    copies = [host(tensors) for tensors in (first, second, theta)]
    movement.realign(first)
    movement.handed_in({name: Plain(value) for name, value in movement.hand_in(theta).items()})
    movement.adopt(theta, second, mode="carry")
    for tensors, copy in zip((first, second, theta), copies, strict=True):
        assert all(torch.equal(tensors[name], copy[name]) for name in copy)
    anchor = host(dict(movement.anchor))
    for tensors in (first, second, theta):
        for value in tensors.values():
            value.fill_(99.0)
    assert all(torch.equal(movement.anchor[name], anchor[name]) for name in anchor)


def test_a_snapshot_of_ones_own_can_take_the_delta() -> None:
    """`out` saves a fragment of memory."""
    movement = Movement(scalar())
    movement.realign({"b": torch.tensor(1.0)})
    snapshot = {"b": torch.tensor(0.25)}
    assert movement.hand_in(snapshot, out=snapshot)["b"] is snapshot["b"]
    assert snapshot["b"].item() == 0.75


def test_buffers_are_no_movement() -> None:
    """Only parameters have an anchor."""
    row = TensorSpec(name="n", shape=(), dtype="int64", kind="buffer", rule="max", fragment=0)
    movement = Movement([*scalar(), row])
    assert set(movement.realign({"b": torch.tensor(1.0)})) == set(movement.anchor) == {"b"}
