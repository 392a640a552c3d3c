"""Whole runs with compressed publication: every version arrives as the bytes that the log names.

The learner of this runner asserts that for each version it stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from ddl.codec.fragment import PublishDtype
from ddl.codec.payload import decode_payload
from ddl.codec.step import STEP_CODEC
from ddl.config import CodecSettings, FragmentSettings, KeepSettings, RoundSettings
from ddl.core import events as e
from ddl.merge.inspect import describe_model
from ddl.merge.layout import TensorInfo
from ddl.protocol import wire
from ddl.protocol.records import Request
from tests.lockstep.runner import Run, checked, infos, settings_of
from tests.lockstep.scripted import Scripted
from tests.lockstep.tasks import ConstantGradient, Regression, make_regression_model

ONE_AND_MANY = pytest.mark.parametrize("num_fragments", [1, 4])


def compressed(
    num_fragments: int,
    *,
    quorum: int = 1,
    publish: PublishDtype = "float32",
    described: Sequence[TensorInfo] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> Run:
    settings = settings_of(
        num_fragments,
        codec=CodecSettings(up="int4", down="int4-step"),
        fragments=FragmentSettings(num=num_fragments, publish_dtype=publish),
        round=RoundSettings(
            every_steps=8, overlap_steps=2, in_flight=min(2, num_fragments), quorum=quorum
        ),
        keep=KeepSettings(versions=100),
    )
    return Run(settings, described or infos(num_fragments, shape=(3, 70)), start=start)


@pytest.mark.parametrize("publish", ["float32", "bfloat16"])
@ONE_AND_MANY
def test_all_but_the_first_version_come_as_steps(num_fragments: int, publish: PublishDtype) -> None:
    """One learner is there from the start; one that joins later takes one whole model, then steps."""
    run = compressed(num_fragments, publish=publish)
    run.start_coordinator()
    early = run.add_learner("early", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=4 * num_fragments)
    late = run.add_learner("late", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=10 * num_fragments)
    run.time.run(1.0)
    assert early.steps_taken == 10 * num_fragments
    assert 5 * num_fragments <= late.steps_taken <= 6 * num_fragments
    checked(run)


@ONE_AND_MANY
def test_the_published_model_stays_beside_the_master(num_fragments: int) -> None:
    """Two learners learn for 40 versions: what is apart then is what the last step left out."""
    described = describe_model(make_regression_model())
    run = compressed(num_fragments, described=described.infos, start=described.tensors)
    run.start_coordinator()
    for seed, name in enumerate("ab"):
        run.add_learner(name, Regression(seed=seed))
    run.go(commits=40 * num_fragments)
    assert run.coordinator is not None
    for fragment, head in enumerate(run.log.fragments):
        base, specs = run.coordinator.base(fragment, head), run.payloads.specs(fragment)
        assert base.published is not None
        assert head.step is not None
        step = decode_payload(run.services.objects[head.step.key], specs, STEP_CODEC, what="step")
        for name, master in base.master.items():
            difference = (master - base.published[name]).abs().max()
            # a level, and what rounding the scale makes of eight
            most = 1.04 * step.values[name].parts["|s"].float().abs().max()
            assert difference <= most
            assert most < 0.2 * (master - described.tensors[name]).abs().max()
    checked(run)


@ONE_AND_MANY
def test_no_step_leads_across_a_rollback(num_fragments: int) -> None:
    """The rollback's versions have no step objects and are taken whole; the line after it goes on by
    steps, from the weights and the master of the healthy version."""
    run = compressed(num_fragments)
    coordinator = run.start_coordinator()
    learner = run.add_learner("a", ConstantGradient(run.layout, lr=0.1))
    run.go(commits=3 * num_fragments)
    healthy = run.find_version(3 * num_fragments).fragments
    run.go(commits=5 * num_fragments)
    request = Request(id="1", kind="rollback", who="ann", version=3 * num_fragments)
    coordinator.tell(e.Requested(request))
    assert run.time.run(60.0, until=lambda: "1" in coordinator.answers)
    assert coordinator.answers["1"] == "done"
    (record,) = [r for r in run.records() if r.kind == "rollback"]
    assert [s.step for s in record.fragments] == [None] * num_fragments
    assert [s.published for s in record.fragments] == [head.published for head in healthy]
    assert run.time.run(60.0, until=lambda: learner.machine.line == 1)
    taken = learner.steps_taken
    run.go(commits=9 * num_fragments)
    run.time.run(1.0)
    assert learner.steps_taken >= taken + 3 * num_fragments
    checked(run)


@ONE_AND_MANY
def test_a_restarted_coordinator_publishes_the_same_bytes(num_fragments: int) -> None:
    """Master, momentum and published weights are read back from the store, and the run ends up as
    one whose coordinator lived."""

    def run_of(restarts: tuple[int, ...]) -> Run:
        run = compressed(num_fragments, quorum=2)
        for name in "ab":
            Scripted(run, name)
        run.start_coordinator()
        for commits in restarts:
            run.go(commits=commits * num_fragments)
            assert run.coordinator is not None
            run.coordinator.die()
            run.start_coordinator()
        run.go(commits=8 * num_fragments)
        checked(run)
        return run

    lived, died = run_of(()), run_of((2, 5))
    for one, other in zip(lived.log.fragments, died.log.fragments, strict=True):
        assert wire.canonical((one.published, one.outer, one.step)) == wire.canonical(
            (other.published, other.outer, other.step)
        )
    assert all(torch.equal(lived.model()[name], value) for name, value in died.model().items())
