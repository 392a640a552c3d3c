from __future__ import annotations

import pytest
import torch
from torch import nn

from ddl.errors import RefusedError
from ddl.learner.port import ModelPort
from ddl.merge.inspect import describe_model
from ddl.merge.layout import plan_layout
from ddl.protocol.records import Layout


def model(width: int = 3, *, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(dtype)


def layout(of: nn.Module, num: int = 2) -> Layout:
    return plan_layout(describe_model(of).infos, num=num, method="rda", every_steps=8)


def test_a_copy_does_not_change_when_training_goes_on() -> None:
    """What is handed in is what stood at the boundary."""
    trained = model()
    port = ModelPort(trained, layout(trained))
    copies = [port.read(p) for p in range(2)]
    before = {name: value.clone() for copy in copies for name, value in copy.parameters.items()}
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1.0)
    for copy in copies:
        for name, value in copy.parameters.items():
            assert value.equal(before[name])


def test_low_precision_is_read_as_fp32_and_buffers_as_they_are() -> None:
    """Deltas are computed in fp32; an integer counter stays one."""
    trained = model(dtype=torch.bfloat16)
    port = ModelPort(trained, layout(trained, 1))
    copy = port.read(0)
    assert {v.dtype for v in copy.parameters.values()} == {torch.float32}
    assert copy.buffers["1.num_batches_tracked"].dtype == torch.int64
    assert copy.buffers["1.running_mean"].dtype == torch.bfloat16


def test_assigning_keeps_the_very_tensors() -> None:
    """Optimizers and compiled graphs hold on to parameters: they are changed in place."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    pointers = [p.data_ptr() for p in trained.parameters()]
    port = ModelPort(trained, layout(trained, 1))
    values = {name: torch.full_like(v, 7.0) for name, v in port.read(0).parameters.items()}
    port.assign(values)
    assert [p.data_ptr() for p in trained.parameters()] == pointers
    assert all(bool((p == 7.0).all()) for p in optimizer.param_groups[0]["params"])


def test_a_compiled_model_is_the_same_model() -> None:
    """Wrapper prefixes do not count."""
    trained = model()
    ModelPort(nn.Sequential(trained)[0], layout(trained))
    wrapped = nn.Module()
    wrapped.module = trained
    ModelPort(wrapped, layout(trained))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (model(5), r"'0.weight' has shape \(4, 5\), the run \(4, 3\)"),
        (model(dtype=torch.bfloat16), "'0.weight' is bfloat16, the run has float32"),
        (nn.Sequential(nn.Linear(3, 4)), "lacks '1.weight'"),
        (nn.Sequential(*model(), nn.Linear(2, 2)), "has '3.bias', which the run's model lacks"),
    ],
)
def test_another_model_is_refused_by_its_first_difference(other: nn.Module, says: str) -> None:
    """The sentence names the tensor and both sides."""
    with pytest.raises(RefusedError, match=says):
        ModelPort(other, layout(model()))
