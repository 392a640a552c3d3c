"""Whole runs in virtual time: what comes out of them is what the arithmetic says."""

from __future__ import annotations

import msgspec
import pytest
import torch

from ddl.config import (
    AdoptSettings,
    CodecSettings,
    FragmentSettings,
    MergeSettings,
    OuterSettings,
    StopSettings,
)
from ddl.merge.inspect import describe_model
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.tasks import (
    ConstantGradient,
    Regression,
    make_regression_model,
    regression_loss,
)

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])
MODES = ("carry", "overwrite", "blend")


@ONE_AND_MANY
def test_a_run_of_equal_learners_merges_all_they_do(num_fragments: int) -> None:
    """Three learners in one pace: once the pace is found every round has all three, none is late."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name in "abc":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1))
    run.go(commits=12 * num_fragments)
    checked(run)
    steps = [r for r in run.records() if r.kind == "step"]
    assert all(len(r.receipts) == 3 and not r.carried for r in steps[-num_fragments:])
    assert {r.fate for r in run.receipts()} == {"merged"}
    assert {f.version for f in run.services.fragments.values()} == {12}


def test_two_outer_steps_by_hand() -> None:
    """One learner, one fragment, every step takes 1/8 off each weight; eta = 1/2, mu = 1/2.

    The first round opens when the learner has reported H = 8 steps, and is answered at the next
    boundary, so its steps are known only from the receipt: n1. All numbers are powers of two times
    integers, so the comparison is exact:

        g1 = n1/8        buf1 = g1              Theta1 = 0 - 1/2 (g1 + 1/2 buf1) = -3/4 g1
        g2 = n2/8        buf2 = 1/2 g1 + g2     Theta2 = Theta1 - 1/2 (g2 + 1/2 buf2)
    """
    settings = settings_of(1, outer=OuterSettings(preset="fixed", lr=0.5, momentum=0.5))
    run = Run(settings, infos(1))
    run.start_coordinator()
    run.add_learner("a", ConstantGradient(run.layout, lr=0.125))
    run.go(commits=1)
    n1 = run.receipts()[0].steps
    theta1 = -0.75 * (n1 / 8)
    assert n1 >= 8
    assert torch.equal(run.model()["w0"], torch.full((2, 3), theta1))

    run.go(commits=2)
    n2 = run.receipts()[1].steps
    g1, g2 = n1 / 8, n2 / 8
    theta2 = theta1 - 0.5 * (g2 + 0.5 * (0.5 * g1 + g2))
    assert torch.equal(run.model()["w0"], torch.full((2, 3), theta2))
    checked(run)


@ONE_AND_MANY
@pytest.mark.parametrize("method", ["rda", "mean"])
def test_constant_gradients_equal_the_closed_form(num_fragments: int, method: str) -> None:
    """Learners of unequal speed, all in one direction: each outer gradient is

        sum w_i d_i / sum w_i    with  d_i = n_i/8 in every element,  w_i = (100 n_i)^2 / n_i
                                 = 1/8 * sum n_i^2 / sum n_i

    for the mean, and for RDA as well, because vectors of one direction have the same mean and the
    same mean length. n_i are the steps on the receipts, two rounds' worth (16) at most.
    """
    settings = settings_of(num_fragments, merge=msgspec.convert({"method": method}, MergeSettings))
    run = Run(settings, infos(num_fragments))
    run.start_coordinator()
    for name, step_s in (("a", 1.0), ("b", 1.7), ("c", 0.6)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.125), step_s=step_s)
    run.go(commits=8 * num_fragments)

    lr, mu = settings.outer.lr, settings.outer.momentum
    theta = [0.0] * num_fragments
    buffer = [0.0] * num_fragments
    for record in run.records():
        if record.kind != "step":
            continue
        p = record.fragments[0].fragment
        merged = [r for r in record.receipts if r.fate == "merged"]
        weights = [min(r.steps, 16) * 100.0**2 for r in merged]
        assert [r.weight for r in merged] == pytest.approx(weights)
        deltas = [r.steps / 8 for r in merged]
        gradient = sum(w * d for w, d in zip(weights, deltas, strict=True)) / sum(weights)
        buffer[p] = mu * buffer[p] + gradient
        theta[p] -= lr * (gradient + mu * buffer[p])
    for p in range(num_fragments):
        (spec,) = run.layout.by_fragment[p]
        assert torch.allclose(run.model()[spec.name], torch.full((2, 3), theta[p]), rtol=1e-5)
    checked(run)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("codec", "down"),
    [("fp32", "full"), ("bf16", "full"), ("int8", "full"), ("int4", "full"), ("int4", "int4-step")],
)
@pytest.mark.parametrize(("dtype", "publish"), [("float32", "float32"), ("bfloat16", "bfloat16")])
@ONE_AND_MANY
def test_null_learners_leave_the_model_bit_equal(
    num_fragments: int, mode: str, codec: str, down: str, dtype: str, publish: str
) -> None:
    """Learners with learning rate 0 change no bit of the model, whatever the mode, the codec and the
    precision: nothing that is not work is ever handed in as work."""
    settings = settings_of(
        num_fragments,
        adopt=msgspec.convert({"mode": mode, "alpha": 0.3}, AdoptSettings),
        codec=msgspec.convert({"up": codec, "down": down}, CodecSettings),
        fragments=msgspec.convert(
            {"num": num_fragments, "publish_dtype": publish}, FragmentSettings
        ),
    )
    described = infos(num_fragments, shape=(3, 5), dtype=dtype)
    lots = torch.Generator().manual_seed(3)
    start = {info.name: torch.randn(info.shape, generator=lots) for info in described}
    run = Run(settings, described, start=start)
    before = run.model()
    run.start_coordinator()
    for name, step_s in (("a", 1.0), ("b", 1.3)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.0), step_s=step_s)
    run.go(commits=4 * num_fragments)
    after = run.model()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(r.norm == 0.0 for r in run.receipts())
    checked(run)


@pytest.mark.promise(3)
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
@ONE_AND_MANY
def test_carry_loses_nothing(num_fragments: int, codec: str) -> None:
    """All decoded deltas of a learner plus what is left in u are its whole movement: 1/8 a step."""
    settings = settings_of(num_fragments, codec=msgspec.convert({"up": codec}, CodecSettings))
    run = Run(settings, infos(num_fragments, shape=(3, 5)))
    run.start_coordinator()
    for name, step_s in (("a", 1.0), ("b", 1.6)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.125), step_s=step_s)
    run.go(commits=10 * num_fragments)
    for learner in run.learners.values():
        for p, specs in enumerate(run.layout.by_fragment):
            anchor = learner.movements[p].anchor
            for spec in specs:
                left = (learner.task.tensors[spec.name] - anchor[spec.name]).double()
                moved = learner.decoded[spec.name] - left
                expected = torch.full((3, 5), learner.machine.trained.steps / 8).double()
                assert torch.allclose(moved, expected, rtol=1e-5)
        assert all(track.discarded.steps == 0 for track in learner.machine.tracks)
    checked(run)


@pytest.mark.parametrize("mode", ["overwrite", "blend"])
@ONE_AND_MANY
def test_what_adoption_throws_away_is_counted(num_fragments: int, mode: str) -> None:
    """Outside of carry mode steps are lost at adoptions, and stand as `discarded` (the balance
    trained == handed in + discarded + in u is checked at every boundary)."""
    adopt = msgspec.convert({"mode": mode, "alpha": 0.5}, AdoptSettings)
    run = Run(settings_of(num_fragments, adopt=adopt), infos(num_fragments))
    run.start_coordinator()
    for name in "ab":
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), stage_s=1.5)
    run.go(commits=8 * num_fragments)
    for learner in run.learners.values():
        assert learner.machine.work("discarded").steps > 0
    checked(run)


@ONE_AND_MANY
def test_one_learner_s_progress_is_its_own_token_count(num_fragments: int) -> None:
    """With one learner the run's clock is its count of tokens, exactly, at every step."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    learner = run.add_learner("a", ConstantGradient(run.layout, lr=0.1, tokens=37))
    run.go(commits=6 * num_fragments)
    clock = [c for c in learner.clock if c]
    assert clock == [37 * (i + 1) for i in range(len(clock))]
    assert len(clock) > 40


