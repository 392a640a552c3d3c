"""Parameters that are not trained: a learner has to hold the run's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddl.codec.frame import read_frame
from ddl.codec.frozen import frozen_digest
from ddl.errors import RefusedError
from ddl.learner.port import check_model
from ddl.merge.inspect import describe_model
from ddl.names import counted
from ddl.protocol.records import RunRecord
from ddl.store.base import Store
from ddl.store.hashed import get_checked


def take_frozen(model: nn.Module, run: RunRecord, store: Store) -> str:
    """See that `model` is the run's, and give it the run's frozen parameters, as far as its own differ;
    what was done, for people, empty if nothing was.

    They are downloaded only then: what a base was read from is mostly there on every machine.
    Raises: RefusedError: another model; IntegrityError, StoreError.
    """
    living = check_model(model, run.layout)
    frozen = describe_model(model).frozen
    local = {spec.name: living[spec.name] for spec in run.layout.tensors if spec.fragment < 0}
    if run.frozen is None and not frozen:
        return ""
    hint = "Start the learner with the task that the run was started with"
    if run.frozen is None:
        raise RefusedError(
            f"this model has the frozen parameter {next(iter(frozen))!r}, which the run's model lacks",
            hint=hint,
        )
    if frozen_digest({**frozen, **local}) == run.frozen.sha256:
        return ""
    values = read_frame(get_checked(store, run.frozen)).tensors
    expected = {name: value for name, value in values.items() if name not in local}
    for name in sorted(expected.keys() ^ frozen.keys()):
        lacks = "this model lacks" if name in expected else "the run's model lacks"
        raise RefusedError(f"{lacks} the frozen parameter {name!r}", hint=hint)
    num = 0
    for name, parameter in frozen.items():
        value = expected[name]
        if (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
            raise RefusedError(
                f"this model is not the run's: the frozen {name!r} is {_form(parameter)}, "
                f"the run's {_form(value)}",
                hint=hint,
            )
        if not torch.equal(parameter.detach().cpu(), value):
            num += 1
            with torch.no_grad():
                parameter.copy_(value)
    if not num:
        return ""
    return f"{counted(num, 'frozen parameter')} differed from the run's, and took on its values"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