@ONE_AND_MANY
def test_a_clock_never_falls_and_stays_near_the_truth(num_fragments: int) -> None:
    """With several learners each one's clock rises step by step and ends near all tokens trained."""
    run = Run(settings_of(num_fragments), infos(num_fragments))
    run.start_coordinator()
    for name, step_s in (("a", 1.0), ("b", 1.5), ("c", 4.0)):
        run.add_learner(name, ConstantGradient(run.layout, lr=0.1), step_s=step_s)
    run.go(commits=12 * num_fragments)
    trained = sum(learner.machine.trained.tokens for learner in run.learners.values())
    for learner in run.learners.values():
        assert learner.clock == sorted(learner.clock)
        assert learner.clock[-1] == pytest.approx(trained, rel=0.25)


@ONE_AND_MANY
def test_who_joins_late_reads_the_run_s_clock(num_fragments: int) -> None:
    """Its learning rate is that of where the run stands, from its first step on, and it ends with all
    the others: none of its schedule begins anew."""
    settings = settings_of(num_fragments, stop=StopSettings(tokens=30_000))
    run = Run(settings, infos(num_fragments))
    run.start_coordinator()
    first = run.add_learner("a", ConstantGradient(run.layout, lr=0.1, tokens=100))
    run.add_learner("b", ConstantGradient(run.layout, lr=0.1, tokens=100))
    run.time.run(75.0)
    late = run.add_learner("late", ConstantGradient(run.layout, lr=0.1, tokens=100))
    assert run.time.run(20.0, until=lambda: late.machine.local_steps == 1)
    there = first.machine.progress_fraction()
    assert 0.35 < there < 0.65
    assert late.machine.progress_fraction() == pytest.approx(there, abs=0.1)
    assert run.time.run(1_000.0, until=lambda: run.log.state == "stopped")
    assert late.machine.progress_fraction() == first.machine.progress_fraction() == 1.0
    assert late.machine.local_steps < 0.7 * first.machine.local_steps
    checked(run)


@ONE_AND_MANY
def test_learners_learn_together(num_fragments: int) -> None:
    """A real task in torch: the merged model's loss falls far below the start's."""
    model = make_regression_model()
    settings = settings_of(
        num_fragments, codec=CodecSettings(up="int4"), merge=MergeSettings(method="rda")
    )
    description = describe_model(model)
    run = Run(settings, description.infos, start=description.tensors)
    run.start_coordinator()
    for seed, name in enumerate("abc"):
        run.add_learner(name, Regression(seed=seed, lr=0.1))
    points = torch.randn(512, 4, generator=torch.Generator().manual_seed(99))

    def loss() -> float:
        with torch.no_grad():
            for name, value in run.model().items():
                description.tensors[name].copy_(value)
            return regression_loss(model, points).item()

    before = loss()
    run.go(commits=20 * num_fragments)
    assert loss() < 0.5 * before
    checked(run)


@ONE_AND_MANY
def test_the_same_events_give_the_same_bytes(num_fragments: int) -> None:
    """Two runs of one script write the same log, byte for byte, and the same objects."""

    def once() -> Run:
        run = Run(settings_of(num_fragments), infos(num_fragments))
        run.start_coordinator()
        for name, step_s in (("a", 1.0), ("b", 1.3), ("c", 2.1)):
            run.add_learner(name, ConstantGradient(run.layout, lr=0.1), step_s=step_s)
        run.go(commits=10)
        return run

    first, second = once(), once()
    assert first.services.log == second.services.log
    assert first.services.objects == second.services.objects
